"""Produce and Fetch requests encoded by hand, so that record batches reach a broker without the package's code."""

from __future__ import annotations

import socket
import struct
import time

_CLIENT = b"wire"
_RESPONSE_TIMEOUT_SECONDS = 300.0
_RETRIABLE_ERRORS = (3, 6)
"""Errors of a broker that knows a new topic and does not lead its partition yet. Nothing was written."""


def produce(address: str, topic: str, batch: bytes, partition: int = 0) -> int:
    """Produce one batch (Produce v7, acks=all), and return the offset of its first record."""
    body = struct.pack(">hhi", -1, -1, 30_000) + struct.pack(">i", 1) + _encode_string(topic)
    body += struct.pack(">ii", 1, partition) + struct.pack(">i", len(batch)) + batch
    position = 4 + 2 + len(topic.encode()) + 4 + 4
    deadline = time.monotonic() + _RESPONSE_TIMEOUT_SECONDS
    error, offset = _RETRIABLE_ERRORS[0], -1
    while error in _RETRIABLE_ERRORS and time.monotonic() < deadline:
        error, offset = struct.unpack_from(">hq", _send_request(address, 0, 7, body), position)
    if error:
        raise RuntimeError(f"the broker rejected the batch with error {error}")
    return int(offset)


def fetch(address: str, topic: str, offset: int, partition: int = 0) -> bytes:
    """Fetch the record batches from `offset` on, unchanged (Fetch v4, at most 8 MiB)."""
    body = struct.pack(">iiiib", -1, 500, 1, 8 << 20, 0) + struct.pack(">i", 1) + _encode_string(topic)
    body += struct.pack(">iiqi", 1, partition, offset, 8 << 20)
    response = _send_request(address, 1, 4, body)
    position = 4 + 4 + 2 + len(topic.encode()) + 4
    _, error, _, _, aborted = struct.unpack_from(">ihqqi", response, position)
    if error:
        raise RuntimeError(f"the broker rejected the fetch with error {error}")
    position += struct.calcsize(">ihqqi") + max(0, aborted) * 16
    (size,) = struct.unpack_from(">i", response, position)
    return response[position + 4 : position + 4 + max(0, size)]


def count_active_producers(address: str, topic: str, partition: int = 0) -> int:
    """Return the number of producers whose state the broker keeps for a partition (DescribeProducers v0)."""
    name = topic.encode()
    body = b"\0" + b"\x02" + bytes([len(name) + 1]) + name + b"\x02" + struct.pack(">i", partition) + b"\0\0"
    response = _send_request(address, 61, 0, body)
    position = 1 + 4 + 1 + 1 + len(name) + 1 + 4  # tags, throttle time, topics, name, partitions, index
    (error,) = struct.unpack_from(">h", response, position)
    if error:
        raise RuntimeError(f"the broker rejected the request with error {error}")
    message_length = max(0, response[position + 2] - 1)
    return response[position + 3 + message_length] - 1


def read_producer_ids(address: str, topic: str, partition: int = 0) -> set[int]:
    """Return the producer ids of all batches in a partition, which must fit into one response."""
    batches, chunk, position = set[int](), fetch(address, topic, 0, partition), 0
    while position < len(chunk):
        _, length = struct.unpack_from(">qi", chunk, position)
        batches.add(struct.unpack_from(">q", chunk, position + 43)[0])
        position += 12 + length
    return batches


def fetch_all(address: str, topic: str, records: int, partition: int = 0) -> bytes:
    """Fetch all batches of a partition with `records` records, whose offsets begin at 0 and have no gaps."""
    batches = b""
    offset = 0
    while offset < records:
        chunk = fetch(address, topic, offset, partition)
        position = 0
        while position + 61 <= len(chunk):
            base, length = struct.unpack_from(">qi", chunk, position)
            if position + 12 + length > len(chunk):
                break
            offset = base + struct.unpack_from(">i", chunk, position + 23)[0] + 1
            batches += chunk[position : position + 12 + length]
            position += 12 + length
    return batches


def _encode_string(text: str) -> bytes:
    return struct.pack(">h", len(text.encode())) + text.encode()


def _send_request(address: str, key: int, version: int, body: bytes) -> bytes:
    """Send a request and return its response. In flexible versions, both begin with the tagged fields of the header."""
    host, port = address.split(",")[0].rsplit(":", 1)
    header = struct.pack(">hhih", key, version, 1, len(_CLIENT)) + _CLIENT
    with socket.create_connection((host, int(port)), timeout=_RESPONSE_TIMEOUT_SECONDS) as connection:
        connection.sendall(struct.pack(">i", len(header) + len(body)) + header + body)
        (size,) = struct.unpack(">i", _receive_exactly(connection, 4))
        return _receive_exactly(connection, size)[4:]


def _receive_exactly(connection: socket.socket, count: int) -> bytes:
    data = b""
    while len(data) < count:
        chunk = connection.recv(min(1 << 20, count - len(data)))
        if not chunk:
            raise RuntimeError("the broker closed the connection")
        data += chunk
    return data
