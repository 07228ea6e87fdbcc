"""Idempotence: who the producer is, the sequences of each partition, and which batch may leave when.

A broker remembers, for each producer id and partition, the epoch and the last five batches. It takes a batch whose
first sequence follows the last one, and answers DUPLICATE to one that it remembers. It has nothing to compare with
when it knows nothing of the producer, and then takes any sequence. All rules below come from these three facts.

`admit` is the gate through which every batch leaves (see partition_queues.DrainGate). A batch may go when

    an identity is known                                            else a producer id is asked for
    the partition's earlier requests are all at the same leader     rule 2: else two logs would be filled at once
    fewer than max.in.flight of them are open, over all brokers     rule 2: the broker remembers five
    none is open, as long as nothing has succeeded since the        rule 1: a broker that knows nothing takes the
      connection, the leader or the identity is new, or since         second although it has refused the first
      something failed
    it is the first of those that are not settled, if it is a retry
    the partition's sequences are in order, if it is new            no gap, no unresolved expiry, no old epoch in flight

When a batch was refused for good, the ones behind it have a gap before them: the broker refuses them as well. Then all
that is before the gap is finished first, and the rest goes on under the next epoch, with sequences from 0 (KIP-360).
That is the only place where a batch that was sent gets another sequence (rule 3): it was refused by every broker that
answered for it, and nothing before it is in flight. A batch behind the gap whose answer was lost is not among them. A
broker that knows the producer has refused it too, but one that has forgotten it (its records were deleted, or were too
old) took it. It is abandoned: the sender fails it, with the words that it may be stored.

A batch that failed in doubt leaves the partition unresolved: nothing new leaves until all is settled. If the records
turn out to be stored, nothing is lost; else the partition goes on under the next epoch, as nothing of it is left.

A partition's state is kept under the topic's name for as long as the producer lives, whatever metadata says of the
topic (rule 4). A topic that was deleted and created again has a log that knows nothing of us, and takes the sequences
as they go on.

Sender thread only.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import NamedTuple

from spark_kafka_sink.producer.batching.batch import ProducerBatch, TopicPartition
from spark_kafka_sink.records import sequences
from spark_kafka_sink.records.sequences import follows

EPOCH_MAX = 32_767


class ProducerIdAndEpoch(NamedTuple):
    producer_id: int
    epoch: int


NO_PRODUCER_ID = ProducerIdAndEpoch(-1, -1)


class PartitionState:
    """What is known of one partition's batches."""

    __slots__ = (
        "confirmed_by",
        "gap",
        "id_and_epoch",
        "in_doubt",
        "last_acked_sequence",
        "next_sequence",
        "on_wire",
        "pending",
        "sent_to",
        "topic_partition",
        "unresolved",
    )

    def __init__(self, topic_partition: TopicPartition) -> None:
        self.topic_partition = topic_partition
        self.id_and_epoch = NO_PRODUCER_ID
        self.next_sequence = 0
        self.last_acked_sequence = -1
        self.pending: list[ProducerBatch] = []  # have a sequence and no outcome, in the order of their sequences
        self.on_wire: dict[ProducerBatch, int] = {}  # and the node; also those that have expired since
        self.sent_to = -1  # the node of those on the wire: one for all of them
        self.in_doubt: set[ProducerBatch] = set()  # pending ones that may be stored
        self.confirmed_by: object = None  # the connection of the last success, if nothing has failed since
        self.gap: int | None = None  # the first sequence that was refused for good
        self.unresolved = False

    def begin(self, id_and_epoch: ProducerIdAndEpoch) -> None:
        """Sequences from 0 under an identity that this partition's leader has not seen."""
        self.id_and_epoch = id_and_epoch
        self.next_sequence = 0
        self.last_acked_sequence = -1
        self.confirmed_by = None
        self.gap = None
        self.unresolved = False

    def is_head(self, batch: ProducerBatch) -> bool:
        return bool(self.pending) and self.pending[0] is batch

    def give_sequence(self, batch: ProducerBatch) -> None:
        """The next one."""
        producer_id, epoch = self.id_and_epoch
        sequence = self.next_sequence
        batch.set_producer_state(producer_id, epoch, sequence)
        self.next_sequence = sequences.add(sequence, batch.record_count)

    def settle(self, batch: ProducerBatch) -> None:
        """It has its outcome."""
        if self.pending and self.pending[0] is batch:  # nearly always
            del self.pending[0]
        elif batch in self.pending:
            self.pending.remove(batch)
        if self.in_doubt:
            self.in_doubt.discard(batch)


