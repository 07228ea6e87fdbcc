"""Idempotence: the producer identity, the sequences of each partition, and the decision whether a batch may be sent.

All rules below follow from what brokers do. For each producer id and partition, a broker remembers the epoch and the
last five batches. It accepts a new batch only if the batch's base sequence follows the last sequence. If it receives
one of the remembered batches again, it responds as if it had just stored that batch. A broker that knows nothing about
the producer has no last sequence to compare with, so it accepts any sequence. From Kafka 4.5, it accepts only the
sequence 0 if its log has never held a record (KAFKA-15591).

`admit` is called for every batch (see partition_queues.AdmitBatch). It admits a batch if all of these conditions hold:

    condition                                                     reason
    the producer has an id                                        the batch contains it; a missing id is requested first
    its partition is part of the transaction, if there is one     a missing partition is added first
    its partition's requests in flight are all to its leader      rule 2: two logs would be written to at once
    fewer than max.in.flight of the partition's requests are      rule 2: the broker remembers five batches
      in flight
    none of the partition's requests is in flight, unless the     rule 1: a broker that knows nothing would accept the
      partition is PIPELINED and the last records are not old       second batch although it has rejected the first
    if it was sent before, it is the oldest pending batch         the broker would reject any other batch
    if it is new, its partition is PROBING or PIPELINED, and no   no gap, no batch in doubt, no previous epoch in flight
      pending batch waits for a retry

A batch is in doubt if a broker may have stored it although the producer received no acknowledgement.
partition_states.py describes the states of a partition and defines the terms gap, unresolved and pending.

Batches get new sequences only in `_restart_sequences` (rule 3). By then, none of the partition's requests is in flight,
and a broker that has responded about one of these batches has rejected it. This leaves the batches behind the gap whose
response was lost. A broker that knows the producer has rejected such a batch, too. But a broker that has forgotten the
producer, because its records were deleted or too old, has accepted it. So the batch is abandoned: the sender fails it
with an error that says that it may be stored.

In a transaction, batches never get new sequences. A gap means that a batch has failed, so the transaction can only be
aborted, and the sender fails the batches behind the gap along with all others that wait to be sent. The next
transaction then has a new epoch.

A partition's state is keyed by topic name and kept for the producer's lifetime, regardless of what the metadata says
about the topic (rule 4). If the topic is deleted and recreated, its new log knows nothing about the producer. Before
Kafka 4.5, the broker accepts the next sequences, so rule 1 starts over when the metadata shows the new topic id. Later
brokers reject them, and the sequences then restart under a new epoch.

Sender thread only.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING
from uuid import UUID

from spark_kafka_sink.client.producer_ids import MAX_EPOCH, NO_PRODUCER_ID, ProducerIdAndEpoch
from spark_kafka_sink.client.topic_partition import TopicPartition
from spark_kafka_sink.producer.batching.batch import ProducerBatch
from spark_kafka_sink.producer.sending.partition_states import (
    AWAITING_EPOCH,
    DRAINING,
    PIPELINED,
    PROBING,
    REPAIRING,
    ConnectionIdentity,
    PartitionState,
    find_violations,
)
from spark_kafka_sink.records.sequences import is_after

if TYPE_CHECKING:  # only loaded for producers with a transactional.id
    from spark_kafka_sink.producer.transactions.manager import TransactionManager

_PHASES_FOR_NEW_BATCHES = (PROBING, PIPELINED)
"""The phases of a partition in which new batches may get sequences."""
MAX_AGE_MS = 600_000
"""Maximum age of a partition's last records while several of its requests may be in flight.

