"""ProducerStateEntry: a partition's state for one producer, which decides whether the next batch is accepted.

A producer can safely resend a batch whose result it does not know, because the broker handles batches by this table:

    one of the last five batches again    respond with the offset of the original, append nothing
    the next sequence number              append
    any other sequence number             OUT_OF_ORDER_SEQUENCE_NUMBER
    an epoch before the current one       INVALID_PRODUCER_EPOCH
    a later epoch                         append if the sequence number is 0
    an unknown producer                   append with any sequence number, because the producer's state may have
                                          expired. It must be 0 in transaction version 2, where each transaction has a
                                          new epoch, and from Kafka 4.5 in a partition that has never held a record

Sequence numbers count records and wrap around (records/sequences.py).
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field

from spark_kafka_sink.broker.api_error import ApiError
from spark_kafka_sink.protocol import error_codes
from spark_kafka_sink.records import sequences
from spark_kafka_sink.records.header import BatchHeader

MAX_RETAINED_BATCHES = 5
"""The number of batches that Kafka remembers, because a producer has at most five requests in flight."""
NO_PRODUCER_ID = -1
NO_EPOCH = -1
NO_APPEND_TIME_MS = -1
"""The append time of a batch that keeps its records' timestamps, as in a Produce response."""


@dataclass(frozen=True)
class BatchMetadata:
    """Sequence numbers, offset and append time of a batch, kept to recognize duplicates and respond to them."""

    first_sequence: int
    last_sequence: int
    base_offset: int
    append_time_ms: int = NO_APPEND_TIME_MS


@dataclass
class ProducerStateEntry:
    """A producer's epoch, latest batches and open transaction. Guarded by the log's lock."""

    epoch: int = NO_EPOCH
    batches: deque[BatchMetadata] = field(default_factory=lambda: deque(maxlen=MAX_RETAINED_BATCHES))
    transaction_first_offset: int | None = None
    """First offset of the open transaction, or None if no transaction is open."""

    def find_duplicate_batch(self, header: BatchHeader) -> BatchMetadata | None:
        """Return the retained batch with the same epoch and sequence numbers, or None."""
        if header.producer_epoch != self.epoch:
            return None
        sequence_range = (header.base_sequence, compute_last_sequence(header))
        for batch in self.batches:
            if (batch.first_sequence, batch.last_sequence) == sequence_range:
                return batch
        return None

    def validate(self, header: BatchHeader, *, new_producer_must_start_at_zero: bool = False) -> None:
        """Raise ApiError unless the batch may be appended next. Call `find_duplicate_batch` first.

        `new_producer_must_start_at_zero`: whether an unknown producer must begin with sequence number 0.
        """
        if header.producer_epoch < self.epoch:
            raise ApiError(
                error_codes.INVALID_PRODUCER_EPOCH,
                f"Epoch {header.producer_epoch} of producer {header.producer_id} is older than the current epoch "
                f"{self.epoch}.",
            )
        expected_sequence = self._compute_expected_sequence(header.producer_epoch, new_producer_must_start_at_zero)
        if expected_sequence is not None and header.base_sequence != expected_sequence:
            raise ApiError(
                error_codes.OUT_OF_ORDER_SEQUENCE_NUMBER,
                f"Sequence number {header.base_sequence} of producer {header.producer_id} is out of order; "
                f"expected {expected_sequence}.",
            )
        if self.transaction_first_offset is not None and not header.is_transactional:
            raise ApiError(
                error_codes.INVALID_TXN_STATE,
                f"Producer {header.producer_id} has an open transaction, and the batch is not transactional.",
            )

    def add_batch(self, header: BatchHeader, base_offset: int, append_time_ms: int = NO_APPEND_TIME_MS) -> None:
        """Record an appended batch."""
        self.update_epoch(header.producer_epoch)
        last_sequence = compute_last_sequence(header)
        self.batches.append(BatchMetadata(header.base_sequence, last_sequence, base_offset, append_time_ms))
        if header.is_transactional and self.transaction_first_offset is None:
            self.transaction_first_offset = base_offset

    def update_epoch(self, epoch: int) -> None:
        """Set the epoch. If it changes, forget the batches of the previous epoch."""
        if epoch != self.epoch:
            self.batches.clear()
            self.epoch = epoch

    def _compute_expected_sequence(self, epoch: int, new_producer_must_start_at_zero: bool) -> int | None:
        """Return the expected sequence number, or None if any number is accepted."""
        if self.epoch == NO_EPOCH:
            return 0 if new_producer_must_start_at_zero else None
        if epoch != self.epoch:
            return 0
        # If a transaction marker has just started the epoch, it has no batches yet.
        return sequences.increment(self.batches[-1].last_sequence, record_count=1) if self.batches else 0


def compute_last_sequence(header: BatchHeader) -> int:
    return sequences.increment(header.base_sequence, header.last_offset_delta)
