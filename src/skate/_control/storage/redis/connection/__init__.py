"""Talking to one server.

address    the address of a store, as a user types it
handshake  connecting, and the servers that are refused
requests   what is said, and what is answered
wire       one connection, from the first request to the reset
poller     sockets, timers and errands behind one descriptor
"""
