"""A blocking client on a loopback socket, and what a test may ask about the process."""

from __future__ import annotations

import os
import socket
import struct
import threading
from typing import Any

from spark_kafka_sink.protocol.headers import decode_response, encode_request
from spark_kafka_sink.protocol.message import Message
from spark_kafka_sink.protocol.messages import load_response_type
from tests.waiting import PATIENCE_SECONDS


class LoopbackClient:
    def __init__(self, bootstrap: str) -> None:
        host, port = bootstrap.split(",")[0].rsplit(":", 1)
        self.socket = socket.create_connection((host, int(port)), PATIENCE_SECONDS)

    def __enter__(self) -> LoopbackClient:
        return self

    def __exit__(self, *_: object) -> None:
        self.socket.close()

    def send(self, *requests: tuple[Message, int]) -> None:
        """Send all frames in one write, so that they are pipelined."""
        frames = [b"".join(encode_request(request, version, 1, "tests")) for request, version in requests]
        self.socket.sendall(b"".join(struct.pack(">i", len(frame)) + frame for frame in frames))

    def request(self, request: Message, version: int) -> Any:
        """None if the connection ends in place of an answer."""
        self.send((request, version))
        return self.receive_response(request, version)

    def receive_response(self, request: Message, version: int) -> Any:
        payload = self.receive()
        return None if payload is None else decode_response(payload, load_response_type(request.API_KEY), version)[1]

    def receive(self) -> bytes | None:
        head = self._receive_exactly(4)
        return None if head is None else self._receive_exactly(struct.unpack(">i", head)[0])

    def _receive_exactly(self, size: int) -> bytes | None:
        data = b""
        while len(data) < size:
            try:
                piece = self.socket.recv(size - len(data))
            except ConnectionResetError:
                piece = b""
            if not piece:
                return None
            data += piece
        return data


def count_open_descriptors() -> int:
    return len(os.listdir("/proc/self/fd"))


def broker_threads() -> set[threading.Thread]:
    """Return the threads of all embedded brokers of this process, those of earlier tests included."""
    return {thread for thread in threading.enumerate() if thread.name.startswith("embedded-broker")}
