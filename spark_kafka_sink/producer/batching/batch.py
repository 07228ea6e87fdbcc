"""ProducerBatch: the records of one partition that travel together, from open to done.

A batch is a 61-byte header and pieces of the buffers that the encoder filled (pieces.py). To append records is to note
one more piece, so nothing is copied until the batch is sent; then the pieces of a small one are joined. Compression
replaces them by one compressed segment when the batch is closed. The header is stamped as late as possible, because the
sequence number is only known when the batch is drained; once stamped it stays byte for byte equal for every retry,
unless the sequence is set again.

    state       meaning                                          moves to
    OPEN        takes more records                               PINNED, DRAINED, CLOSED, DONE
    PINNED      a thread adds records or compresses, unlocked    OPEN, CLOSED, DONE
    DRAINED     left its queue while open; sender closes it      CLOSED, DONE
    CLOSED      complete, waits in its queue                     IN_FLIGHT, DONE
    IN_FLIGHT   in a request                                     CLOSED, DONE
    DONE        acknowledged, failed or split                    -

`TRANSITIONS` is this table; any other transition raises. Being done and being off the wire are different facts: a
batch that expires in flight is done while the socket may still read its bytes. Its memory returns to the pool when both
hold.

Only the methods of this class change its fields. They are guarded by the accumulator's lock while the batch is in its
queue, OPEN or CLOSED; belong to the thread that pinned it while PINNED; and to the sender's thread since it has left
its queue.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable
from enum import Enum
from typing import NamedTuple

from spark_kafka_sink.client.topic_partition import TopicPartition
from spark_kafka_sink.errors import IllegalStateError
from spark_kafka_sink.producer.batching.buffer_pool import MemoryLease
from spark_kafka_sink.producer.batching.pieces import Pieces
from spark_kafka_sink.producer.batching.row_origins import BatchRows, CallRows, RowOrigins, alone, rows_between
from spark_kafka_sink.producer.calls import Share, new_share
from spark_kafka_sink.records import sequences
from spark_kafka_sink.records.compression import Codec, compress
from spark_kafka_sink.records.encoder import EncodedSlices
from spark_kafka_sink.records.header import HEADER_BYTES, TRANSACTIONAL, encode_header

Segment = bytes | bytearray | memoryview
_JOINED_BYTES_MAX = 16 << 10
"""A batch that is smaller is copied into bytes of its own: that costs less than to go over its pieces, and the garbage
collector looks at views, not at bytes."""


class BatchState(Enum):
    """Where a batch is in its life; see the table above."""

    OPEN = "open"
    PINNED = "pinned"
    DRAINED = "drained"
    CLOSED = "closed"
    IN_FLIGHT = "in flight"
    DONE = "done"

    moves: tuple[BatchState, ...]
    """The row of TRANSITIONS for this state: an attribute is found faster than a key."""


OPEN, PINNED, DRAINED, CLOSED, IN_FLIGHT, DONE = BatchState  # a name of its own is found in a tenth of the time
TRANSITIONS: dict[BatchState, tuple[BatchState, ...]] = {
    OPEN: (PINNED, DRAINED, CLOSED, DONE),
    PINNED: (OPEN, CLOSED, DONE),
    DRAINED: (CLOSED, DONE),
    CLOSED: (IN_FLIGHT, DONE),
    IN_FLIGHT: (CLOSED, DONE),
    DONE: (),
}
for _state, _targets in TRANSITIONS.items():
    _state.moves = _targets


class Own(NamedTuple):
    """What a batch has for itself: bytes in memory of their own, the rows that they are, and their leases."""

    segments: tuple[Segment, ...] = ()
    rows: tuple[BatchRows, ...] = ()
    leases: tuple[MemoryLease, ...] = ()


_NOTHING = Own()


class ProducerBatch:
    """See the module's docstring. Its records are what it has for itself, and then its share in each of `pieces`."""

    __slots__ = (
        "_attempts_at_leader_change",
        "_header",
        "_numbers",
        "_own",
        "_pieces",
        "attempts",
        "backoff_until_ms",
        "base_offset",
        "base_sequence",
        "base_timestamp",
        "body_bytes",
        "codec",
        "created_ms",
        "deadline_ms",
        "drained_ms",
        "error",
        "is_split",
        "leader_epoch",
        "log_append_time",
        "max_timestamp",
        "on_wire",
        "producer_epoch",
        "producer_id",
        "record_count",
        "state",
        "topic_partition",
        "transactional",
        "uncompressed_bytes",
    )  # fmt: skip

    def __init__(self, topic_partition: TopicPartition, created_ms: float, deadline_ms: float) -> None:
        self.topic_partition = topic_partition
        self.created_ms = created_ms
        self.deadline_ms = deadline_ms
        self.state = OPEN
        self._own = _NOTHING
        self._pieces: tuple[Pieces, ...] = ()
        self._numbers: tuple[int, ...] = ()  # which piece of each
        self.record_count = 0
        self.body_bytes = self.uncompressed_bytes = 0
        self.base_timestamp = self.max_timestamp = -1
        self.codec = Codec.NONE
        self.attempts = 0  # failed attempts so far
        self._attempts_at_leader_change = -1
        self.backoff_until_ms = 0.0
        self.leader_epoch: int | None = None  # of the leader that it was last sent to
        self.drained_ms = -1.0  # when it was last taken for sending
        self.on_wire = False
        self.producer_id = -1
        self.producer_epoch = -1
        self.base_sequence = -1
        self.transactional = False
        self.is_split = False
        self.base_offset = -1
        self.log_append_time = -1
        self.error: Exception | None = None  # of the last attempt, or the one that ended it
        self._header = b""  # not stamped yet

    def __repr__(self) -> str:
        return (
            f"ProducerBatch({self.topic_partition}, {self.record_count} records, {self.state.value}, attempts="
            f"{self.attempts}, producer={self.producer_id}/{self.producer_epoch}, sequence={self.base_sequence})"
        )

    # -- filling ------------------------------------------------------------------------------------------------------

    @classmethod
    def failed(cls, topic_partition: TopicPartition, rows: BatchRows, error: Exception) -> ProducerBatch:
        """Rows that could not be encoded, as a batch without bytes: their calls get the error like those of others."""
        batch = cls(topic_partition, created_ms=0, deadline_ms=float("inf"))
        batch.record_count = rows.stop - rows.start
        batch._own = Own(rows=(rows,))
        batch.fail(error)
        return batch

    def append(self, pieces: Pieces, number: int) -> None:
        """Add encoded records, whose offset deltas go on where the batch ends. The batch holds their lease already."""
        if self.state is not OPEN and self.state is not PINNED:
            raise IllegalStateError(f"Records cannot be added to {self!r}.")
        if not self.record_count:
            self.base_timestamp = pieces.base_timestamps[number]
        self.max_timestamp = max(pieces.max_timestamps[number], self.max_timestamp)
        self._pieces += (pieces,)
        self._numbers += (number,)
        self.body_bytes += pieces.sizes[number]
        self.uncompressed_bytes = self.body_bytes
        self.record_count += pieces.record_counts[number]

    @property
    def segments(self) -> list[Segment]:
        """Its records, as they are now."""
        return [*self._own.segments, *map(Pieces.segment, self._pieces, self._numbers)]

    @property
    def rows(self) -> list[BatchRows]:
        """Which rows of which calls its records are."""
        return [*self._own.rows, *map(Pieces.rows, self._pieces, self._numbers)]

    @staticmethod
    def shares_of(batches: Iterable[ProducerBatch]) -> dict[RowOrigins, list[Share]]:
        """Return the shares of these acknowledged batches, by the group of rows that their records come from."""
        found: defaultdict[RowOrigins, list[Share]] = defaultdict(list)
        for batch in batches:
            partition, time, base = batch.topic_partition.partition, batch.log_append_time, batch.base_offset
            for origins, start, stop, first_delta in batch._own.rows:
                found[origins].append(Share(start, stop, partition, batch.offset_of(first_delta), time))
            for pieces, number in zip(batch._pieces, batch._numbers, strict=True):
                offset = base + pieces.first_offset_deltas[number] if base >= 0 else -1
                share = new_share((pieces.starts[number], pieces.stops[number], partition, offset, time))
                found[pieces.origins].append(share)
        return found

    @property
    def leases(self) -> list[MemoryLease]:
        """The memory that it holds."""
        return [*self._own.leases, *[pieces.lease for pieces in self._pieces]]

    def rows_by_call(self) -> list[CallRows]:
        return [share for rows in self.rows for share in rows.by_call()]

    def is_full(self, bytes_max: int) -> bool:
        """Would another record of the usual size not fit into this many bytes?"""
        return HEADER_BYTES + self.body_bytes + self.body_bytes // self.record_count > bytes_max

    def pin(self) -> None:
        """OPEN -> PINNED: the calling thread works on it without the lock."""
        self._move(PINNED)

    def unpin(self) -> None:
        """PINNED -> OPEN: it takes more records later."""
        self._move(OPEN)

    def close(self, codec: Codec = Codec.NONE, level: int | None = None) -> None:
        """To CLOSED: end the appending. Compression comes first; if it fails, nothing has changed."""
        if codec is not Codec.NONE:
            packed = memoryview(compress(codec, self.segments, level))
            self.codec = codec
            self._keep_alone(packed)
            self.body_bytes = len(packed)
        self._move(CLOSED)

    def move_to_own_memory(self) -> None:
        """Copy the records out of the buffers that they share with other batches, so that those can be freed."""
        self._keep_alone(memoryview(b"".join(self.segments)))

    def _keep_alone(self, segment: memoryview) -> None:
        """Replace the segments by one that the batch does not share. Its charge moves out of the shared leases."""
        shared, rows = self.leases, self.rows
        needed = len(segment) + sum([some.nbytes for some in rows])
        own = shared[0].sibling()
        own.hold(self, needed)
        self._own, self._pieces, self._numbers = Own((segment,), (alone(rows),), (own,)), (), ()
        for lease in sorted(shared, key=lambda lease: -lease.bytes):
            lease.move(needed - own.bytes, own)
        for lease in shared:
            lease.let_go(self)

    def part(self, encoded: EncodedSlices, number: int, first_record: int) -> ProducerBatch:
        """Return a smaller batch: the records from `first_record` on, encoded again as slice `number` of `encoded`.

        It has their age and their sequences, and shares this batch's memory, which held them until now.
        """
        child = ProducerBatch(self.topic_partition, self.created_ms, self.deadline_ms)
        child.record_count = encoded.record_counts[number]
        rows = rows_between(self.rows, first_record, first_record + child.record_count)
        child._own = Own((encoded.segment(number),), rows, tuple(self.leases))
        child.body_bytes = child.uncompressed_bytes = encoded.sizes[number]
        child.base_timestamp, child.max_timestamp = encoded.base_timestamps[number], encoded.max_timestamps[number]
        child.is_split = True
        for lease in self.leases:
            lease.hold(child, child.body_bytes + sum([some.nbytes for some in rows]))
        if self.has_sequence:
            sequence = sequences.increment(self.base_sequence, first_record)
            child.set_producer_state(self.producer_id, self.producer_epoch, sequence, transactional=self.transactional)
        return child

    # -- what goes to the broker --------------------------------------------------------------------------------------

    @property
    def size_bytes(self) -> int:
        """Bytes in a request: header and records, as they are now."""
        return HEADER_BYTES + self.body_bytes

    @property
    def ever_sent(self) -> bool:
        """May it have reached a broker? Then its sequence must not be set again (rule 3)."""
        return self.drained_ms >= 0

    @property
    def has_sequence(self) -> bool:
        return self.base_sequence >= 0

    @property
    def last_sequence(self) -> int:
        """Sequence of the last record, or -1."""
        return sequences.last_sequence(self.base_sequence, self.record_count) if self.base_sequence >= 0 else -1

    def set_producer_state(
        self, producer_id: int, epoch: int, base_sequence: int, *, transactional: bool = False
    ) -> None:
        """Give the batch its identity for deduplication. The caller answers for rule 3 (see `ever_sent`)."""
        self.producer_id = producer_id
        self.producer_epoch = epoch
        self.base_sequence = base_sequence
        self.transactional = transactional
        self._header = b""

    def wire_segments(self) -> list[Segment]:
        """Header and records for the request; the header is stamped once for each identity."""
        if self.state in (OPEN, PINNED, DRAINED):
            raise IllegalStateError(f"{self!r} is not closed.")
        segments = self.segments
        if self.body_bytes <= _JOINED_BYTES_MAX:
            segments = [b"".join(segments)]
        if not self._header:
            self._header = encode_header(
                segments,
                attributes=self.codec | TRANSACTIONAL if self.transactional else self.codec,
                last_offset_delta=self.record_count - 1,
                base_timestamp=self.base_timestamp,
                max_timestamp=self.max_timestamp,
                producer_id=self.producer_id,
                producer_epoch=self.producer_epoch,
                base_sequence=self.base_sequence,
                record_count=self.record_count,
            )
        return [self._header, *segments]

    # -- moving -------------------------------------------------------------------------------------------------------

    @property
    def done(self) -> bool:
        return self.state is DONE

    def expired(self, now: float) -> bool:
        """Has delivery.timeout.ms passed since the first record was given to the producer?"""
        return now >= self.deadline_ms

    def drained_for(self, leader_epoch: int | None) -> None:
        """Note that the batch has left its queue, for a leader of this epoch."""
        self.leader_epoch = leader_epoch
        if self.state is OPEN:
            self._move(DRAINED)

    def depart(self, now: float) -> None:
        """CLOSED -> IN_FLIGHT: from now on possibly in a socket's queue."""
        self._move(IN_FLIGHT)
        self.drained_ms = now
        self.on_wire = True

    def off_wire(self) -> None:
        """Note that the request has ended, by an answer or with its connection: no socket reads the bytes any more."""
        self.on_wire = False
        if self.state is DONE:
            self._let_go_if_off_wire()

    def requeue(self, *, backoff_until_ms: float, error: Exception) -> None:
        """IN_FLIGHT -> CLOSED: to be sent again. `error` is why the last attempt failed."""
        self._move(CLOSED)
        self.on_wire = False
        self.attempts += 1
        self.backoff_until_ms = backoff_until_ms
        self.error = error

    def skip_backoff(self) -> None:
        """Let the retry begin at once, since the partition has a new leader (KIP-951). A later attempt waits again."""
        self._attempts_at_leader_change = self.attempts

    @property
    def backs_off(self) -> bool:
        """Does it wait until `backoff_until_ms`?"""
        return self.attempts > 0 and self._attempts_at_leader_change != self.attempts

    def complete(self, base_offset: int, log_append_time: int = -1) -> None:
        """Note that the broker has stored the batch."""
        self._move(DONE)
        self.base_offset = base_offset
        self.log_append_time = log_append_time
        self.error = None
        self._let_go_if_off_wire()

    def fail(self, error: Exception) -> None:
        """Note that the batch has failed: it will not be sent again."""
        self._move(DONE)
        self.error = error
        self._let_go_if_off_wire()

    def split_up(self) -> None:
        """Note that smaller batches have the records now, and hold the memory too."""
        self._move(DONE)
        self._let_go_if_off_wire()

    def offset_of(self, index: int) -> int:
        """Offset of a record by its position; -1 if the broker did not say (acks=0, a duplicate)."""
        return self.base_offset + index if self.base_offset >= 0 else -1

    def _let_go_if_off_wire(self) -> None:
        if self.on_wire:
            return
        leases = self.leases
        if self._own.leases:
            self._own = Own(rows=self._own.rows)
        for lease in leases:
            lease.let_go(self)

    def _move(self, state: BatchState) -> None:
        if state not in self.state.moves:
            raise IllegalStateError(f"{self!r} cannot become {state.value}.")
        self.state = state
