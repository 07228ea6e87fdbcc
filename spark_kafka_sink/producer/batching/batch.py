"""ProducerBatch: the records of one partition that travel together, from open to done.

A batch is a 61-byte header and a list of segments: memoryviews into the buffers that the encoder filled. Records are
appended by adding segments, so nothing is copied; compression replaces them by one compressed segment when the batch is
closed. The header is stamped as late as possible, because the sequence number is only known when the batch is drained;
once stamped it stays byte for byte the same for every retry, unless the sequence is set again.

    state       moves to                why
    OPEN        CLOSED, DONE            full, lingered or drained; or aborted
    CLOSED      IN_FLIGHT, DONE         drained; or expired, split, aborted
    IN_FLIGHT   CLOSED, DONE            to be retried; or answered, expired, split
    DONE        -                       a second outcome is noted and ignored

A batch is done exactly once. Being done and being off the wire are different facts: a batch that expired in flight
is done while the socket layer may still read its bytes. The memory returns to the pool when both hold, whichever
comes last.

`pieces` say whose rows a batch carries, see owners.py. Owner of all fields: the accumulator's lock while OPEN
or CLOSED, the sender thread while IN_FLIGHT.
"""

from __future__ import annotations

from enum import Enum
from typing import NamedTuple

from spark_kafka_sink.errors import IllegalStateError
from spark_kafka_sink.producer.batching.buffer_pool import MemoryLease
from spark_kafka_sink.producer.batching.row_origins import BatchPart, PieceRows
from spark_kafka_sink.records import sequences
from spark_kafka_sink.records.compression import Codec, compress
from spark_kafka_sink.records.header import HEADER_BYTES, TRANSACTIONAL, BatchHeader, stamp_header

Segment = bytes | bytearray | memoryview


class TopicPartition(NamedTuple):
    """One partition of one topic."""

    topic: str
    partition: int

    def __str__(self) -> str:
        return f"{self.topic}-{self.partition}"


class BatchState(Enum):
    """Where a batch is in its life; see the table above."""

    OPEN = "open"
    CLOSED = "closed"
    IN_FLIGHT = "in flight"
    DONE = "done"


OPEN, CLOSED, IN_FLIGHT, DONE = BatchState  # a name of its own is found in a tenth of the time
_UNCOMPRESSED = Codec.NONE


