"""PartitionLog: one append-only log, batches kept as the bytes that came.

    log_start_offset       last_stable_offset        next_offset
          v                       v                       v
    ------[ b ][ b ][ b ][ marker ][ b of an open txn ][ b ]

Offsets are given here, duplicates recognised, sequences checked (producer_state.py) and transactions followed: the
last stable offset is where the earliest open one begins, and nothing from there on is shown to read_committed readers.
A batch is checked (batch_checks.py) before anything is changed.

With `discard` nothing is kept and nothing but the header is looked at: offsets advance, records and bytes are counted.
"""

from __future__ import annotations

import struct
import threading
from bisect import bisect_right
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Protocol

from spark_kafka_sink.broker.api_error import ApiError, storage_error
from spark_kafka_sink.broker.batch_validation import RecordValidator, parse_batch_header, validate_batch
from spark_kafka_sink.broker.producer_state import NO_EPOCH, ProducerStateEntry
from spark_kafka_sink.protocol import error_codes
from spark_kafka_sink.records.header import (
    CONTROL,
    HEADER_BYTES,
    TRANSACTIONAL,
    BatchHeader,
    Buffer,
    encode_header,
    parse_header,
    patch_header,
)

# key: version int16 = 0, type int16 (0 abort, 1 commit); value: version int16 = 0, coordinator epoch int32.
# record: length 2 * (1 + 1 + 1 + 1 + 4 + 1 + 6 + 1 = 16) as zigzag, attributes, deltas, key, value, no headers.
_MARKER_RECORD = struct.Struct(">bbbbbhhbhib")
_MARKER_KEY = struct.Struct(">hh")


@dataclass(frozen=True)
class LogConfig:
    """The settings of a topic that a log obeys."""

    max_message_bytes: int = 1024 * 1024 + 12
    log_append_time: bool = False
    compacted: bool = False
    check_records: bool = True
    discard: bool = False


@dataclass(frozen=True)
class LogBatch:
    base_offset: int
    last_offset: int
    max_timestamp: int
    data: memoryview

    @property
    def size_bytes(self) -> int:
        return self.data.nbytes


@dataclass(frozen=True)
class AppendResult:
    base_offset: int
    log_append_time: int = -1
    duplicate: bool = False


@dataclass(frozen=True)
class AbortedRange:
    producer_id: int
    first_offset: int
    last_offset: int


@dataclass(frozen=True)
class LogReadResult:
    batches: Sequence[memoryview]
    size_bytes: int
    aborted: Sequence[AbortedRange]


class BatchFile(Protocol):
    """Where a log is kept besides memory (storage.py)."""

    def append(self, data: Buffer) -> None:
        """OSError: nothing of it is kept."""

    def delete(self) -> None: ...


