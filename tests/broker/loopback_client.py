"""LoopbackClient: a blocking client on a loopback socket, and counts of open descriptors and broker threads."""

from __future__ import annotations

import os
import socket
import struct
import threading
from typing import Any

from spark_kafka_sink.protocol.headers import decode_response, encode_request
from spark_kafka_sink.protocol.message import Message
from spark_kafka_sink.protocol.messages import load_response_type
from tests.waiting import WAIT_TIMEOUT_SECONDS


class LoopbackClient:
    """A connection to the first of the bootstrap servers. Each operation times out after WAIT_TIMEOUT_SECONDS."""

    def __init__(self, bootstrap: str) -> None:
        host, port = bootstrap.split(",")[0].rsplit(":", 1)
        self.socket = socket.create_connection((host, int(port)), WAIT_TIMEOUT_SECONDS)

    def __enter__(self) -> LoopbackClient:
        return self

    def __exit__(self, *_: object) -> None:
        self.socket.close()

    def send(self, *requests: tuple[Message, int]) -> None:
        """Send requests (message, version) in one write, so that they are pipelined."""
        frames = [b"".join(encode_request(message, version, 1, "tests")) for message, version in requests]
        self.socket.sendall(b"".join(struct.pack(">i", len(frame)) + frame for frame in frames))

    def request(self, message: Message, version: int) -> Any:
        """Send a request and return the response, or None if the broker closes the connection instead."""
        self.send((message, version))
        return self.receive_response(message, version)

    def receive_response(self, message: Message, version: int) -> Any:
        payload = self.receive()
        return None if payload is None else decode_response(payload, load_response_type(message.API_KEY), version)[1]

    def receive(self) -> bytes | None:
        """Return the payload of the next frame, or None at the end of the connection."""
        header = self._receive_exactly(4)
        return None if header is None else self._receive_exactly(struct.unpack(">i", header)[0])

    def _receive_exactly(self, size: int) -> bytes | None:
        data = b""
        while len(data) < size:
            try:
                chunk = self.socket.recv(size - len(data))
            except ConnectionResetError:
                chunk = b""
            if not chunk:
                return None
            data += chunk
        return data


def count_open_descriptors() -> int:
    return len(os.listdir("/proc/self/fd"))


def broker_threads() -> set[threading.Thread]:
    """Return the threads of all embedded brokers of this process, including those of earlier tests."""
    return {thread for thread in threading.enumerate() if thread.name.startswith("embedded-broker")}
