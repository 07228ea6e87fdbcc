"""PartitionState: the state machine of one topic-partition in an idempotent producer, and its invariants.

It determines which batches may be sent. A batch is pending if it has a sequence and is neither acknowledged nor failed.
The states are the members of `Phase`:

    phase            batches that may be sent              left when
    PROBING          one at a time: the oldest pending     it is stored and no batch is pending -> PIPELINED
                     batch or, if none, a new one
    PIPELINED        new ones, up to max.in.flight         a batch fails or is retried, the connection or the topic's id
                                                           changes, or the last records are old -> PROBING or DRAINING
    DRAINING         none                                  no request is in flight -> PROBING or REPAIRING
    REPAIRING        one at a time: the oldest pending     all batches before the gap are acknowledged or failed
                     batch, if it is before the gap        -> PROBING, under the next epoch if records are missing
    AWAITING_EPOCH   none                                  a broker has assigned a producer id, or the transaction has
                                                           ended -> PROBING

A partition is PROBING at first, after it has recovered from a failure, after each change of the connection, the leader,
the topic's id or the epoch, and after a pause or records with old timestamps. It then has only one request in flight at
a time, until a request has succeeded.

Records can be missing from the log for two reasons:

- Gap: brokers will never store a certain sequence, because its records were permanently rejected, or were rejected
  under the current epoch. The gap begins with the first such sequence, and brokers reject all sequences after it.
- Unresolved sequence: a batch has failed although a broker may have stored it. If a later batch is stored, the failed
  batch was stored, too. Otherwise its sequences count as missing, which is also a gap.

If there is a gap, the pending batches before it are completed first. Then the batches behind it get new sequences,
which begin at 0 under the next epoch (KIP-360). By then, all of them were rejected, and none of the partition's
requests is in flight. A batch behind the gap that may be stored is not sent again (see idempotence.py).

Sender thread only.
"""

from __future__ import annotations

from enum import Enum
from itertools import pairwise
from uuid import UUID

from spark_kafka_sink.client.producer_ids import NO_PRODUCER_ID, ProducerIdAndEpoch
from spark_kafka_sink.client.topic_partition import TopicPartition
from spark_kafka_sink.client.versions import NodeApiVersions
from spark_kafka_sink.errors import IllegalStateError
from spark_kafka_sink.producer.batching.batch import ProducerBatch
from spark_kafka_sink.records import sequences
from spark_kafka_sink.records.sequences import is_after

ConnectionIdentity = NodeApiVersions
"""Identifies a connection to a node, because each connection has its own NodeApiVersions object. Compare with `is`."""


class Phase(Enum):
    """State of a topic-partition, which determines the batches that may be sent (see the module's docstring)."""

    PROBING = "probing"
    PIPELINED = "pipelined"
    DRAINING = "draining"
    REPAIRING = "repairing"
    AWAITING_EPOCH = "awaiting an epoch"


_NO_BATCHES: frozenset[ProducerBatch] = frozenset()  # shared by all partitions, of which there may be ten thousand
PROBING, PIPELINED, DRAINING, REPAIRING, AWAITING_EPOCH = Phase
TRANSITIONS: dict[Phase, frozenset[Phase]] = {
    PROBING: frozenset({PIPELINED, DRAINING, REPAIRING, AWAITING_EPOCH}),
    PIPELINED: frozenset({PROBING, DRAINING, AWAITING_EPOCH}),
    DRAINING: frozenset({PROBING, REPAIRING, AWAITING_EPOCH}),
    REPAIRING: frozenset({PROBING, DRAINING, AWAITING_EPOCH}),
    AWAITING_EPOCH: frozenset({PROBING}),
}


