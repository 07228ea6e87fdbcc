"""A simple encoder of the record format, one record at a time, as the reference for the fast encoder."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from spark_kafka_sink.records.header import HEADER_BYTES
from tests.records.slices import BatchSlice, PartitionSlice


@dataclass(frozen=True)
class Row:
    value: bytes | None
    key: bytes | None = None
    headers: tuple[tuple[str, bytes | None], ...] | None = None
    timestamp: int | None = None


def reference_varint(value: int) -> bytes:
    zigzag = (value << 1) if value >= 0 else (-value << 1) - 1
    groups = []
    while True:
        groups.append(zigzag % 128)
        zigzag //= 128
        if zigzag == 0:
            break
    return bytes([group + 128 for group in groups[:-1]] + groups[-1:])


def reference_bytes(data: bytes | None) -> bytes:
    return reference_varint(-1) if data is None else reference_varint(len(data)) + data


def reference_record(row: Row, offset_delta: int, timestamp_delta: int) -> bytes:
    body = b"\x00" + reference_varint(timestamp_delta) + reference_varint(offset_delta)
    body += reference_bytes(row.key) + reference_bytes(row.value)
    headers = row.headers or ()
    body += reference_varint(len(headers))
    for key, value in headers:
        body += reference_bytes(key.encode()) + reference_bytes(value)
    return reference_varint(len(body)) + body


@dataclass(frozen=True)
class ReferenceSlice:
    segment: bytes
    record_count: int
    base_timestamp: int
    max_timestamp: int


def reference_encode(rows: Sequence[Row], slices: Sequence[BatchSlice], now_ms: int) -> list[ReferenceSlice]:
    encoded = []
    for part in slices:
        members = rows[part.start : part.stop]
        times = [now_ms if row.timestamp is None else row.timestamp for row in members]
        base = times[0] if part.base_timestamp is None else part.base_timestamp
        segment = b"".join(
            reference_record(row, part.first_offset_delta + place, time - base)
            for place, (row, time) in enumerate(zip(members, times, strict=True))
        )
        encoded.append(ReferenceSlice(segment, len(members), base, max(times)))
    return encoded


def reference_split(
    sizes: Sequence[int], slices: Sequence[PartitionSlice], max_batch_bytes: int, delta_bytes: int
) -> list[BatchSlice]:
    """Append each record to the open batch, or open another batch if it does not fit.

    A size includes 4 bytes for the offset delta and 6 for the timestamp delta, which take `delta_bytes` together here.
    """
    batch_slices = []
    for index, part in enumerate(slices):
        start, place, base = part.start, part.open_record_count, part.base_timestamp
        used = part.open_batch_bytes if part.open_record_count else HEADER_BYTES
        empty = part.open_record_count == 0
        for row in range(part.start, part.stop):
            size = sizes[row] - 4 - 6 + delta_bytes
            if used + size > max_batch_bytes and not empty:
                if row > start:
                    batch_slices.append(BatchSlice(index, start, row, place, base))
                start, place, base, used = row, 0, None, HEADER_BYTES
            used += size
            empty = False
        if part.stop > start:
            batch_slices.append(BatchSlice(index, start, part.stop, place, base))
    return batch_slices