# --- the rules, one function each; the first two are asked where some requests of the partition are open


def may_have_another_on_wire(state: PartitionState, connection: object) -> bool:
    """Rule 1: one request at a time, until this very connection has brought a success under this identity."""
    return state.confirmed_by is connection and connection is not None


def may_go_to(state: PartitionState, leader_id: int, in_flight_max: int) -> bool:
    """Rule 2: so many open requests of a partition over all brokers, and all of them at one."""
    return state.sent_to == leader_id and len(state.on_wire) < in_flight_max


def may_begin_again(state: PartitionState) -> bool:
    """Rule 3: may what is pending get new sequences? Only from a gap on, and when nothing before it is left."""
    if state.on_wire or state.gap is None:
        return False
    return all(not follows(state.gap, batch.base_sequence) for batch in state.pending)


def may_be_stored(state: PartitionState, batch: ProducerBatch) -> bool:
    """Rule 3: then it gets no other sequence. Its answer was lost, or says that it may be."""
    return batch in state.in_doubt


def _may_keep_it(state: PartitionState, batch: ProducerBatch) -> bool:
    """A batch that is sent again: with the sequence that it has, when it is its turn."""
    return state.is_head(batch) and (state.gap is None or follows(state.gap, batch.base_sequence))


class _States(dict[TopicPartition, PartitionState]):
    """One for each partition that was ever asked for."""

    def __missing__(self, topic_partition: TopicPartition) -> PartitionState:
        state = self[topic_partition] = PartitionState(topic_partition)
        return state