A broker forgets a producer if the newest timestamp of its last batch in the partition is older than
`producer.id.expiration.ms`, which is a day by default. Brokers check this every ten minutes by default. So a producer
is forgotten after a long pause, or right after it has written records with old timestamps.
"""


# --- rules 1 to 3


def can_pipeline(
    partition_state: PartitionState, connection: ConnectionIdentity | None, topic_id: UUID | None, unix_time_ms: float
) -> bool:
    """Return whether several requests of the partition may be in flight at once.

    Rule 1: a request on the same connection and under the same topic id must have succeeded under the current epoch,
    and the last records must not be old. Otherwise, the broker might know nothing about the producer, and could reject
    the first batch but accept the second one.
    """
    return (
        partition_state.phase is PIPELINED
        and partition_state.confirmed_connection is connection
        and partition_state.confirmed_topic_id == topic_id
        and unix_time_ms - partition_state.last_sent_timestamp_ms < MAX_AGE_MS
    )


def can_send_to(partition_state: PartitionState, leader_id: int, max_in_flight: int) -> bool:
    """Return whether one more request of the partition may be sent to this leader while others are in flight.

    Rule 2: a partition has at most `max_in_flight` requests in flight, and all of them are to the same broker.
    """
    return partition_state.in_flight_node_id == leader_id and len(partition_state.in_flight_batches) < max_in_flight


def can_restart_sequences(partition_state: PartitionState) -> bool:
    """Return whether the pending batches may get new sequences.

    Rule 3: there must be a gap (a sequence that no broker will ever accept), no pending batch may precede the gap, and
    none of the partition's requests may be in flight.
    """
    if partition_state.in_flight_batches or partition_state.gap_start is None:
        return False
    return all(
        not is_after(partition_state.gap_start, batch.base_sequence) for batch in partition_state.pending_batches
    )


def is_possibly_stored(partition_state: PartitionState, batch: ProducerBatch) -> bool:
    """Return whether a broker may have stored a batch, because a response was lost or left the outcome open.

    Rule 3: such a batch must not get a new sequence, because it could then be stored twice.
    """
    return batch in partition_state.in_doubt_batches


class _PartitionStates(dict[TopicPartition, PartitionState]):
    """The state of each topic-partition, created on first use."""

    def __init__(self, *, is_transactional: bool) -> None:
        super().__init__()
        self._is_transactional = is_transactional

    def __missing__(self, topic_partition: TopicPartition) -> PartitionState:
        partition_state = PartitionState(topic_partition, is_transactional=self._is_transactional)
        self[topic_partition] = partition_state
        return partition_state


class Idempotence:
    """The producer identity and the states of all partitions.

    If idempotence is disabled, batches have no sequences, and only rule 2 applies (see `can_send_to`).
    """

    def __init__(
        self,
        *,
        enabled: bool,
        max_in_flight: int,
        get_connection_identity: Callable[[int], ConnectionIdentity | None],
        get_topic_id: Callable[[str], UUID | None],
        get_unix_time_ms: Callable[[], int],
        transactions: TransactionManager | None = None,
    ) -> None:
        """Create the state of a producer that has no producer id yet.

        `enabled`: the producer's enable.idempotence.
        `max_in_flight`: the maximum number of requests in flight for each partition (rule 2).
        `get_connection_identity`: returns an object that identifies the current connection to a node; None if the node
        is not connected.
        `get_topic_id`: returns the topic's id in the metadata; None if it is unknown.
        `get_unix_time_ms`: returns the wall clock's time.
        `transactions`: the transaction manager; None if the producer has no transactional.id.
        """
        self.enabled = enabled
        self._transactions = transactions
        self.id_and_epoch = NO_PRODUCER_ID
        """The current producer identity; NO_PRODUCER_ID if the producer has none."""
        self.get_connection_identity = get_connection_identity
        self._get_topic_id = get_topic_id
        self._get_unix_time_ms = get_unix_time_ms
        self._max_in_flight = max_in_flight
        self._partitions = _PartitionStates(is_transactional=transactions is not None)
        self._abandoned_batches: list[ProducerBatch] = []

    # --- producer identity

    @property
    def needs_producer_id(self) -> bool:
        """Whether batches need a producer id before they can be sent, and none was assigned yet."""
        return self.enabled and self.id_and_epoch == NO_PRODUCER_ID

    def set_producer_id_and_epoch(self, id_and_epoch: ProducerIdAndEpoch) -> None:
        """Set the identity that a broker has assigned.

        Partitions that are waiting for the identity restart their sequences now. Any other partition first finishes all
        batches of the previous identity, and restarts its sequences with its next new batch.
        """
        self.id_and_epoch = id_and_epoch
        for partition_state in self._partitions.values():
            if partition_state.phase is AWAITING_EPOCH:
                self._restart_sequences(partition_state)

    def _bump_epoch(self) -> None:
        """Increment the epoch locally, without a request (KIP-360). After the last epoch, reset the identity."""
        producer_id, epoch = self.id_and_epoch
        self.id_and_epoch = ProducerIdAndEpoch(producer_id, epoch + 1) if epoch < MAX_EPOCH else NO_PRODUCER_ID

    # --- admission

    def admit(self, batch: ProducerBatch, leader_id: int) -> bool:
        """Return whether a batch, the oldest in its partition's queue, may be sent now. If so, count it as in flight.

        A new batch then also gets its sequence.
        """
        partition_state = self._partitions[batch.topic_partition]
        if partition_state.in_flight_batches and not can_send_to(partition_state, leader_id, self._max_in_flight):
            return False
        if self._transactions and not self._transactions.admit_batch(
            batch.topic_partition, is_retry=batch.has_sequence
        ):
            return False
        # Check the sequence last, because this gives a new batch its sequence. From then on, the broker needs this
        # batch before any other, so no further check may hold it back.
        if self.enabled and not self._admit_sequence(partition_state, batch, leader_id):
            return False
        partition_state.in_flight_batches[batch] = leader_id
        partition_state.in_flight_node_id = leader_id
        return True

    def _admit_sequence(self, partition_state: PartitionState, batch: ProducerBatch, leader_id: int) -> bool:
        """Return whether the broker would accept a batch's sequence if the batch were sent now.

        A batch without a sequence gets the next one if it may be sent.
        """
        connection = self.get_connection_identity(leader_id)
        topic_id = self._get_topic_id(batch.topic_partition.topic)
        unix_time_ms = self._get_unix_time_ms()
        if not can_pipeline(partition_state, connection, topic_id, unix_time_ms):
            if partition_state.in_flight_batches:
                return False
            if partition_state.phase is PIPELINED:
                partition_state.transition_to(PROBING)
        if batch.base_sequence < 0:  # has_sequence, without a call
            if not self._try_assign_sequence(partition_state, batch):
                return False
        # The broker would reject any batch behind the oldest pending batch or behind a gap.
        elif not (partition_state.is_head(batch) and partition_state.is_before_gap(batch)):
            return False
        # Brokers do not forget a producer while it has an open transaction, whatever the timestamps of its records.
        timestamp_ms = unix_time_ms if self._transactions else batch.max_timestamp
        partition_state.last_sent_timestamp_ms = min(timestamp_ms, unix_time_ms)
        return True

    def _try_assign_sequence(self, partition_state: PartitionState, batch: ProducerBatch) -> bool:
        """Assign the next sequence to a new batch. Return False if no sequence can be assigned now."""
        if self.id_and_epoch == NO_PRODUCER_ID:
            return False
        # `is not` comes first because it is faster, and the identity rarely changes.
        if partition_state.id_and_epoch is not self.id_and_epoch and partition_state.id_and_epoch != self.id_and_epoch:
            if partition_state.pending_batches or partition_state.in_flight_batches:
                return False  # all batches of the previous identity must end first
            partition_state.start_sequences(self.id_and_epoch)
        # A pending batch that is not in flight waits for a retry, and must be sent before any new batch.
        has_batch_to_retry = len(partition_state.pending_batches) > len(partition_state.in_flight_batches)
        if partition_state.phase not in _PHASES_FOR_NEW_BATCHES or has_batch_to_retry:
            return False
        partition_state.add_new_batch(batch)
        return True

    # --- results of batches

    def partition_state(self, topic_partition: TopicPartition) -> PartitionState:
        """Return the state of a topic-partition. Create the state if there is none."""
        return self._partitions[topic_partition]

    def __iter__(self) -> Iterator[PartitionState]:
        """Iterate over the states of all topic-partitions."""
        return iter(self._partitions.values())

    def handle_failed_attempt(self, batch: ProducerBatch, *, in_doubt: bool) -> None:
        """Record that a batch's request has ended without success.

        The caller must then call the method for what happens to the batch next: handle_retry, handle_split,
        handle_failed_batch, or handle_late_failure if the batch had already failed.

        `in_doubt`: whether a broker may have stored the batch nevertheless.
        """
        partition_state = self._partitions[batch.topic_partition]
        partition_state.in_flight_batches.pop(batch, None)
        # A batch that is no longer pending has already failed. Without idempotence, no batch is ever pending.
        if in_doubt and (batch in partition_state.pending_batches or not self.enabled):
            partition_state.in_doubt_batches |= {batch}

    def handle_stored_batch(
        self, batch: ProducerBatch, connection: ConnectionIdentity | None, topic_id: UUID | None
    ) -> None:
        """Record that a broker has stored a batch. The batch may already have failed, because it expired in flight.

        `connection`: the current connection to the node that has responded; None if the connection was closed.
        `topic_id`: the topic's id in the metadata when the request was sent; None if it was unknown.
        """
        partition_state = self._partitions[batch.topic_partition]
        partition_state.in_flight_batches.pop(batch, None)
        partition_state.remove_pending(batch)
        if not self.enabled:
            return
        partition_state.update_last_acked_sequence(batch.last_sequence)
        if partition_state.phase is PIPELINED:
            return
        if partition_state.phase is not PROBING:
            # This may be the batch for which the phase was waiting: the last one in flight, or the last pending one
            # before the gap.
            self._update_phase(partition_state)
        elif not partition_state.pending_batches and connection is not None:
            # Rule 1 is satisfied: the broker now knows the producer, so it checks the sequences of all further batches.
            partition_state.confirm_pipelining(connection, topic_id)

    def handle_retry(self, batch: ProducerBatch, *, needs_new_sequence: bool) -> None:
        """Record that a batch will be sent again.

        `needs_new_sequence`: whether the batch can never be stored under its current sequence.
        """
        if not self.enabled:
            return
        partition_state = self._partitions[batch.topic_partition]
        if needs_new_sequence:
            partition_state.extend_gap(batch.base_sequence)
        self._update_phase(partition_state)

    def handle_split(self, batch: ProducerBatch, children: list[ProducerBatch]) -> None:
        """Record that a batch was split and replaced with its children."""
        partition_state = self._partitions[batch.topic_partition]
        partition_state.replace(batch, children)
        if self.enabled:
            self._update_phase(partition_state)

    def handle_failed_batch(self, batch: ProducerBatch, *, in_doubt: bool) -> None:
        """Record that a batch has failed and will not be sent again.

        `in_doubt`: whether a broker may have stored the batch, or may yet store it because its request is in flight.
        """
        partition_state = self._partitions[batch.topic_partition]
        was_pending = batch in partition_state.pending_batches
        partition_state.remove_pending(batch)
        if not was_pending:  # the batch has no sequence, or it was abandoned
            return
        partition_state.record_failure(batch, in_doubt=in_doubt)
        self._update_phase(partition_state)

    def handle_late_failure(self, batch: ProducerBatch) -> None:
        """Record that a request has ended without success for a batch that had already failed."""
        partition_state = self._partitions[batch.topic_partition]
        partition_state.remove_pending(batch)
        if self.enabled:
            self._update_phase(partition_state)

    def end_in_flight_requests(self) -> None:
        """Record that all requests in flight have ended. Call this only after all connections were closed."""
        for partition_state in self:
            for batch in partition_state.in_flight_batches:
                batch.mark_request_ended()
            partition_state.in_flight_batches.clear()

    def take_abandoned_batches(self) -> list[ProducerBatch]:
        """Return the batches that can neither keep their sequences nor get new ones. Each batch is returned only once.

        The caller must fail them.
        """
        abandoned_batches, self._abandoned_batches = self._abandoned_batches, []
        return abandoned_batches

    def is_in_doubt(self, batch: ProducerBatch) -> bool:
        """Return whether an earlier attempt may have stored a batch."""
        # Batches are abandoned only if they may be stored.
        return batch in self._abandoned_batches or is_possibly_stored(self._partitions[batch.topic_partition], batch)

    def find_resendable_batches_in_doubt(self) -> set[ProducerBatch]:
        """Return the batches in doubt that brokers would still accept if all other unsent batches were dropped.

        Brokers reject each batch behind one that was dropped. So only batches in doubt and batches in flight precede
        these batches in their partition.
        """
        resendable_batches = set()
        for partition_state in self:
            for batch in partition_state.pending_batches:
                is_in_doubt = batch in partition_state.in_doubt_batches
                is_kept = is_in_doubt or batch in partition_state.in_flight_batches
                if not (is_kept and partition_state.is_before_gap(batch)):
                    break
                if is_in_doubt:
                    resendable_batches.add(batch)
        return resendable_batches

    def is_head(self, batch: ProducerBatch) -> bool:
        """Return whether all of the partition's records before this batch should already be on the broker."""
        partition_state = self._partitions[batch.topic_partition]
        # Behind a gap in a transaction, it is expected that records are missing on the broker.
        return partition_state.is_head(batch) and not (
            partition_state.is_transactional and partition_state.gap_start is not None
        )

    def find_violations(self) -> list[str]:
        """Return descriptions of all violated invariants in the partitions' states."""
        return [
            violation
            for partition_state in self
            for violation in find_violations(partition_state, self._max_in_flight, idempotent=self.enabled)
        ]

    # --- after a failure

    def _update_phase(self, partition_state: PartitionState) -> None:
        """Move a partition to its next phase after a batch has failed or a request has ended."""
        # Resolve the sequences first, because that may reveal a gap, and then the sequences must restart.
        has_unfinished_batches = bool(partition_state.pending_batches or partition_state.in_flight_batches)
        if partition_state.has_unresolved_sequence and not has_unfinished_batches:
            partition_state.resolve_sequences()
        if can_restart_sequences(partition_state):
            self._restart_sequences(partition_state)
        elif partition_state.in_flight_batches:
            partition_state.transition_to(DRAINING)
        elif partition_state.gap_start is not None or partition_state.has_unresolved_sequence:
            partition_state.transition_to(REPAIRING)
        else:
            partition_state.transition_to(PROBING)

    def _restart_sequences(self, partition_state: PartitionState) -> None:
        """Restart a partition's sequences under a new epoch, and abandon its batches that may be stored.

        If a broker must first assign a producer id, or the transaction must first end, the partition only moves to the
        phase AWAITING_EPOCH. `set_producer_id_and_epoch` restarts its sequences later. In a transaction, the sender has
        failed the pending batches by then, because the transaction must be aborted.
        """
        if partition_state.id_and_epoch == self.id_and_epoch:
            if self._transactions is not None:
                partition_state.transition_to(AWAITING_EPOCH)
                return
            self._bump_epoch()  # after the last epoch, this resets id_and_epoch until a broker assigns a new id
        if self.id_and_epoch == NO_PRODUCER_ID:
            partition_state.transition_to(AWAITING_EPOCH)
            return
        pending_batches = partition_state.pending_batches
        self._abandoned_batches += [batch for batch in pending_batches if is_possibly_stored(partition_state, batch)]
        partition_state.pending_batches = [
            batch for batch in pending_batches if not is_possibly_stored(partition_state, batch)
        ]
        partition_state.in_doubt_batches = frozenset()
        partition_state.start_sequences(self.id_and_epoch)