class ProducerBatch:
    """See the module's docstring."""

    __slots__ = (
        "_header",
        "attempts",
        "attempts_at_leader_change",
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
        "leases",
        "log_append_time",
        "max_timestamp",
        "on_wire",
        "pieces",
        "pinned",
        "producer_epoch",
        "producer_id",
        "record_count",
        "segments",
        "state",
        "topic_partition",
        "transactional",
        "uncompressed_bytes",
    )  # fmt: skip

    def __init__(
        self,
        topic_partition: TopicPartition,
        created_ms: float,
        deadline_ms: float,
        segments: tuple[Segment, ...] = (),
        record_count: int = 0,
        base_timestamp: int = -1,
        max_timestamp: int = -1,
        pieces: tuple[PieceRows, ...] = (),
        leases: tuple[MemoryLease, ...] = (),
    ) -> None:
        """With its first records, if there are any yet; see `append`."""
        self.topic_partition = topic_partition
        self.created_ms = created_ms
        self.deadline_ms = deadline_ms
        self.state = OPEN
        self.segments = segments
        self.record_count = record_count
        self.body_bytes = self.uncompressed_bytes = sum(map(len, segments))
        self.base_timestamp = base_timestamp
        self.max_timestamp = max_timestamp
        self.codec = _UNCOMPRESSED
        self.pieces = pieces
        self.leases = leases  # of one grouping mostly, and then one tuple for all its batches
        self.pinned = (
            False  # a grouping is encoding more records for this open batch: it may be neither closed nor drained
        )
        self.attempts = 0  # failed attempts so far
        self.attempts_at_leader_change = -1
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
        self.error: Exception | None = None
        self._header = b""  # not stamped yet

    def __repr__(self) -> str:
        return (
            f"ProducerBatch({self.topic_partition}, {self.record_count} records, {self.state.value}, attempts="
            f"{self.attempts}, producer={self.producer_id}/{self.producer_epoch}, sequence={self.base_sequence})"
        )

    # -- filling ------------------------------------------------------------------------------------------------------

    def append(
        self,
        segment: memoryview,
        record_count: int,
        base_timestamp: int,
        max_timestamp: int,
        pieces: tuple[PieceRows, ...],
        leases: tuple[MemoryLease, ...],
    ) -> None:
        """Add encoded records, whose offset deltas go on where the batch ends. The batch becomes a holder of their
        leases, and is counted there already."""
        if self.state is not OPEN:
            raise IllegalStateError(f"Records cannot be added to {self!r}.")
        if not self.record_count:
            self.base_timestamp = base_timestamp
        if max_timestamp > self.max_timestamp:
            self.max_timestamp = max_timestamp
        self.segments += (segment,)
        self.record_count += record_count
        self.body_bytes += len(segment)
        self.uncompressed_bytes = self.body_bytes
        self.pieces += pieces
        self.leases += leases

    def close(self, codec: Codec = _UNCOMPRESSED, level: int | None = None) -> None:
        """End the appending and compress. Closing a batch that is not open changes nothing."""
        if self.state is not OPEN:
            return
        self.state = CLOSED
        if codec is _UNCOMPRESSED:
            return
        packed = memoryview(compress(codec, self.segments, level))
        self.codec = codec
        self._charge_compressed(len(packed) + sum(piece.nbytes for piece in self.pieces))
        self.segments = (packed,)
        self.body_bytes = len(packed)

    def _charge_compressed(self, count: int) -> None:
        """Move the charge for what remains out of the leases of what was compressed, and let those go."""
        share = -(-count // max(1, len(self.leases)))
        compressed = tuple([lease.carve(share) for lease in self.leases])
        for lease in self.leases:
            lease.let_go()
        self.leases = compressed

    @property
    def parts(self) -> list[BatchPart]:
        """Whose records these are, call by call."""
        return [part for piece in self.pieces for part in piece.parts]

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
        return sequences.last(self.base_sequence, self.record_count) if self.base_sequence >= 0 else -1

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
        if self.state is OPEN:
            raise IllegalStateError(f"{self!r} is not closed.")
        if not self._header:
            header = BatchHeader(
                attributes=self.codec | TRANSACTIONAL if self.transactional else self.codec,
                last_offset_delta=self.record_count - 1,
                base_timestamp=self.base_timestamp,
                max_timestamp=self.max_timestamp,
                producer_id=self.producer_id,
                producer_epoch=self.producer_epoch,
                base_sequence=self.base_sequence,
                record_count=self.record_count,
            )
            self._header = stamp_header(header, self.segments)
        return [self._header, *self.segments]

    # -- moving -------------------------------------------------------------------------------------------------------

    @property
    def done(self) -> bool:
        return self.state is DONE

    def expired(self, now: float) -> bool:
        """Has delivery.timeout.ms passed since the first record was given to the producer?"""
        return now >= self.deadline_ms

    def depart(self, now: float) -> None:
        """CLOSED -> IN_FLIGHT: drained, and from now on possibly in a socket's queue."""
        if self.state is not CLOSED:
            raise self._misplaced(IN_FLIGHT)
        self.state = IN_FLIGHT
        self.drained_ms = now
        self.on_wire = True

    def off_wire(self) -> None:
        """Its request was answered, or the connection closed: nobody reads the bytes any more."""
        self.on_wire = False
        if self.state is DONE:
            self._let_go()

    def requeue(self, *, backoff_until_ms: float, error: Exception) -> None:
        """IN_FLIGHT -> CLOSED: to be sent again. `error` is why the last attempt failed."""
        if self.state is not IN_FLIGHT:
            raise self._misplaced(CLOSED)
        self.state = CLOSED
        self.on_wire = False
        self.attempts += 1
        self.error = error
        self.backoff_until_ms = backoff_until_ms

    def complete(self, base_offset: int, log_append_time: int = -1) -> bool:
        """The broker has stored it. False if the batch had an outcome before; that one stands."""
        if self.state is DONE:
            return False
        self.state = DONE
        self.base_offset = base_offset
        self.log_append_time = log_append_time
        self._settle_memory()
        return True

    def fail(self, error: Exception) -> bool:
        """It will not be tried again. False if the batch had an outcome before; that one stands."""
        if self.state is DONE:
            return False
        self.state = DONE
        self.error = error
        self._settle_memory()
        return True

    def split_up(self) -> None:
        """Its records live on in smaller batches, which hold the memory too."""
        if self.state is DONE:
            raise self._misplaced(DONE)
        self.state = DONE
        self._settle_memory()

    def offset_of(self, index: int) -> int:
        """Offset of a record by its position; -1 if the broker did not tell (acks=0, a duplicate)."""
        return self.base_offset + index if self.base_offset >= 0 else -1

    def _settle_memory(self) -> None:
        if not self.on_wire:
            self._let_go()

    def _let_go(self) -> None:
        leases, self.leases = self.leases, ()
        self.segments = ()
        for lease in leases:
            lease.let_go()

    def _misplaced(self, state: BatchState) -> IllegalStateError:
        return IllegalStateError(f"{self!r} cannot become {state.value}.")