class PartitionState:
    """The phase, the pending and in-flight batches, and the sequences of one topic-partition.

    Attributes that are declared without a value are set before they are first read.
    """

    __slots__ = (
        "confirmed_connection",
        "confirmed_topic_id",
        "gap_start",
        "has_unresolved_sequence",
        "id_and_epoch",
        "in_doubt_batches",
        "in_flight_batches",
        "in_flight_node_id",
        "is_transactional",
        "last_acked_sequence",
        "last_sent_timestamp_ms",
        "next_sequence",
        "pending_batches",
        "phase",
        "topic_partition",
    )

    def __init__(self, topic_partition: TopicPartition, *, is_transactional: bool = False) -> None:
        self.topic_partition = topic_partition
        self.is_transactional = is_transactional
        self.in_flight_batches: dict[ProducerBatch, int] = {}
        """The batches that are part of a request in flight, each with the id of the node that the request was sent to.
        A batch may have failed in the meantime."""
        self.in_flight_node_id = -1
        """The id of the node that all requests in flight were sent to."""
        self.phase = PROBING
        self.confirmed_connection: ConnectionIdentity | None
        """The connection on which a request has succeeded. Set by `confirm_pipelining`; valid only while PIPELINED."""
        self.confirmed_topic_id: UUID | None
        """The topic's id in the metadata when that request was sent; None if it was unknown."""
        self.last_sent_timestamp_ms: float
        """The newest timestamp of the batch that was sent last, but at most the time at which it was sent (Unix time).

        The broker regards the producer as idle since then. In a transaction, it is the time at which the batch was
        sent, because brokers do not forget a producer during a transaction. Set by `Idempotence.admit`.
        """
        self.pending_batches: list[ProducerBatch] = []
        """The batches that have a sequence and are neither acknowledged nor failed, in sequence order."""
        self.in_doubt_batches = _NO_BATCHES
        """The batches that may be stored, but are neither acknowledged nor failed."""
        self.gap_start: int | None = None
        """The first sequence that no broker will ever store; None if there is no gap."""
        self.has_unresolved_sequence = False
        """Whether a batch has failed that may be stored nevertheless.

        Reset by `resolve_sequences` and `start_sequences`.
        """
        self.id_and_epoch = NO_PRODUCER_ID
        """The identity under which the sequences were assigned."""
        self.next_sequence: int
        """The sequence of the next new batch; set by `start_sequences`."""
        self.last_acked_sequence: int
        """The last sequence that was acknowledged; -1 until a batch is acknowledged. Set by `start_sequences`."""

    def __repr__(self) -> str:
        return (
            f"PartitionState({self.topic_partition}, {self.phase.value}, {len(self.pending_batches)} pending, "
            f"{len(self.in_flight_batches)} in flight, gap={self.gap_start}, unresolved={self.has_unresolved_sequence})"
        )

    def transition_to(self, phase: Phase) -> None:
        """Change the phase. Do nothing if the partition is already in this phase.

        Raise IllegalStateError if TRANSITIONS does not allow the change.
        """
        if phase is self.phase:
            return
        if phase not in TRANSITIONS[self.phase]:
            raise IllegalStateError(f"{self!r} cannot move to the state {phase.value}.")
        self.phase = phase

    def confirm_pipelining(self, connection: ConnectionIdentity, topic_id: UUID | None) -> None:
        """Allow several requests in flight from now on. PROBING -> PIPELINED.

        Call this when a request has succeeded on this connection, under this topic id, and no batch is pending.
        """
        self.transition_to(PIPELINED)
        self.confirmed_connection = connection
        self.confirmed_topic_id = topic_id

    def start_sequences(self, id_and_epoch: ProducerIdAndEpoch) -> None:
        """Start the sequences at 0, and give new sequences to the pending batches. The phase becomes PROBING.

        `id_and_epoch`: a producer identity under which the partition has not had any sequences yet.
        """
        self.transition_to(PROBING)
        self.id_and_epoch = id_and_epoch
        self.next_sequence = 0
        self.last_acked_sequence = -1
        self.gap_start = None
        self.has_unresolved_sequence = False
        for batch in self.pending_batches:
            self._assign_sequence(batch)

    def add_new_batch(self, batch: ProducerBatch) -> None:
        """Assign the next sequence to a new batch and add it to the pending batches."""
        self._assign_sequence(batch)
        self.pending_batches.append(batch)

    def remove_pending(self, batch: ProducerBatch) -> None:
        """Remove a batch that was acknowledged or has failed. Do nothing if it is not pending."""
        if self.pending_batches and self.pending_batches[0] is batch:  # nearly always
            del self.pending_batches[0]
        elif batch in self.pending_batches:
            self.pending_batches.remove(batch)
        if self.in_doubt_batches:
            self.in_doubt_batches -= {batch}

    def replace(self, batch: ProducerBatch, children: list[ProducerBatch]) -> None:
        """Replace a split batch with its children. If the batch is in doubt, so are the children."""
        if batch in self.pending_batches:
            index = self.pending_batches.index(batch)
            self.pending_batches[index : index + 1] = children
        if batch in self.in_doubt_batches:
            self.in_doubt_batches = self.in_doubt_batches - {batch} | {*children}

    def update_last_acked_sequence(self, last_sequence: int) -> None:
        """Record that the broker has stored all sequences up to `last_sequence`."""
        if self.last_acked_sequence < 0 or is_after(last_sequence, self.last_acked_sequence):
            self.last_acked_sequence = last_sequence

    def record_failure(self, batch: ProducerBatch, *, in_doubt: bool) -> None:
        """Record that a pending batch has failed.

        `in_doubt`: whether a broker may have stored the batch. If so, its sequence is unresolved. If not, its sequence
        is part of a gap.
        """
        if in_doubt:
            self.has_unresolved_sequence = True
        else:
            self.extend_gap(batch.base_sequence)

    def extend_gap(self, sequence: int) -> None:
        """Record that no broker will ever store `sequence`. The gap begins there, unless it already begins earlier."""
        if self.gap_start is None or is_after(self.gap_start, sequence):
            self.gap_start = sequence

    def resolve_sequences(self) -> None:
        """Decide whether the unresolved sequences are a gap. No batch may be pending or in flight.

        They count as one unless a batch after them was acknowledged. The gap then begins after the last acknowledged
        sequence.
        """
        self.has_unresolved_sequence = False
        first_unacked_sequence = sequences.increment(self.last_acked_sequence, 1)
        if first_unacked_sequence != self.next_sequence:
            self.extend_gap(first_unacked_sequence)

    def is_head(self, batch: ProducerBatch) -> bool:
        """Return whether a batch is the oldest pending batch."""
        return bool(self.pending_batches) and self.pending_batches[0] is batch

    def is_before_gap(self, batch: ProducerBatch) -> bool:
        """Return whether brokers may still store a pending batch, because no earlier sequence is missing for good."""
        return self.gap_start is None or is_after(self.gap_start, batch.base_sequence)

    def _assign_sequence(self, batch: ProducerBatch) -> None:
        sequence = self.next_sequence
        batch.set_producer_state(*self.id_and_epoch, sequence, is_transactional=self.is_transactional)
        self.next_sequence = sequences.increment(sequence, batch.record_count)


