"""PartitionLog: a partition's append-only log (Kafka's UnifiedLog). It keeps batches as the bytes that were received.

    log_start_offset       last_stable_offset        log_end_offset
          v                       v                       v
    ------[ b ][ b ][ b ][ marker ][ b of an open txn ][ b ]

The log validates batches (batch_validation.py), checks their sequence numbers and recognizes duplicates
(producer_state.py), assigns offsets, and tracks transactions. The last stable offset is the first offset of the
earliest open transaction, or the log end offset if none is open. read_committed consumers receive only batches before
the last stable offset. A rejected batch leaves the log unchanged.

With `discard`, the log stores nothing. It only parses headers, advances offsets, and counts batches, records and bytes.
"""

from __future__ import annotations

import struct
import threading
from bisect import bisect_right
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Protocol

from spark_kafka_sink.broker.api_error import ApiError, build_storage_error
from spark_kafka_sink.broker.batch_validation import (
    NO_RECORD,
    RecordValidator,
    TimestampAndOffset,
    parse_batch_header,
    validate_batch,
)
from spark_kafka_sink.broker.producer_state import NO_APPEND_TIME_MS, NO_EPOCH, ProducerStateEntry
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

DEFAULT_MAX_MESSAGE_BYTES = 1024 * 1024 + 12
"""Kafka's default for message.max.bytes: 1 MiB, and 12 bytes for a batch's base offset and length."""

_MARKER_RECORD = struct.Struct(">bbbbbhhbhib")
"""Layout of a marker's record, with a fixed size. `_encode_marker_record` names the fields."""
_MARKER_KEY = struct.Struct(">hh")
"""Layout of a marker's key: its version and the marker's type."""
_BYTES_BEFORE_MARKER_KEY = 5
"""Five fields of one byte each precede a marker's key: length, attributes, two deltas and the key's length."""
_ABORT_MARKER_TYPE, _COMMIT_MARKER_TYPE = 0, 1


@dataclass(frozen=True)
class LogConfig:
    """The topic settings that a log implements."""

    max_message_bytes: int = DEFAULT_MAX_MESSAGE_BYTES
    uses_log_append_time: bool = False
    is_compacted: bool = False
    check_records: bool = True
    discard: bool = False
    first_sequence_must_be_zero: bool = False
    """Whether a producer's first sequence number must be 0 while the log has never held a record."""


@dataclass(frozen=True)
class LogBatch:
    """A stored batch, with the header fields that lookups need."""

    base_offset: int
    last_offset: int
    max_timestamp: int
    """The largest timestamp of the batch's records, without those before the log start offset."""
    data: memoryview

    @property
    def size_bytes(self) -> int:
        return self.data.nbytes


@dataclass(frozen=True)
class AppendResult:
    """The offset and append time of a batch. For a duplicate, they are those of the original."""

    base_offset: int
    append_time_ms: int = NO_APPEND_TIME_MS
    """Timestamp that replaced the records' timestamps, or NO_APPEND_TIME_MS if they were kept."""
    is_duplicate: bool = False


@dataclass(frozen=True)
class AbortedRange:
    """The offset range of an aborted transaction, from its first batch to its marker."""

    producer_id: int
    first_offset: int
    last_offset: int


@dataclass(frozen=True)
class LogReadResult:
    """Consecutive batches, and the aborted transactions that overlap them."""

    batches: Sequence[memoryview]
    size_bytes: int
    aborted_ranges: Sequence[AbortedRange]


class BatchFile(Protocol):
    """The file that stores the batches of a log (storage.py)."""

    def append(self, data: Buffer) -> None:
        """Append a batch. If OSError is raised, no part of the batch is stored."""

    def delete(self) -> None: ...