class PartitionLog:
    """Thread-safe: every method that reads or changes the log takes `_lock`."""

    def __init__(self, config: LogConfig, file: BatchFile | None = None, checks: RecordValidator | None = None) -> None:
        self.config = config
        self._checks = checks or RecordValidator()
        self.log_start_offset = 0
        self.log_end_offset = 0
        self.records_appended = 0
        self.bytes_appended = 0
        self.batches_appended = 0
        self._file = file
        self._lock = threading.Lock()
        self._base_offsets: list[int] = []
        self._batches: list[LogBatch] = []
        self._producers: dict[int, ProducerStateEntry] = {}
        self._aborted: list[AbortedRange] = []
        self._deleted = False

    # --- appending

    def append(
        self, data: Buffer, *, wall_ms: int, leader_epoch: int = 0, requires_sequence_zero: bool = False
    ) -> AppendResult:
        """Append what a producer sent for this partition. Refusal if it is not taken."""
        if self.config.discard:
            return self._count(parse_batch_header(data))
        header, received = validate_batch(data, bytes_max=self.config.max_message_bytes)
        if self.config.check_records or self.config.compacted:
            self._checks.check(header, received, keys_required=self.config.compacted)
        # In memory of its own: a view would keep all of the request that it came with.
        batch = memoryview(bytearray(received))
        with self._lock:
            if self._deleted:
                raise ApiError(error_codes.UNKNOWN_TOPIC_OR_PARTITION, "the topic was deleted a moment ago")
            duplicate = self._check_producer(header, requires_sequence_zero)
            if duplicate is not None:
                return duplicate
            append_time = wall_ms if self.config.log_append_time else None
            base_offset = self._store(header, batch, leader_epoch, append_time)
            return AppendResult(base_offset, -1 if append_time is None else append_time)

    def end_transaction(
        self, producer_id: int, epoch: int, *, commit: bool, wall_ms: int, leader_epoch: int = 0
    ) -> int:
        """Write the control record that commits or aborts what this producer wrote; its offset. Refusal: the disk."""
        if self.config.discard:
            return self.log_end_offset  # nothing was kept that it could end
        record = _MARKER_RECORD.pack(32, 0, 0, 0, 8, 0, 1 if commit else 0, 12, 0, 0, 0)
        header = encode_header(
            [record],
            attributes=TRANSACTIONAL | CONTROL,
            last_offset_delta=0,
            base_timestamp=wall_ms,
            max_timestamp=wall_ms,
            producer_id=producer_id,
            producer_epoch=epoch,
            record_count=1,
        )
        batch = memoryview(bytearray(header + record))
        with self._lock:
            return self._store(parse_header(batch), batch, leader_epoch, None)

    def recover(self, batches: Iterable[memoryview]) -> None:
        """Take up batches that were stored before: in order, with their offsets."""
        with self._lock:
            for batch in batches:
                header = parse_header(batch)
                self.log_end_offset = header.base_offset
                self._keep(header, batch)

    def _check_producer(self, header: BatchHeader, requires_sequence_zero: bool) -> AppendResult | None:
        if header.producer_id < 0:
            return None
        state = self._producers.get(header.producer_id) or ProducerStateEntry()
        duplicate = state.duplicate_of(header)
        if duplicate is not None:
            return AppendResult(duplicate.base_offset, duplicate.append_time, duplicate=True)
        state.check(header, requires_sequence_zero=requires_sequence_zero)
        return None

    def _store(self, header: BatchHeader, batch: memoryview, leader_epoch: int, append_time: int | None) -> int:
        base_offset = self.log_end_offset
        patch_header(batch, base_offset=base_offset, leader_epoch=leader_epoch, append_time=append_time)
        if self._file is not None:
            try:
                self._file.append(batch)
            except OSError as error:
                raise storage_error("the batch", error) from error
        self._keep(parse_header(batch), batch)
        return base_offset

    def _keep(self, header: BatchHeader, batch: memoryview) -> None:
        base_offset = self.log_end_offset
        self._base_offsets.append(base_offset)
        self._batches.append(LogBatch(base_offset, header.last_offset, header.max_timestamp, batch))
        self.log_end_offset = header.last_offset + 1
        self.batches_appended += 1
        self.bytes_appended += batch.nbytes
        if header.is_control:
            self._end(header, batch)
            return
        self.records_appended += header.record_count
        if header.producer_id >= 0:
            append_time = header.max_timestamp if header.has_log_append_time else -1
            self._producers.setdefault(header.producer_id, ProducerStateEntry()).note(header, base_offset, append_time)

    def _end(self, header: BatchHeader, batch: memoryview) -> None:
        state = self._producers.setdefault(header.producer_id, ProducerStateEntry())
        start, state.transaction_start = state.transaction_start, None
        state.begin_epoch(header.producer_epoch)
        if start is not None and not _commits(batch):
            self._aborted.append(AbortedRange(header.producer_id, start, header.base_offset))

    def _count(self, header: BatchHeader) -> AppendResult:
        with self._lock:
            base_offset = self.log_end_offset
            self.log_end_offset += header.last_offset_delta + 1
            self.log_start_offset = self.log_end_offset
            self.records_appended += header.record_count
            self.bytes_appended += header.size_bytes
            self.batches_appended += 1
        return AppendResult(base_offset)

    # --- reading

    @property
    def last_stable_offset(self) -> int:
        with self._lock:
            return self._last_stable_offset()

    def _last_stable_offset(self) -> int:
        open_ones = [p.transaction_start for p in self._producers.values() if p.transaction_start is not None]
        return min(open_ones, default=self.log_end_offset)

    def read(self, offset: int, bytes_max: int, *, committed: bool = False, at_least_one: bool = True) -> LogReadResult:
        """Whole batches from the one that holds `offset` on. The caller has checked that the offset is in the log."""
        with self._lock:
            end = self._last_stable_offset() if committed else self.log_end_offset
            index = max(0, bisect_right(self._base_offsets, offset) - 1)
            found: list[memoryview] = []
            size, last = 0, offset
            for place in range(index, len(self._batches)):
                stored = self._batches[place]
                if stored.base_offset >= end:
                    break
                if stored.last_offset < offset:
                    continue
                if size + stored.size_bytes > bytes_max and (found or not at_least_one):
                    break
                found.append(stored.data)
                size += stored.size_bytes
                last = stored.last_offset
            aborted = [a for a in self._aborted if a.first_offset <= last and a.last_offset >= offset]
            return LogReadResult(found, size, aborted if committed else ())

    def find_offset_by_timestamp(self, timestamp: int) -> tuple[int, int]:
        """The first batch with a record that is not older: (its timestamp, its offset), or (-1, -1)."""
        with self._lock:
            for stored in self._batches:
                if stored.max_timestamp >= timestamp:
                    return self._first_record_since(stored, timestamp)
            return -1, -1

    def max_timestamp(self) -> tuple[int, int]:
        with self._lock:
            newest = max(self._batches, key=lambda stored: stored.max_timestamp, default=None)
            return (-1, -1) if newest is None else self._first_record_since(newest, newest.max_timestamp)

    def _first_record_since(self, stored: LogBatch, timestamp: int) -> tuple[int, int]:
        found = self._checks.first_record_since(stored.data, timestamp)
        return (stored.max_timestamp, stored.base_offset) if found is None else found

    # --- what retention and admins do

    def delete_records(self, before_offset: int) -> None:
        """Records below this offset are gone, and producers of which no record is left are forgotten."""
        with self._lock:
            self.log_start_offset = max(self.log_start_offset, min(before_offset, self.log_end_offset))
            kept = [b for b in self._batches if b.last_offset >= self.log_start_offset]
            self._batches, self._base_offsets = kept, [b.base_offset for b in kept]
            self._aborted = [a for a in self._aborted if a.last_offset >= self.log_start_offset]
            alive = {parse_header(b.data).producer_id for b in kept}
            self._producers = {
                p: s for p, s in self._producers.items() if p in alive or s.transaction_start is not None
            }

    def forget_producers(self) -> None:
        """Forget the producers without an open transaction, like brokers after producer.id.expiration.ms."""
        with self._lock:
            self._producers = {p: s for p, s in self._producers.items() if s.transaction_start is not None}

    def open_transactions(self) -> list[int]:
        """The producer id of each open transaction."""
        with self._lock:
            return [p for p, s in self._producers.items() if s.transaction_start is not None]

    def producer_epoch(self, producer_id: int) -> int:
        with self._lock:
            state = self._producers.get(producer_id)
            return NO_EPOCH if state is None else state.epoch

    def delete(self) -> None:
        """Nothing is appended any more: it would leave a file behind that belongs to no topic."""
        with self._lock:
            self._deleted = True
            if self._file is not None:
                self._file.delete()


def _commits(batch: memoryview) -> bool:
    _, kind = _MARKER_KEY.unpack_from(batch, HEADER_BYTES + 5)
    return bool(kind == 1)
