"""ProducerBatch: records of one topic-partition that are sent and acknowledged together.

A batch is a 61-byte header followed by encoded records. The encoder writes the records of many batches into shared
buffers, and each batch refers to its slices of these buffers (encoded_buffer.py). Appending records only adds a
reference to another slice. No bytes are copied until the batch is sent, and even then only the slices of a small batch
are joined.

A batch can also own its records. If compression is enabled, closing the batch replaces all of its slices with one
compressed segment, and `copy_to_own_memory` moves a batch out of the shared buffers. A segment is a bytes-like object:
the bytes of one slice, or all records of a batch that owns them.

The header is encoded as late as possible, because the base sequence is not known until the batch leaves its queue. All
retries then send the same header, byte for byte, unless the sequence is set again.

    state            meaning                                                    next states
    OPEN             accepts more records                                       PINNED, AWAITING_CLOSE, CLOSED, DONE
    PINNED           a thread encodes or compresses records without the lock    OPEN, CLOSED, DONE
    AWAITING_CLOSE   left its queue while it was open; the sender closes it     CLOSED, DONE
    CLOSED           accepts no more records, waits in its queue                IN_FLIGHT, DONE
    IN_FLIGHT        is part of a produce request                               CLOSED, DONE
    DONE             was acknowledged, has failed or was split;                 -
                     its request may still be in flight

`TRANSITIONS` holds this table; any other transition raises IllegalStateError. A batch that expires in flight is DONE
even though a socket may still be reading its bytes. So the batch's memory is released only when the batch is DONE and
its request has ended.

Only the methods of this class change the fields of a batch. The state determines which thread may call them:
    the holder of the accumulator's lock    while the batch is in its queue, OPEN or CLOSED
    the thread that pinned the batch        while it is PINNED
    the sender thread                       after the batch has left its queue
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable
from enum import Enum
from typing import NamedTuple

from spark_kafka_sink.client.topic_partition import TopicPartition
from spark_kafka_sink.errors import IllegalStateError
from spark_kafka_sink.producer.batching.buffer_pool import MemoryLease
from spark_kafka_sink.producer.batching.encoded_buffer import EncodedBuffer
from spark_kafka_sink.producer.batching.row_groups import BatchRows, CallRows, RowGroup, detach_rows, select_rows
from spark_kafka_sink.producer.calls import StoredRange, make_stored_range
from spark_kafka_sink.records import sequences
from spark_kafka_sink.records.compression import Codec, compress
from spark_kafka_sink.records.encoder import EncodedSlices
from spark_kafka_sink.records.header import HEADER_BYTES, TRANSACTIONAL, encode_header

Segment = bytes | bytearray | memoryview
"""Encoded bytes that a request refers to instead of copying them."""
_MAX_JOINED_BYTES = 16 << 10
"""If the records of a batch have at most this many bytes, they are sent as one segment, into which the slices are
copied. Copying so few bytes is cheaper than iterating over the slices, and the garbage collector tracks memoryviews but
not bytes objects."""


class BatchState(Enum):
    """State of a batch (see the table in the module's docstring)."""

    OPEN = "open"
    PINNED = "pinned"
    AWAITING_CLOSE = "awaiting close"
    CLOSED = "closed"
    IN_FLIGHT = "in flight"
    DONE = "done"

    next_states: tuple[BatchState, ...]
    """The states that may follow, as in TRANSITIONS. Reading an attribute is faster than looking up a key there."""


# Globals, because a global is read ten times as fast as an enum member.
OPEN, PINNED, AWAITING_CLOSE, CLOSED, IN_FLIGHT, DONE = BatchState
TRANSITIONS: dict[BatchState, tuple[BatchState, ...]] = {
    OPEN: (PINNED, AWAITING_CLOSE, CLOSED, DONE),
    PINNED: (OPEN, CLOSED, DONE),
    AWAITING_CLOSE: (CLOSED, DONE),
    CLOSED: (IN_FLIGHT, DONE),
    IN_FLIGHT: (CLOSED, DONE),
    DONE: (),
}
for _state, _targets in TRANSITIONS.items():
    _state.next_states = _targets


class OwnedRecords(NamedTuple):
    """Records that a batch holds itself, for example after compression, instead of as slices of an EncodedBuffer."""

    segments: tuple[Segment, ...] = ()
    """The bytes of the records; compressed if the batch is compressed."""
    rows: tuple[BatchRows, ...] = ()
    """The rows that the records encode."""
    leases: tuple[MemoryLease, ...] = ()
    """The leases that reserve the memory of the records."""


_NO_OWNED_RECORDS = OwnedRecords()


class ProducerBatch:
    """A batch of records of one topic-partition.

    Its records are first those in `_owned_records`, and then, for each i, slice `_slice_indices[i]` of
    `_encoded_buffers[i]`.
    """

    __slots__ = (
        "_encoded_buffers",
        "_failed_attempts_at_last_skip",
        "_header",
        "_owned_records",
        "_slice_indices",
        "backoff_until_ms",
        "base_offset",
        "base_sequence",
        "base_timestamp",
        "body_bytes",
        "codec",
        "deadline_ms",
        "error",
        "failed_attempts",
        "has_request_in_flight",
        "is_split_batch",
        "is_transactional",
        "last_sent_ms",
        "leader_epoch",
        "log_append_time",
        "max_timestamp",
        "oldest_row_arrival_ms",
        "producer_epoch",
        "producer_id",
        "record_count",
        "state",
        "topic_partition",
        "uncompressed_bytes",
    )  # fmt: skip

    def __init__(self, topic_partition: TopicPartition, oldest_row_arrival_ms: float, deadline_ms: float) -> None:
        """Create an open batch without records.

        `oldest_row_arrival_ms`: when the oldest row in the topic's staging buffer arrived; linger.ms starts then.
        `deadline_ms`: the time at which delivery.timeout.ms expires.

        Numbers not yet known are -1, as in the record format and in produce responses.
        """
        self.topic_partition = topic_partition
        self.oldest_row_arrival_ms = oldest_row_arrival_ms
        self.deadline_ms = deadline_ms
        self.state = OPEN
        # Records, and the header fields that describe them.
        self._owned_records = _NO_OWNED_RECORDS
        self._encoded_buffers: tuple[EncodedBuffer, ...] = ()
        self._slice_indices: tuple[int, ...] = ()
        self.record_count = 0
        self.body_bytes = self.uncompressed_bytes = 0  # without the header; equal until the batch is compressed
        self.base_timestamp = self.max_timestamp = -1  # -1 until the first record is appended
        self.codec = Codec.NONE
        self.is_split_batch = False  # whether the batch was split off from one that was too large
        self._header = b""  # empty until it is encoded, and after set_producer_state()
        # Producer state, set by set_producer_state().
        self.producer_id = -1
        self.producer_epoch = -1
        self.base_sequence = -1
        self.is_transactional = False
        # Attempts to send the batch.
        self.failed_attempts = 0
        self._failed_attempts_at_last_skip = -1  # `failed_attempts` when skip_backoff() was last called
        self.backoff_until_ms = 0.0
        self.leader_epoch: int | None = None  # the leader's epoch when the batch last left its queue
        self.last_sent_ms = -1.0  # -1 until the first attempt
        self.has_request_in_flight = False
        # Result.
        self.base_offset = -1  # -1 until a broker reports it
        self.log_append_time = -1  # in milliseconds; remains -1 unless the topic uses LogAppendTime
        self.error: Exception | None = None  # error of the last attempt, or the error that failed the batch

    def __repr__(self) -> str:
        return (
            f"ProducerBatch({self.topic_partition}, {self.record_count} records, {self.state.value}, attempts="
            f"{self.failed_attempts}, producer={self.producer_id}/{self.producer_epoch}, sequence={self.base_sequence})"
        )

    # -- filling ------------------------------------------------------------------------------------------------------

    @classmethod
    def from_failed_rows(cls, topic_partition: TopicPartition, rows: BatchRows, error: Exception) -> ProducerBatch:
        """Create a failed batch, without encoded records, for rows that never got into a batch.

        The sender reports it like any other failed batch, so that the futures of the rows receive the error.
        """
        batch = cls(topic_partition, oldest_row_arrival_ms=0, deadline_ms=float("inf"))
        batch.record_count = rows.stop - rows.start
        batch._owned_records = OwnedRecords(rows=(rows,))
        batch.fail(error)
        return batch

    def append(self, encoded_buffer: EncodedBuffer, slice_index: int) -> None:
        """Append the records in one slice of an encoded buffer.

        Their offset deltas must follow those of the records already in the batch. The caller must have added the batch
        to the holders of the buffer's lease.

        Raise IllegalStateError unless the batch is OPEN or PINNED.
        """
        if self.state is not OPEN and self.state is not PINNED:
            raise IllegalStateError(f"Records cannot be appended to {self!r}.")
        if not self.record_count:
            self.base_timestamp = encoded_buffer.base_timestamps[slice_index]
        self.max_timestamp = max(encoded_buffer.max_timestamps[slice_index], self.max_timestamp)
        self._encoded_buffers += (encoded_buffer,)
        self._slice_indices += (slice_index,)
        self.body_bytes += encoded_buffer.sizes[slice_index]
        self.uncompressed_bytes = self.body_bytes
        self.record_count += encoded_buffer.record_counts[slice_index]

    @property
    def segments(self) -> list[Segment]:
        """The encoded records, without the header; compressed if the batch is compressed."""
        return [
            *self._owned_records.segments,
            *map(EncodedBuffer.get_segment, self._encoded_buffers, self._slice_indices),
        ]

    @property
    def rows(self) -> list[BatchRows]:
        """The rows that the records encode, in the order of the records."""
        return [*self._owned_records.rows, *map(EncodedBuffer.build_rows, self._encoded_buffers, self._slice_indices)]

    @staticmethod
    def collect_stored_ranges(batches: Iterable[ProducerBatch]) -> dict[RowGroup, list[StoredRange]]:
        """Return the rows of these acknowledged batches, which brokers have stored, as ranges by row group."""
        stored_ranges: defaultdict[RowGroup, list[StoredRange]] = defaultdict(list)
        for batch in batches:
            partition, base_offset = batch.topic_partition.partition, batch.base_offset
            log_append_time = batch.log_append_time
            for row_group, start, stop, first_offset_delta in batch._owned_records.rows:
                offset = batch.compute_record_offset(first_offset_delta)
                stored_ranges[row_group].append(make_stored_range((start, stop, partition, offset, log_append_time)))
            # This loop does the same for slices, of which an uncompressed batch may have many. To be fast, it creates
            # no BatchRows and does not call compute_record_offset. If the broker returned no base offset, all offsets
            # are unknown (-1).
            for encoded_buffer, slice_index in zip(batch._encoded_buffers, batch._slice_indices, strict=True):
                start, stop = encoded_buffer.row_starts[slice_index], encoded_buffer.row_stops[slice_index]
                offset = base_offset + encoded_buffer.first_offset_deltas[slice_index] if base_offset >= 0 else -1
                stored_range = make_stored_range((start, stop, partition, offset, log_append_time))
                stored_ranges[encoded_buffer.row_group].append(stored_range)
        return stored_ranges

    @property
    def leases(self) -> list[MemoryLease]:
        """The leases that reserve the batch's memory."""
        return [*self._owned_records.leases, *[encoded_buffer.lease for encoded_buffer in self._encoded_buffers]]

    def split_rows_by_call(self) -> list[CallRows]:
        """Return the rows that the records encode, split by the call that passed them to the producer."""
        return [call_rows for rows in self.rows for call_rows in rows.split_by_call()]

    def is_full(self, max_bytes: int) -> bool:
        """Return whether one more record of average size would exceed `max_bytes`. The batch must not be empty."""
        return HEADER_BYTES + self.body_bytes + self.body_bytes // self.record_count > max_bytes

    def pin(self) -> None:
        """Reserve the batch for the calling thread, which can then change it without the lock. OPEN -> PINNED."""
        self._transition_to(PINNED)

    def unpin(self) -> None:
        """Let the batch accept more records. PINNED -> OPEN."""
        self._transition_to(OPEN)

    def close(self, codec: Codec = Codec.NONE, level: int | None = None) -> None:
        """Close the batch to further records, and compress its records unless the codec is NONE.

        PINNED, AWAITING_CLOSE or OPEN -> CLOSED. If compression raises an error, the batch stays as it was.

        `level`: the compression level; None for the codec's default.
        """
        if codec is not Codec.NONE:
            compressed_segment = memoryview(compress(codec, self.segments, level))
            self.codec = codec
            self._move_to_own_segment(compressed_segment)
            self.body_bytes = len(compressed_segment)
        self._transition_to(CLOSED)

    def copy_to_own_memory(self) -> None:
        """Copy the records out of the buffers that the batch shares with other batches, so that these can be freed."""
        self._move_to_own_segment(memoryview(b"".join(self.segments)))

    def _move_to_own_segment(self, segment: memoryview) -> None:
        """Replace all segments with `segment`, which no other batch shares, and give it a memory lease of its own.

        The new lease takes the bytes that it needs from the shared leases, and the batch then stops holding those. The
        shared leases normally reserve enough: the encoded size of the records or, with compression, twice that size. If
        they reserve less, the new lease takes everything.
        """
        shared_leases, rows = self.leases, self.rows
        needed_bytes = len(segment) + sum([batch_rows.overhead_bytes for batch_rows in rows])
        own_lease = shared_leases[0].create_empty()
        own_lease.add_holder(self, needed_bytes)
        owned_records = OwnedRecords(segments=(segment,), rows=(detach_rows(rows),), leases=(own_lease,))
        # From here on, the properties `segments`, `rows` and `leases` return only what the batch owns. Keep this a
        # single statement: an interrupt between two statements would leave the records in the batch twice.
        self._owned_records, self._encoded_buffers, self._slice_indices = owned_records, (), ()
        # Start with the largest lease, which usually has all the bytes that are needed.
        for shared_lease in sorted(shared_leases, key=lambda lease: -lease.reserved_bytes):
            missing_bytes = needed_bytes - own_lease.reserved_bytes
            shared_lease.transfer_up_to(missing_bytes, own_lease)
        # Stop holding the leases last: once a lease has no holders, its bytes are back in the pool and cannot be moved.
        for shared_lease in shared_leases:
            shared_lease.remove_holder(self)

    def create_child(self, encoded_slices: EncodedSlices, slice_index: int, first_record_index: int) -> ProducerBatch:
        """Create a smaller batch with some of the records of this batch, which is being split.

        The records have been encoded again, as slice `slice_index` of `encoded_slices`. They keep their sequence
        numbers. The child has the same age and deadline as this batch, and holds the same leases.

        `first_record_index`: the index that the child's first record has in this batch.
        """
        child = ProducerBatch(self.topic_partition, self.oldest_row_arrival_ms, self.deadline_ms)
        child.record_count = encoded_slices.record_counts[slice_index]
        rows = select_rows(self.rows, first_record_index, first_record_index + child.record_count)
        segment = encoded_slices.get_segment(slice_index)
        child._owned_records = OwnedRecords(segments=(segment,), rows=rows, leases=tuple(self.leases))
        child.body_bytes = child.uncompressed_bytes = encoded_slices.sizes[slice_index]
        child.base_timestamp = encoded_slices.base_timestamps[slice_index]
        child.max_timestamp = encoded_slices.max_timestamps[slice_index]
        child.is_split_batch = True
        needed_bytes = child.body_bytes + sum([batch_rows.overhead_bytes for batch_rows in rows])
        for lease in self.leases:
            lease.add_holder(child, needed_bytes)
        if self.has_sequence:
            sequence = sequences.increment(self.base_sequence, first_record_index)
            child.set_producer_state(
                self.producer_id, self.producer_epoch, sequence, is_transactional=self.is_transactional
            )
        return child

    # -- encoding for a request ----------------------------------------------------------------------------------------

    @property
    def size_bytes(self) -> int:
        """Size of the batch in a request, header included: the compressed size if the batch is compressed."""
        return HEADER_BYTES + self.body_bytes

    @property
    def has_been_sent(self) -> bool:
        """Whether the batch was sent at least once, so that a broker may have received it.

        If a broker may also have stored it, its sequence must not be set again (rule 3 of sending/idempotence.py).
        """
        return self.last_sent_ms >= 0

    @property
    def has_sequence(self) -> bool:
        return self.base_sequence >= 0

    @property
    def last_sequence(self) -> int:
        """Sequence of the last record, or -1 if the batch has no sequence."""
        return sequences.compute_last_sequence(self.base_sequence, self.record_count) if self.base_sequence >= 0 else -1

    def set_producer_state(
        self, producer_id: int, producer_epoch: int, base_sequence: int, *, is_transactional: bool = False
    ) -> None:
        """Set the producer identity and the base sequence, with which brokers detect duplicates.

        The caller must not change the sequence of a batch that a broker may have stored (see `has_been_sent`).
        """
        self.producer_id = producer_id
        self.producer_epoch = producer_epoch
        self.base_sequence = base_sequence
        self.is_transactional = is_transactional
        self._header = b""

    def build_wire_segments(self) -> list[Segment]:
        """Return the segments that a request sends: the header, then the records.

        The header is encoded on the first call, and again only after `set_producer_state` was called.

        Raise IllegalStateError if the batch is not closed yet.
        """
        if self.state in (OPEN, PINNED, AWAITING_CLOSE):
            raise IllegalStateError(f"{self!r} is not closed.")
        segments = self.segments
        if self.body_bytes <= _MAX_JOINED_BYTES:
            segments = [b"".join(segments)]
        if not self._header:
            self._header = encode_header(
                segments,
                attributes=(self.codec | TRANSACTIONAL) if self.is_transactional else self.codec,
                last_offset_delta=self.record_count - 1,
                base_timestamp=self.base_timestamp,
                max_timestamp=self.max_timestamp,
                producer_id=self.producer_id,
                producer_epoch=self.producer_epoch,
                base_sequence=self.base_sequence,
                record_count=self.record_count,
            )
        return [self._header, *segments]

    # -- state transitions ---------------------------------------------------------------------------------------------

    @property
    def is_done(self) -> bool:
        return self.state is DONE

    def has_reached_delivery_timeout(self, now_ms: float) -> bool:
        return now_ms >= self.deadline_ms

    def mark_drained(self, leader_epoch: int | None) -> None:
        """Record that the batch has left its queue to be sent to the partition's leader.

        OPEN -> AWAITING_CLOSE. A CLOSED batch stays CLOSED.

        `leader_epoch`: the epoch of the leader; None if it is unknown.
        """
        self.leader_epoch = leader_epoch
        if self.state is OPEN:
            self._transition_to(AWAITING_CLOSE)

    def mark_in_flight(self, now_ms: float) -> None:
        """Record that the batch is now part of a request, so a socket may read its bytes. CLOSED -> IN_FLIGHT."""
        self._transition_to(IN_FLIGHT)
        self.last_sent_ms = now_ms
        self.has_request_in_flight = True

    def mark_request_ended(self) -> None:
        """Record that the request has ended, by a response or a lost connection, so no socket reads the batch now."""
        self.has_request_in_flight = False
        if self.state is DONE:
            self._release_leases_unless_in_flight()

    def mark_reenqueued(self, *, backoff_until_ms: float, error: Exception) -> None:
        """Record that the batch will be sent again, because an attempt to send it failed. IN_FLIGHT -> CLOSED."""
        self._transition_to(CLOSED)
        self.has_request_in_flight = False
        self.failed_attempts += 1
        self.backoff_until_ms = backoff_until_ms
        self.error = error

    def skip_backoff(self) -> None:
        """Let the next attempt start without a backoff, because the partition has a new leader (KIP-951)."""
        self._failed_attempts_at_last_skip = self.failed_attempts

    @property
    def is_backing_off(self) -> bool:
        """Whether the batch must not be sent before `backoff_until_ms`."""
        return self.failed_attempts > 0 and self._failed_attempts_at_last_skip != self.failed_attempts

    def complete(self, base_offset: int, log_append_time: int = -1) -> None:
        """Record that the broker has stored the batch.

        `base_offset`: the offset of the first record; -1 if it is unknown (acks=0, or a duplicate).
        `log_append_time`: the timestamp that the broker assigned to the records; -1 if it reported none.
        """
        self._transition_to(DONE)
        self.base_offset = base_offset
        self.log_append_time = log_append_time
        self.error = None
        self._release_leases_unless_in_flight()

    def fail(self, error: Exception) -> None:
        """Record that the batch has failed with `error`, and will not be sent again."""
        self._transition_to(DONE)
        self.error = error
        self._release_leases_unless_in_flight()

    def mark_split(self) -> None:
        """Record that smaller batches have replaced this batch, and stop holding its leases."""
        self._transition_to(DONE)
        self._release_leases_unless_in_flight()

    def compute_record_offset(self, record_index: int) -> int:
        """Return a record's offset, or -1 if the base offset is not known."""
        return self.base_offset + record_index if self.base_offset >= 0 else -1

    def _release_leases_unless_in_flight(self) -> None:
        """Release the batch's memory unless a socket may still be reading it. Idempotent."""
        if self.has_request_in_flight:
            return
        leases = self.leases
        if self._owned_records.leases:
            # The rows are still needed to complete their futures.
            self._owned_records = OwnedRecords(rows=self._owned_records.rows)
        for lease in leases:
            lease.remove_holder(self)

    def _transition_to(self, state: BatchState) -> None:
        """Change the state. Raise IllegalStateError if TRANSITIONS does not allow it."""
        if state not in self.state.next_states:
            raise IllegalStateError(f"{self!r} cannot move to the state {state.value}.")
        self.state = state