class PartitionLog:
    """The batches, producers and transactions of a partition.

    Thread-safe: methods hold `_lock` while they change the log or search its batches and producers.

    `file`: stores the appended batches; None to keep them only in memory.
    """

    def __init__(
        self, config: LogConfig, file: BatchFile | None = None, record_validator: RecordValidator | None = None
    ) -> None:
        self.config = config
        self._record_validator = record_validator or RecordValidator()
        self.log_start_offset = 0
        self.log_end_offset = 0
        self.records_appended = 0
        self.bytes_appended = 0
        self.batches_appended = 0
        self._file = file
        self._lock = threading.Lock()
        self._base_offsets: list[int] = []
        """Base offsets of `_batches`, in ascending order, for binary search."""
        self._batches: list[LogBatch] = []
        self._producers: dict[int, ProducerStateEntry] = {}
        self._aborted_ranges: list[AbortedRange] = []
        self._is_deleted = False

    # --- writes

    def append(
        self, data: Buffer, *, wall_ms: int, leader_epoch: int = 0, new_producer_must_start_at_zero: bool = False
    ) -> AppendResult:
        """Append a producer's batch. Raise ApiError if it is rejected.

        `new_producer_must_start_at_zero`: whether an unknown producer must begin with sequence number 0.
        """
        if self.config.discard:
            return self._discard_batch(parse_batch_header(data))
        # Validate the batch without holding `_lock`: decoding can be slow and does not touch the log's state.
        header, received_batch = validate_batch(data, max_bytes=self.config.max_message_bytes)
        if self.config.check_records or self.config.is_compacted:
            self._record_validator.validate(header, received_batch, requires_keys=self.config.is_compacted)
        # Copy the batch, because a view would keep the memory of the whole request alive.
        batch = memoryview(bytearray(received_batch))
        with self._lock:
            if self._is_deleted:
                raise ApiError(error_codes.UNKNOWN_TOPIC_OR_PARTITION, "The topic was deleted.")
            duplicate = self._find_duplicate_or_validate(header, new_producer_must_start_at_zero)
            if duplicate is not None:
                return duplicate
            append_time_ms = wall_ms if self.config.uses_log_append_time else None
            base_offset = self._store(header, batch, leader_epoch, append_time_ms)
            return AppendResult(base_offset, NO_APPEND_TIME_MS if append_time_ms is None else append_time_ms)

    def append_end_marker(
        self, producer_id: int, epoch: int, *, commit: bool, wall_ms: int, leader_epoch: int = 0
    ) -> int:
        """Append the marker (a control record) that commits or aborts a producer's transaction.

        Return the marker's offset. Raise ApiError if it cannot be stored.
        """
        if self.config.discard:
            # Without stored batches, there is no transaction to end.
            return self.log_end_offset
        record = _encode_marker_record(_COMMIT_MARKER_TYPE if commit else _ABORT_MARKER_TYPE)
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
            return self._store(parse_header(batch), batch, leader_epoch, append_time_ms=None)

    def recover(self, batches: Iterable[memoryview]) -> None:
        """Load previously stored batches. They must be in order, and they keep their offsets."""
        with self._lock:
            for batch in batches:
                header = parse_header(batch)
                self.log_end_offset = header.base_offset
                self._add_batch(header, batch)

    def _find_duplicate_or_validate(
        self, header: BatchHeader, new_producer_must_start_at_zero: bool
    ) -> AppendResult | None:
        """Return the original's result if the batch is a duplicate, or None if the batch may be appended.

        Raise ApiError if the batch is rejected.
        """
        if header.producer_id < 0:
            return None
        producer = self._producers.get(header.producer_id) or ProducerStateEntry()
        # Look for a duplicate first, because `validate` would reject its sequence number.
        duplicate = producer.find_duplicate_batch(header)
        if duplicate is not None:
            return AppendResult(duplicate.base_offset, duplicate.append_time_ms, is_duplicate=True)
        if self.config.first_sequence_must_be_zero and self.log_end_offset == 0:
            new_producer_must_start_at_zero = True
        producer.validate(header, new_producer_must_start_at_zero=new_producer_must_start_at_zero)
        return None

    def _store(self, header: BatchHeader, batch: memoryview, leader_epoch: int, append_time_ms: int | None) -> int:
        """Assign an offset to a batch, write the batch to the file, and add it to the log. Return the offset.

        The caller holds `_lock`. If ApiError is raised, the log is unchanged.
        """
        base_offset = self.log_end_offset
        patch_header(batch, base_offset=base_offset, leader_epoch=leader_epoch, append_time=append_time_ms)
        if self._file is not None:
            try:
                self._file.append(batch)
            except OSError as error:
                raise build_storage_error("the batch", error) from error
        self._add_batch(parse_header(batch), batch)
        return base_offset

    def _add_batch(self, header: BatchHeader, batch: memoryview) -> None:
        """Add a batch whose offsets are assigned, and update its producer's state. The caller holds `_lock`."""
        base_offset = self.log_end_offset
        self._base_offsets.append(base_offset)
        self._batches.append(LogBatch(base_offset, header.last_offset, header.max_timestamp, batch))
        self.log_end_offset = header.last_offset + 1
        self.batches_appended += 1
        self.bytes_appended += batch.nbytes
        if header.is_control:
            self._complete_transaction(header, batch)
            return
        self.records_appended += header.record_count
        if header.producer_id >= 0:
            append_time_ms = header.max_timestamp if header.has_log_append_time else NO_APPEND_TIME_MS
            producer = self._producers.setdefault(header.producer_id, ProducerStateEntry())
            producer.add_batch(header, base_offset, append_time_ms)

    def _complete_transaction(self, header: BatchHeader, marker: memoryview) -> None:
        """End the open transaction of the marker's producer, if any. If the marker aborts it, record its range."""
        producer = self._producers.setdefault(header.producer_id, ProducerStateEntry())
        first_offset = producer.transaction_first_offset
        producer.transaction_first_offset = None
        # A marker that fences the producer has a newer epoch. From now on, batches with the old epoch are rejected.
        producer.update_epoch(header.producer_epoch)
        if first_offset is not None and not _is_commit_marker(marker):
            self._aborted_ranges.append(AbortedRange(header.producer_id, first_offset, header.base_offset))

    def _discard_batch(self, header: BatchHeader) -> AppendResult:
        """Advance the offsets and the counters as if the batch had been appended and then deleted."""
        with self._lock:
            base_offset = self.log_end_offset
            self.log_end_offset += header.last_offset_delta + 1
            self.log_start_offset = self.log_end_offset
            self.records_appended += header.record_count
            self.bytes_appended += header.size_bytes
            self.batches_appended += 1
        return AppendResult(base_offset)

    # --- reads

    @property
    def last_stable_offset(self) -> int:
        with self._lock:
            return self._compute_last_stable_offset()

    def _compute_last_stable_offset(self) -> int:
        first_offsets = [
            producer.transaction_first_offset
            for producer in self._producers.values()
            if producer.transaction_first_offset is not None
        ]
        return min(first_offsets, default=self.log_end_offset)

    def read(
        self, offset: int, max_bytes: int, *, committed: bool = False, min_one_batch: bool = True
    ) -> LogReadResult:
        """Read whole batches, beginning with the one that contains `offset`, which must be within the log.

        `committed`: whether to stop at the last stable offset and return the aborted transactions.
        `min_one_batch`: whether to return the first batch even if it is larger than `max_bytes`.
        """
        with self._lock:
            end_offset = self._compute_last_stable_offset() if committed else self.log_end_offset
            batches = self._select_batches(offset, end_offset, max_bytes, min_one_batch=min_one_batch)
            last_offset = batches[-1].last_offset if batches else offset
            aborted_ranges = [
                aborted_range
                for aborted_range in self._aborted_ranges
                if aborted_range.first_offset <= last_offset and aborted_range.last_offset >= offset
            ]
            # Consumers that read uncommitted records do not filter aborted transactions.
            return LogReadResult(
                [batch.data for batch in batches],
                sum(batch.size_bytes for batch in batches),
                aborted_ranges if committed else (),
            )

    def _select_batches(
        self, start_offset: int, end_offset: int, max_bytes: int, *, min_one_batch: bool
    ) -> list[LogBatch]:
        """Return the batches from `start_offset` on that begin before `end_offset` and fit into `max_bytes`.

        The caller holds `_lock`.
        """
        # Begin with the last batch that starts at or before the offset: base offsets [0, 5, 9], offset 7 -> index 1.
        first_index = max(0, bisect_right(self._base_offsets, start_offset) - 1)
        batches: list[LogBatch] = []
        size_bytes = 0
        for index in range(first_index, len(self._batches)):
            batch = self._batches[index]
            if batch.base_offset >= end_offset:
                break
            if batch.last_offset < start_offset:  # the offset is the end of the log, after the last batch
                continue
            if size_bytes + batch.size_bytes > max_bytes and (batches or not min_one_batch):
                break
            batches.append(batch)
            size_bytes += batch.size_bytes
        return batches

    def find_offset_by_timestamp(self, timestamp: int) -> TimestampAndOffset:
        """Find the first record with this timestamp or a later one. Return NO_RECORD if there is none."""
        with self._lock:
            for batch in self._batches:
                if batch.max_timestamp >= timestamp:
                    return self._find_in_batch(batch, timestamp)
            return NO_RECORD

    def find_max_timestamp(self) -> TimestampAndOffset:
        """Find the first record with the largest timestamp. Return NO_RECORD if the log is empty."""
        with self._lock:
            latest_batch = max(self._batches, key=lambda batch: batch.max_timestamp, default=None)
            return NO_RECORD if latest_batch is None else self._find_in_batch(latest_batch, latest_batch.max_timestamp)

    def _find_in_batch(self, batch: LogBatch, timestamp: int) -> TimestampAndOffset:
        """Find a batch's first record with this timestamp or a later one.

        If the batch cannot be decoded, return its largest timestamp and its first offset within the log.
        """
        # The log may begin within the batch, because deleted records stay in it.
        first_offset = max(batch.base_offset, self.log_start_offset)
        record = self._record_validator.find_first_record_at_or_after(batch.data, timestamp, first_offset)
        return TimestampAndOffset(batch.max_timestamp, first_offset) if record is None else record

    # --- retention and administration

    def delete_records(self, before_offset: int) -> None:
        """Delete the records before an offset. The state of their producers remains until `forget_producers`."""
        with self._lock:
            self.log_start_offset = max(self.log_start_offset, min(before_offset, self.log_end_offset))
            self._batches = [batch for batch in self._batches if batch.last_offset >= self.log_start_offset]
            self._base_offsets = [batch.base_offset for batch in self._batches]
            if self._batches and self._batches[0].base_offset < self.log_start_offset:
                self._batches[0] = self._update_max_timestamp(self._batches[0])
            self._aborted_ranges = [
                aborted_range
                for aborted_range in self._aborted_ranges
                if aborted_range.last_offset >= self.log_start_offset
            ]

    def _update_max_timestamp(self, batch: LogBatch) -> LogBatch:
        """Return the batch with the largest timestamp of its records from the log start offset on.

        Without this, a lookup by timestamp could select a batch in which all matching records are deleted. If the batch
        cannot be decoded, its largest timestamp stays the same.
        """
        max_timestamp = self._record_validator.find_max_timestamp(batch.data, self.log_start_offset)
        return batch if max_timestamp is None else replace(batch, max_timestamp=max_timestamp)

    def forget_producers(self) -> None:
        """Forget producers without an open transaction, as brokers do after producer.id.expiration.ms."""
        with self._lock:
            self._producers = {
                producer_id: producer
                for producer_id, producer in self._producers.items()
                if producer.transaction_first_offset is not None
            }

    def list_open_producer_ids(self) -> list[int]:
        """Return the ids of the producers with an open transaction."""
        with self._lock:
            return [
                producer_id
                for producer_id, producer in self._producers.items()
                if producer.transaction_first_offset is not None
            ]

    def find_producer_epoch(self, producer_id: int) -> int:
        """Return a producer's latest epoch, or NO_EPOCH if the producer is unknown."""
        with self._lock:
            producer = self._producers.get(producer_id)
            return NO_EPOCH if producer is None else producer.epoch

    def delete(self) -> None:
        """Delete the file, and reject further appends because they would create a file that belongs to no topic."""
        with self._lock:
            self._is_deleted = True
            if self._file is not None:
                self._file.delete()


def _encode_marker_record(marker_type: int) -> bytes:
    """Encode the record of a transaction marker (Kafka's EndTransactionMarker)."""
    return _MARKER_RECORD.pack(
        2 * 16,  # length of the rest; lengths and deltas are varints in zigzag encoding, which doubles a number
        0,  # attributes
        0,  # timestamp delta
        0,  # offset delta
        2 * 4,  # length of the key
        0,  # version of the key
        marker_type,
        2 * 6,  # length of the value
        0,  # version of the value
        0,  # coordinator epoch
        0,  # number of headers
    )


def _is_commit_marker(batch: memoryview) -> bool:
    _, marker_type = _MARKER_KEY.unpack_from(batch, HEADER_BYTES + _BYTES_BEFORE_MARKER_KEY)
    return bool(marker_type == _COMMIT_MARKER_TYPE)