class Idempotence:
    """See the module's docstring. When idempotence is off, the rules about the open requests still hold."""

    def __init__(self, *, enabled: bool, in_flight_max: int, connection_of: Callable[[int], object]) -> None:
        """`connection_of` gives a node's present connection: an object that is another one after a reconnect."""
        self.enabled = enabled
        self.id_and_epoch = NO_PRODUCER_ID
        self._in_flight_max = in_flight_max
        self.connection = connection_of
        self._partitions = _States()
        self._abandoned: list[ProducerBatch] = []

    # --- the identity

    @property
    def needs_producer_id(self) -> bool:
        return self.enabled and self.id_and_epoch == NO_PRODUCER_ID

    def adopt(self, id_and_epoch: ProducerIdAndEpoch) -> None:
        """A producer id from a broker. Partitions whose sequences had to begin again do so now."""
        self.id_and_epoch = id_and_epoch
        for state in self._partitions.values():
            self._mend(state)

    def _next_epoch(self) -> None:
        """The next epoch, of which no broker need be asked; after the last one another producer id is."""
        if self.id_and_epoch.epoch < EPOCH_MAX:
            self.id_and_epoch = ProducerIdAndEpoch(self.id_and_epoch.producer_id, self.id_and_epoch.epoch + 1)
        else:
            self.id_and_epoch = NO_PRODUCER_ID

    # --- the gate

    def admit(self, batch: ProducerBatch, leader_id: int, now: float) -> bool:
        """May this batch, the first of its partition's queue, be sent now? If so, it is counted as sent."""
        state = self._partitions[batch.topic_partition]
        on_wire = state.on_wire
        if on_wire and not may_go_to(state, leader_id, self._in_flight_max):
            return False
        if self.enabled:
            if on_wire and not may_have_another_on_wire(state, self.connection(leader_id)):
                return False
            if batch.base_sequence < 0:
                if not self._take_sequence(state, batch):
                    return False
            elif not _may_keep_it(state, batch):
                return False
        on_wire[batch] = leader_id
        state.sent_to = leader_id
        return True

    def _take_sequence(self, state: PartitionState, batch: ProducerBatch) -> bool:
        """A new batch gets the next sequence, if there is one to be given now."""
        if self.id_and_epoch == NO_PRODUCER_ID or state.unresolved or state.gap is not None:
            return False
        if state.id_and_epoch is not self.id_and_epoch and state.id_and_epoch != self.id_and_epoch:
            if state.pending or state.on_wire:
                return False
            state.begin(self.id_and_epoch)
        state.give_sequence(batch)
        state.pending.append(batch)
        return True

    # --- what came of the batches

    def state(self, topic_partition: TopicPartition) -> PartitionState:
        return self._partitions[topic_partition]

    def __iter__(self) -> Iterator[PartitionState]:
        return iter(self._partitions.values())

    def off_wire(self, batch: ProducerBatch, *, in_doubt: bool) -> None:
        """The request is over. First of all that is told about a batch after it was admitted."""
        state = self.state(batch.topic_partition)
        state.on_wire.pop(batch, None)
        if in_doubt and self.enabled and batch in state.pending:
            state.in_doubt.add(batch)

    def stored(self, batch: ProducerBatch, connection: object) -> None:
        """The broker at the other end of `connection` has it, perhaps after the batch has expired."""
        state = self._partitions[batch.topic_partition]
        state.confirmed_by = connection
        state.settle(batch)
        if batch.base_sequence < 0 or (batch.producer_id, batch.producer_epoch) != state.id_and_epoch:
            return
        last = batch.last_sequence
        if state.last_acked_sequence < 0 or follows(last, state.last_acked_sequence):
            state.last_acked_sequence = last
        if state.gap is not None or state.unresolved:
            self._mend(state)

    def retried(self, batch: ProducerBatch, *, new_sequence: bool) -> None:
        """It goes back into its queue."""
        state = self.state(batch.topic_partition)
        state.confirmed_by = None
        if new_sequence:
            self._note_gap(state, batch)
        self._mend(state)

    def split(self, batch: ProducerBatch, children: list[ProducerBatch]) -> None:
        """The children stand in its place, with its sequences and its doubts."""
        state = self.state(batch.topic_partition)
        state.confirmed_by = None
        if batch in state.pending:
            at = state.pending.index(batch)
            state.pending[at : at + 1] = children
        if batch in state.in_doubt:
            state.in_doubt.discard(batch)
            state.in_doubt.update(children)
        self._mend(state)

    def failed(self, batch: ProducerBatch, *, in_doubt: bool) -> None:
        """It will not be sent again. `in_doubt`: it may be stored, or its request is still open."""
        state = self.state(batch.topic_partition)
        state.settle(batch)
        state.confirmed_by = None
        if (
            not self.enabled
            or not batch.has_sequence
            or (batch.producer_id, batch.producer_epoch) != state.id_and_epoch
        ):
            return
        if in_doubt:
            state.unresolved = True
        else:
            self._note_gap(state, batch)
        self._mend(state)

    def take_abandoned(self) -> list[ProducerBatch]:
        """Batches that may be stored and cannot keep their sequences: to be failed by the caller. Each is told once."""
        abandoned, self._abandoned = self._abandoned, []
        return abandoned

    def is_in_doubt(self, batch: ProducerBatch) -> bool:
        return may_be_stored(self.state(batch.topic_partition), batch)

    def is_head(self, batch: ProducerBatch) -> bool:
        return self.state(batch.topic_partition).is_head(batch)

    # --- mending

    def _note_gap(self, state: PartitionState, batch: ProducerBatch) -> None:
        if state.gap is None or follows(state.gap, batch.base_sequence):
            state.gap = batch.base_sequence

    def answered_late(self, topic_partition: TopicPartition) -> None:
        """A request of the partition has ended, whose batch had failed before."""
        self._mend(self.state(topic_partition))

    def _mend(self, state: PartitionState) -> None:
        """Go on under a new epoch, once that cannot double anything."""
        if state.on_wire or not self.enabled or (state.gap is None and not state.unresolved):
            return
        if state.unresolved and not state.pending:
            state.unresolved = False
            acknowledged = sequences.add(state.last_acked_sequence, 1)
            if state.gap is None and acknowledged != state.next_sequence:
                state.gap = acknowledged
        if not may_begin_again(state):
            return
        if state.id_and_epoch == self.id_and_epoch:
            self._next_epoch()
        if self.id_and_epoch == NO_PRODUCER_ID:
            return  # adopt() comes back here
        state.begin(self.id_and_epoch)
        self._abandoned += [batch for batch in state.pending if may_be_stored(state, batch)]
        state.pending = [batch for batch in state.pending if not may_be_stored(state, batch)]
        state.in_doubt.clear()
        for batch in state.pending:
            state.give_sequence(batch)
