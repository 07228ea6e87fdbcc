"""Idempotence: the producer's id and epoch, the sequences of each partition, and which batch may leave when.

A broker remembers, for each producer id and partition, the epoch and the last five batches. It takes a batch whose
first sequence follows the last one, and answers DUPLICATE to one that it remembers. It has nothing to compare with
when it knows nothing of the producer, and then takes any sequence. All rules below come from these three facts.

`admit` is the gate through which every batch leaves (see partition_queues.AdmitBatch). A batch may go when

    a producer id is known                                          else one is asked for
    its partition is part of the transaction, if there are any      else it is added first
    the partition's earlier requests are all at the same leader     rule 2: else two logs would be filled at once
    fewer than max.in.flight of them are open, over all brokers     rule 2: the broker remembers five
    none is open, unless the partition is PIPELINED                 rule 1: a broker that knows nothing takes the
                                                                      second although it has refused the first
    it is the oldest pending one, if it was sent before             else the broker would refuse it
    the partition is PROBING or PIPELINED, and no pending batch     no gap, no doubt, no old epoch in flight
      waits to be sent again, if it is new

partition_states.py has the states of a partition, and what is a gap, unresolved and pending.

Batches get other sequences in one place only, `_begin_again` (rule 3): they were refused by every broker that answered
for them, and nothing before them is in flight. A batch behind the gap whose answer was lost is not among them. A broker
that knows the producer has refused it too, but one that has forgotten it (its records were deleted, or were too old)
took it. It is abandoned: the sender fails it, with the words that it may be stored. In a transaction there is no other
sequence: what is behind a gap is abandoned, and the transaction is aborted, which brings the next epoch.

A partition's state is kept under the topic's name for as long as the producer lives, whatever metadata says of the
topic (rule 4). A topic that was deleted and created again has a log that knows nothing of us, and takes the sequences
as they go on.

Sender thread only.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING

from spark_kafka_sink.client.producer_ids import MAX_EPOCH, NO_PRODUCER_ID, ProducerIdAndEpoch
from spark_kafka_sink.client.topic_partition import TopicPartition
from spark_kafka_sink.client.versions import NodeApiVersions
from spark_kafka_sink.producer.batching.batch import ProducerBatch
from spark_kafka_sink.producer.sending.partition_states import (
    AWAITING_EPOCH,
    DRAINING,
    PIPELINED,
    PROBING,
    REPAIRING,
    PartitionState,
    violations,
)
from spark_kafka_sink.records.sequences import is_after

if TYPE_CHECKING:  # loaded for producers with a transactional.id only
    from spark_kafka_sink.producer.transactions.manager import TransactionManager

_TAKING_NEW = (PROBING, PIPELINED)


# --- the rules, one function each; the first two are asked where some requests of the partition are open


def may_have_another_on_wire(state: PartitionState, connection: NodeApiVersions | None) -> bool:
    """Rule 1: one request at a time, until this very connection has brought a success under this epoch."""
    return state.phase is PIPELINED and state.confirmed_by is connection


def may_go_to(state: PartitionState, leader_id: int, in_flight_max: int) -> bool:
    """Rule 2: at most `in_flight_max` open requests of a partition over all brokers, and all of them at one."""
    return state.sent_to == leader_id and len(state.on_wire) < in_flight_max


def may_begin_again(state: PartitionState) -> bool:
    """Rule 3: may pending batches get new sequences? Only from a gap on, and when nothing before it is left."""
    if state.on_wire or state.gap is None:
        return False
    return all(not is_after(state.gap, batch.base_sequence) for batch in state.pending)


def may_be_stored(state: PartitionState, batch: ProducerBatch) -> bool:
    """Rule 3: a batch that may be stored gets no other sequence. Its answer was lost, or said so."""
    return batch in state.in_doubt


class _States(dict[TopicPartition, PartitionState]):
    """Makes the PartitionState of a partition when it is first asked for."""

    def __init__(self, *, transactional: bool) -> None:
        super().__init__()
        self._transactional = transactional

    def __missing__(self, topic_partition: TopicPartition) -> PartitionState:
        state = self[topic_partition] = PartitionState(topic_partition, transactional=self._transactional)
        return state


class Idempotence:
    """See the module's docstring. When idempotence is off, rule 2 still holds, and there are no sequences."""

    def __init__(
        self,
        *,
        enabled: bool,
        in_flight_max: int,
        connection_of: Callable[[int], NodeApiVersions | None],
        transactions: TransactionManager | None = None,
    ) -> None:
        """`connection_of` gives a node's present connection, by its versions: another object after each reconnect."""
        self.enabled = enabled
        self._transactions = transactions
        self.id_and_epoch = NO_PRODUCER_ID
        self.connection = connection_of
        self._in_flight_max = in_flight_max
        self._partitions = _States(transactional=transactions is not None)
        self._abandoned: list[ProducerBatch] = []

    # --- the producer id

    @property
    def needs_producer_id(self) -> bool:
        return self.enabled and self.id_and_epoch == NO_PRODUCER_ID

    def adopt(self, id_and_epoch: ProducerIdAndEpoch) -> None:
        """Use the id that a broker has given. Partitions that waited for it begin again now, the others when nothing is
        pending."""
        self.id_and_epoch = id_and_epoch
        for state in self._partitions.values():
            if state.phase is AWAITING_EPOCH:
                self._begin_again(state)

    def _next_epoch(self) -> None:
        """The next epoch, for which no broker need be asked; after the last one another producer id is needed."""
        producer_id, epoch = self.id_and_epoch
        self.id_and_epoch = ProducerIdAndEpoch(producer_id, epoch + 1) if epoch < MAX_EPOCH else NO_PRODUCER_ID

    # --- the gate

    def admit(self, batch: ProducerBatch, leader_id: int, now: float) -> bool:
        """May this batch, the first of its partition's queue, be sent now? If so, it is counted as sent."""
        state = self._partitions[batch.topic_partition]
        if state.on_wire and not may_go_to(state, leader_id, self._in_flight_max):
            return False
        if self._transactions and not self._transactions.admits(batch.topic_partition, is_retry=batch.has_sequence):
            return False
        if self.enabled and not self._may_leave(state, batch, self.connection(leader_id)):
            return False
        state.on_wire[batch] = leader_id
        state.sent_to = leader_id
        return True

    def _may_leave(self, state: PartitionState, batch: ProducerBatch, connection: NodeApiVersions | None) -> bool:
        if state.on_wire and not may_have_another_on_wire(state, connection):
            return False
        if state.phase is PIPELINED and state.confirmed_by is not connection:
            state.move(PROBING)
        if batch.base_sequence < 0:
            return self._take_sequence(state, batch)
        return state.is_head(batch) and (state.gap is None or is_after(state.gap, batch.base_sequence))

    def _take_sequence(self, state: PartitionState, batch: ProducerBatch) -> bool:
        """A new batch gets the next sequence, if there is one to be given now."""
        if self.id_and_epoch == NO_PRODUCER_ID:
            return False
        if state.id_and_epoch is not self.id_and_epoch and state.id_and_epoch != self.id_and_epoch:
            if state.pending or state.on_wire:
                return False
            state.begin(self.id_and_epoch)
        if state.phase not in _TAKING_NEW or len(state.pending) > len(state.on_wire):
            return False
        state.add(batch)
        return True

    # --- the results of batches

    def state(self, topic_partition: TopicPartition) -> PartitionState:
        return self._partitions[topic_partition]

    def __iter__(self) -> Iterator[PartitionState]:
        return iter(self._partitions.values())

    def off_wire(self, batch: ProducerBatch, *, in_doubt: bool) -> None:
        """A batch's request has ended without a success. Call retried, split, failed or answered_late next."""
        state = self._partitions[batch.topic_partition]
        state.on_wire.pop(batch, None)
        if in_doubt and (batch in state.pending or not self.enabled):
            state.in_doubt |= {batch}

    def stored(self, batch: ProducerBatch, connection: NodeApiVersions | None) -> None:
        """A batch's request has ended: the broker at the other end of `connection` has the batch. It may have failed
        before: expired, in flight."""
        state = self._partitions[batch.topic_partition]
        state.on_wire.pop(batch, None)
        state.remove(batch)
        if not self.enabled:
            return
        state.acknowledged(batch.last_sequence)
        if state.phase is PIPELINED:
            return
        if state.phase is not PROBING:
            self._reconsider(state)
        elif not state.pending and connection is not None:
            state.confirm(connection)

    def retried(self, batch: ProducerBatch, *, new_sequence: bool) -> None:
        """The batch goes back into its queue. `new_sequence`: it cannot be stored under the one that it has."""
        if not self.enabled:
            return
        state = self._partitions[batch.topic_partition]
        if new_sequence:
            state.note_gap(batch.base_sequence)
        self._reconsider(state)

    def split(self, batch: ProducerBatch, children: list[ProducerBatch]) -> None:
        """The children go into the queue in its place."""
        state = self._partitions[batch.topic_partition]
        state.replace(batch, children)
        if self.enabled:
            self._reconsider(state)

    def failed(self, batch: ProducerBatch, *, in_doubt: bool) -> None:
        """The batch will not be sent again. `in_doubt`: it may be stored, or its request is still open."""
        state = self._partitions[batch.topic_partition]
        was_pending = batch in state.pending
        state.remove(batch)
        if not was_pending:  # it has no sequence, or is abandoned
            return
        if in_doubt:
            state.unresolved = True
        else:
            state.note_gap(batch.base_sequence)
        self._reconsider(state)

    def answered_late(self, batch: ProducerBatch) -> None:
        """The request of a batch that had failed before has ended without a success."""
        state = self._partitions[batch.topic_partition]
        state.remove(batch)
        if self.enabled:
            self._reconsider(state)

    def take_abandoned(self) -> list[ProducerBatch]:
        """Batches that may be stored and cannot keep their sequences: to be failed by the caller. Each only once."""
        abandoned, self._abandoned = self._abandoned, []
        return abandoned

    def is_in_doubt(self, batch: ProducerBatch) -> bool:
        return may_be_stored(self._partitions[batch.topic_partition], batch)

    def is_head(self, batch: ProducerBatch) -> bool:
        state = self._partitions[batch.topic_partition]
        # Behind a gap of its transaction, the broker is expected to miss records before the batch.
        return state.is_head(batch) and not (state.transactional and state.gap is not None)

    def violations(self) -> list[str]:
        """What does not hold in the states of the partitions, though it should."""
        return [words for state in self for words in violations(state, self._in_flight_max, idempotent=self.enabled)]

    # --- after a failure

    def _reconsider(self, state: PartitionState) -> None:
        """Something has failed, or a request has ended since: the partition's next state."""
        if state.unresolved and not state.pending and not state.on_wire:
            state.resolve()
        if may_begin_again(state):
            self._begin_again(state)
        elif state.on_wire:
            state.move(DRAINING)
        elif state.gap is not None or state.unresolved:
            state.move(REPAIRING)
        else:
            state.move(PROBING)

    def _begin_again(self, state: PartitionState) -> None:
        """Go on under the next epoch, as soon as there is one."""
        if state.id_and_epoch == self.id_and_epoch:
            if self._transactions is not None:
                self._await_end_of_transaction(state)
                return
            self._next_epoch()
        if self.id_and_epoch == NO_PRODUCER_ID:
            state.move(AWAITING_EPOCH)
            return
        self._abandoned += [batch for batch in state.pending if may_be_stored(state, batch)]
        state.pending = [batch for batch in state.pending if not may_be_stored(state, batch)]
        state.in_doubt = frozenset()
        state.begin(self.id_and_epoch)

    def _await_end_of_transaction(self, state: PartitionState) -> None:
        """A record of the transaction is missing, so it will be aborted with all that is pending. Only brokers change
        its epoch."""
        self._abandoned += state.pending
        state.pending.clear()
        state.in_doubt = frozenset()
        state.move(AWAITING_EPOCH)
