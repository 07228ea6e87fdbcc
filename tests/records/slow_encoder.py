"""The record format written down as plainly as it can be: one record at a time. The oracle of the fast encoder."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from spark_kafka_sink.records.encoder import BatchSlice, PartitionSlice
from spark_kafka_sink.records.header import HEADER_BYTES


@dataclass(frozen=True)
class Row:
    value: bytes | None
    key: bytes | None = None
    headers: tuple[tuple[str, bytes | None], ...] | None = None
    timestamp: int | None = None


def slow_varint(value: int) -> bytes:
    zigzag = (value << 1) if value >= 0 else (-value << 1) - 1
    groups = []
    while True:
        groups.append(zigzag % 128)
        zigzag //= 128
        if zigzag == 0:
            break
    return bytes([group + 128 for group in groups[:-1]] + groups[-1:])


def slow_bytes(data: bytes | None) -> bytes:
    return slow_varint(-1) if data is None else slow_varint(len(data)) + data


def slow_record(row: Row, offset_delta: int, timestamp_delta: int) -> bytes:
    body = b"\x00" + slow_varint(timestamp_delta) + slow_varint(offset_delta)
    body += slow_bytes(row.key) + slow_bytes(row.value)
    headers = row.headers or ()
    body += slow_varint(len(headers))
    for key, value in headers:
        body += slow_bytes(key.encode()) + slow_bytes(value)
    return slow_varint(len(body)) + body


@dataclass(frozen=True)
class SlowPiece:
    segment: bytes
    record_count: int
    first_offset_delta: int
    base_timestamp: int
    max_timestamp: int


def slow_encode(rows: Sequence[Row], plan: Sequence[BatchSlice], now_ms: int) -> list[SlowPiece]:
    pieces = []
    for part in plan:
        members = rows[part.start : part.stop]
        times = [now_ms if row.timestamp is None else row.timestamp for row in members]
        base = times[0] if part.base_timestamp is None else part.base_timestamp
        segment = b"".join(
            slow_record(row, part.first_offset_delta + place, time - base)
            for place, (row, time) in enumerate(zip(members, times, strict=True))
        )
        pieces.append(SlowPiece(segment, len(members), part.first_offset_delta, base, max(times)))
    return pieces


def slow_plan(
    sizes: Sequence[int], slices: Sequence[PartitionSlice], batch_bytes_max: int, times: tuple[int, int]
) -> list[BatchSlice]:
    """Put one record after the other into the batch that is open, or open another.

    A size counts 4 bytes for the offset delta and 6 for the timestamp's; here they are as wide as they will be.
    """
    low, high = times
    plan = []
    for index, part in enumerate(slices):
        start, delta, base = part.start, part.open_records, part.base_timestamp
        used = part.open_bytes if part.open_records else HEADER_BYTES
        empty = part.open_records == 0
        for row in range(part.start, part.stop):

            def size(place: int, base: int | None, row: int = row) -> int:
                deltas = (low - high, high - low) if base is None else (low - base, high - base)
                time_bytes = max(len(slow_varint(each)) for each in deltas)
                return sizes[row] - 4 - 6 + len(slow_varint(place)) + time_bytes

            place = delta + row - start
            if used + size(place, base) > batch_bytes_max and not empty:
                if row > start:
                    plan.append(BatchSlice(index, start, row, delta, base))
                start, delta, base, used, place = row, 0, None, HEADER_BYTES, 0
            used += size(place, base)
            empty = False
        if part.stop > start:
            plan.append(BatchSlice(index, start, part.stop, delta, base))
    return plan
