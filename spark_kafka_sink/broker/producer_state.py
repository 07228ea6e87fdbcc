"""What a partition remembers of each producer, and which batch it takes next.

A broker that keeps this promise lets a producer send again whatever it is not sure of:

    a batch of the last five, again     the offset that it got the first time, nothing is appended
    the next sequence                   appended
    any other sequence                  OUT_OF_ORDER_SEQUENCE_NUMBER
    an epoch below the last one         INVALID_PRODUCER_EPOCH
    an epoch above it                   must begin at sequence 0
    a producer that is not known        any sequence is taken: its state may have gone with old records.
                                        Within transactions of version 2 it must be 0, for there the epoch is always new

Sequences count records and wrap, see records/sequences.py.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field

from spark_kafka_sink.broker.api_error import ApiError
from spark_kafka_sink.protocol import error_codes
from spark_kafka_sink.records import sequences
from spark_kafka_sink.records.header import BatchHeader

BATCHES_REMEMBERED = 5
NO_EPOCH = -1


@dataclass(frozen=True)
class BatchMetadata:
    first_sequence: int
    last_sequence: int
    base_offset: int
    append_time: int = -1


@dataclass
class ProducerStateEntry:
    """One producer in one partition. Guarded by the lock of the partition's log."""

    epoch: int = NO_EPOCH
    batches: deque[BatchMetadata] = field(default_factory=lambda: deque(maxlen=BATCHES_REMEMBERED))
    transaction_start: int | None = None
    """The first offset of the open transaction."""

    def duplicate_of(self, header: BatchHeader) -> BatchMetadata | None:
        if header.producer_epoch != self.epoch:
            return None
        wanted = header.base_sequence, last_sequence(header)
        return next((b for b in self.batches if (b.first_sequence, b.last_sequence) == wanted), None)

    def check(self, header: BatchHeader, *, requires_sequence_zero: bool = False) -> None:
        """Refusal, if the batch may not be appended now. `begins_at_zero`: even if the producer is not known."""
        if header.producer_epoch < self.epoch:
            raise ApiError(
                error_codes.INVALID_PRODUCER_EPOCH,
                f"producer {header.producer_id} has epoch {self.epoch}, the batch has {header.producer_epoch}",
            )
        expected = self._expected_sequence(header.producer_epoch, requires_sequence_zero)
        if expected is not None and header.base_sequence != expected:
            raise ApiError(
                error_codes.OUT_OF_ORDER_SEQUENCE_NUMBER,
                f"producer {header.producer_id}: sequence {expected} comes next, the batch has {header.base_sequence}",
            )
        if self.transaction_start is not None and not header.is_transactional:
            raise ApiError(
                error_codes.INVALID_TXN_STATE,
                f"producer {header.producer_id} has an open transaction, the batch is not part of it",
            )

    def note(self, header: BatchHeader, base_offset: int, append_time: int = -1) -> None:
        """The batch was appended."""
        self.begin_epoch(header.producer_epoch)
        first, last = header.base_sequence, last_sequence(header)
        self.batches.append(BatchMetadata(first, last, base_offset, append_time))
        if header.is_transactional and self.transaction_start is None:
            self.transaction_start = base_offset

    def begin_epoch(self, epoch: int) -> None:
        if epoch != self.epoch:
            self.batches.clear()
            self.epoch = epoch

    def _expected_sequence(self, epoch: int, requires_sequence_zero: bool) -> int | None:
        """None: any."""
        if self.epoch == NO_EPOCH:
            return 0 if requires_sequence_zero else None
        if epoch != self.epoch:
            return 0
        # After a transaction's end with no batch of this epoch, the next one is the first.
        return sequences.increment(self.batches[-1].last_sequence, 1) if self.batches else 0


def last_sequence(header: BatchHeader) -> int:
    return sequences.increment(header.base_sequence, header.last_offset_delta)
