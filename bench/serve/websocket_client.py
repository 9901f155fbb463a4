"""A client of websockets on a raw socket, and the CartPole that it plays. Standard library alone."""

from __future__ import annotations

import math
import os
import random
import socket
import struct
from base64 import b64encode

_BINARY_FRAME, _MASKED = 0x82, 0x80
_OBSERVATION, _ACTION = struct.Struct("<4f"), struct.Struct("<f")


Observation = tuple[float, float, float, float]


class Socket:
    """A websocket that sends observations of four floats and receives actions of one."""

    def __init__(self, port: int, path: str) -> None:
        self._socket = socket.create_connection(("127.0.0.1", port), 60)
        self._socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        key = b64encode(os.urandom(16)).decode()
        self._socket.sendall(
            f"GET {path} HTTP/1.1\r\nHost: 127.0.0.1:{port}\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n"
            f"Sec-WebSocket-Key: {key}\r\nSec-WebSocket-Version: 13\r\n\r\n".encode()
        )
        answer = b""
        while not answer.endswith(b"\r\n\r\n"):
            arrived = self._socket.recv(1)  # a frame may follow at once, and has to stay
            if not arrived:
                break
            answer += arrived
        if not answer.startswith(b"HTTP/1.1 101"):
            raise RuntimeError(f"{path} is no websocket: {answer[:200]!r}")

    def act(self, observation: Observation) -> float:
        """One step of the closed loop. The mask is of zeros: RFC 6455 asks for one, and servers apply it."""
        head = bytes([_BINARY_FRAME, _MASKED | _OBSERVATION.size, 0, 0, 0, 0])
        self._socket.sendall(head + _OBSERVATION.pack(*observation))
        frame = b""
        while len(frame) < 2 + _ACTION.size:
            arrived = self._socket.recv(64)
            if not arrived:
                raise RuntimeError("the server closed the websocket")
            frame += arrived
        if frame[0] != _BINARY_FRAME or frame[1] != _ACTION.size:
            raise RuntimeError(f"not the frame of an action: {frame!r}")
        return float(_ACTION.unpack_from(frame, 2)[0])

    def close(self) -> None:
        self._socket.close()


class CartPole:
    """The cart with a pole of Barto, Sutton and Anderson (1983), as gymnasium's CartPole-v1 has it."""

    STEPS_MAX = 500

    def __init__(self, seed: int) -> None:
        self._random = random.Random(seed)
        self.reset()

    def reset(self) -> None:
        self.steps = 0
        x, speed, angle, turn = (self._random.uniform(-0.05, 0.05) for _ in range(4))
        self.state: Observation = (x, speed, angle, turn)

    def step(self, action: float) -> bool:
        """Push to the right (1) or to the left (0); whether the episode is over."""
        x, speed, angle, turn = self.state
        cosine, sine = math.cos(angle), math.sin(angle)
        push = ((10.0 if action else -10.0) + 0.05 * turn * turn * sine) / 1.1
        turning = (9.8 * sine - cosine * push) / (0.5 * (4 / 3 - 0.1 * cosine * cosine / 1.1))
        moving = push - 0.05 * turning * cosine / 1.1
        self.state = (x + 0.02 * speed, speed + 0.02 * moving, angle + 0.02 * turn, turn + 0.02 * turning)
        self.steps += 1
        return abs(self.state[0]) > 2.4 or abs(self.state[2]) > 12 * math.pi / 180 or self.steps >= self.STEPS_MAX
