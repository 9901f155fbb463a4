"""ASGI through a stream socket: an application of this process is called from other processes of the cluster.

    server process                                   caller process, on any machine
    app ── TunnelServer ◄═══ skate.connections ═══ TunnelClient ◄── scope, receive, send of a web server

`await client(scope, receive, send)` is the whole application, as if it ran here: bodies and websockets are streamed
both ways. A connection carries one exchange after the other.

The life of an exchange:

1. The client takes an idle connection or makes one. It sends the scope with the first message of the request.
2. The server starts a task with the application. What the application sends goes to the client and on to its `send`.
   A second task of the client carries what `receive` gives to the server.
3. HTTP is over with the last piece of the response, whatever the application does after that. A websocket is over
   when its application returned.
4. The client keeps the connection if the request came to its end too, and closes it otherwise. Only clients close:
   a server that ends asks for it, so that no request meets a connection that has just been closed.

Back-pressure is that of the socket: a side that does not read lets the other one wait.

Files:  tunnel_frames.py  messages as bytes, and back
        tunnel_wire.py    one end of a connection: messages in and out, with back-pressure
        tunnel_server.py  the side with the application
        tunnel_client.py  the side that asks
"""

from __future__ import annotations

from skate.serve.tunnel_client import TunnelClient
from skate.serve.tunnel_server import TunnelServer
from skate.serve.tunnel_wire import RemoteAppError, TunnelBroken

__all__ = ["RemoteAppError", "TunnelBroken", "TunnelClient", "TunnelServer"]
