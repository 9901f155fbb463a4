"""Decisions of the whole cluster: who leads it, which servers keep its state, and how a write becomes durable.

configuration.py    what the authority keeps: the epoch, the leader, the members of every chain
chain.py            the writer of one chain: writes, failures, take-over
chain_messages.py   what goes into the writer and what comes out
joining.py          how a server becomes a member while writes go on
register.py         the authority among a majority of voters
lease.py            until when a leader may answer reads from its memory
"""