def find_violations(partition_state: PartitionState, max_in_flight: int, *, idempotent: bool) -> list[str]:
    """Return descriptions of the invariants that a partition's state violates.

    Only tests call this: they check the state after every step.

    `idempotent`: whether the producer assigns sequences. If it does not, only two invariants apply.
    """
    invariants = {
        "at most max.in.flight requests are in flight": len(partition_state.in_flight_batches) <= max_in_flight,
        "all requests in flight are to one node": set(partition_state.in_flight_batches.values())
        <= {partition_state.in_flight_node_id},
    }
    if idempotent:
        invariants |= _check_any_phase(partition_state) | _CHECKS_BY_PHASE[partition_state.phase](partition_state)
    return [f"{partition_state!r}: violated: {invariant}" for invariant, holds in invariants.items() if not holds]


def _check_any_phase(partition_state: PartitionState) -> dict[str, bool]:
    """Return the invariants that apply in every phase: for each description, whether the invariant holds."""
    pending_batches = partition_state.pending_batches
    return {
        "no pending batch is done": not any(batch.is_done for batch in pending_batches),
        "pending batches have one epoch": all(
            (batch.producer_id, batch.producer_epoch) == partition_state.id_and_epoch for batch in pending_batches
        ),
        "sequences ascend": all(
            is_after(later_batch.base_sequence, earlier_batch.last_sequence)
            for earlier_batch, later_batch in pairwise(pending_batches)
        ),
        "the next sequence is free": not pending_batches
        or is_after(partition_state.next_sequence, pending_batches[-1].last_sequence),
        "only pending batches are in doubt": partition_state.in_doubt_batches <= set(pending_batches),
    }


def _has_complete_sequences(partition_state: PartitionState) -> bool:
    return partition_state.gap_start is None and not partition_state.has_unresolved_sequence


def _is_only_head_in_flight(partition_state: PartitionState) -> bool:
    return (
        not partition_state.in_flight_batches
        or list(partition_state.in_flight_batches) == partition_state.pending_batches[:1]
    )


def _find_batches_before_gap(partition_state: PartitionState) -> list[ProducerBatch]:
    """Return the pending batches before the gap, or all pending batches if there is no gap."""
    return [
        batch
        for batch in partition_state.pending_batches
        if partition_state.gap_start is None or is_after(partition_state.gap_start, batch.base_sequence)
    ]


def _check_probing(partition_state: PartitionState) -> dict[str, bool]:
    return {
        "no sequence is missing": _has_complete_sequences(partition_state),
        "only the oldest pending batch is in flight": _is_only_head_in_flight(partition_state),
    }


def _check_pipelined(partition_state: PartitionState) -> dict[str, bool]:
    return {
        "no sequence is missing": _has_complete_sequences(partition_state),
        "all pending batches and no others are in flight": list(partition_state.in_flight_batches)
        == partition_state.pending_batches,
        "no batch is in doubt": not partition_state.in_doubt_batches,
        "a request has succeeded on a connection": partition_state.confirmed_connection is not None,
    }


def _check_draining(partition_state: PartitionState) -> dict[str, bool]:
    return {"a request is in flight": bool(partition_state.in_flight_batches)}


def _check_repairing(partition_state: PartitionState) -> dict[str, bool]:
    return {
        "a sequence may be missing": not _has_complete_sequences(partition_state),
        "only the oldest pending batch is in flight": _is_only_head_in_flight(partition_state),
        "a pending batch is before the gap": bool(_find_batches_before_gap(partition_state)),
    }


def _check_awaiting_epoch(partition_state: PartitionState) -> dict[str, bool]:
    return {
        "there is a gap": partition_state.gap_start is not None,
        "no pending batch is before the gap": not _find_batches_before_gap(partition_state),
        "no request is in flight": not partition_state.in_flight_batches,
    }


_CHECKS_BY_PHASE = {
    PROBING: _check_probing,
    PIPELINED: _check_pipelined,
    DRAINING: _check_draining,
    REPAIRING: _check_repairing,
    AWAITING_EPOCH: _check_awaiting_epoch,
}
