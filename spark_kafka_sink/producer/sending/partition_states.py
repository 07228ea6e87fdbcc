"""PartitionState: a partition's life under an idempotent producer, as a table of states; and what holds in each.

    state            what may leave                        left when
    PROBING          one batch at a time: the oldest       it is stored and none is pending -> PIPELINED
                     pending one, else a new one
    PIPELINED        new batches, up to max.in.flight      a batch fails or is to be sent again, or the connection
                                                           is another one -> PROBING or DRAINING
    DRAINING         nothing                               no request is open any more -> PROBING or REPAIRING
    REPAIRING        one batch at a time: the oldest       all batches before the gap are acknowledged or failed
                     pending one, if before the gap        -> PROBING, under the next epoch if records are missing
    AWAITING_EPOCH   nothing                               a broker has given the producer an id, or the end of a
                                                           transaction has -> PROBING

A pending batch has a sequence, and is neither acknowledged nor failed. A partition is PROBING at its beginning, after
each failure, and with each new connection, leader and epoch: one request at a time is open until one has succeeded.

Records can be missing in the log in two ways. A `gap` is the first sequence that every broker has refused, for good or
under the present epoch: brokers refuse what follows it. A partition is `unresolved` when a batch has failed that may be
stored nevertheless. If the batches after it are stored, so was it. Else its sequences are missing, which is a gap too.

With a gap, the pending batches before it are finished first. Then the others get sequences from 0 under the next epoch
(KIP-360): nothing of the partition is open, and each of them was refused. A batch behind the gap that may be stored is
not sent again; see idempotence.py.

Sender thread only.
"""

from __future__ import annotations

from enum import Enum
from itertools import pairwise

from spark_kafka_sink.client.producer_ids import NO_PRODUCER_ID, ProducerIdAndEpoch
from spark_kafka_sink.client.topic_partition import TopicPartition
from spark_kafka_sink.client.versions import NodeApiVersions
from spark_kafka_sink.errors import IllegalStateError
from spark_kafka_sink.producer.batching.batch import ProducerBatch
from spark_kafka_sink.records import sequences
from spark_kafka_sink.records.sequences import is_after


class Phase(Enum):
    """See the table above."""

    PROBING = "probing"
    PIPELINED = "pipelined"
    DRAINING = "draining"
    REPAIRING = "repairing"
    AWAITING_EPOCH = "awaiting an epoch"


_NONE: frozenset[ProducerBatch] = frozenset()  # one for all partitions, of which there may be ten thousand
PROBING, PIPELINED, DRAINING, REPAIRING, AWAITING_EPOCH = Phase
TRANSITIONS: dict[Phase, frozenset[Phase]] = {
    PROBING: frozenset({PIPELINED, DRAINING, REPAIRING, AWAITING_EPOCH}),
    PIPELINED: frozenset({PROBING, DRAINING, AWAITING_EPOCH}),
    DRAINING: frozenset({PROBING, REPAIRING, AWAITING_EPOCH}),
    REPAIRING: frozenset({PROBING, DRAINING, AWAITING_EPOCH}),
    AWAITING_EPOCH: frozenset({PROBING}),
}


class PartitionState:
    """The batches of one partition: pending, on the wire, in doubt; and their sequences."""

    __slots__ = (
        "confirmed_by",
        "gap",
        "id_and_epoch",
        "in_doubt",
        "last_acked_sequence",
        "next_sequence",
        "on_wire",
        "pending",
        "phase",
        "sent_to",
        "topic_partition",
        "transactional",
        "unresolved",
    )

    def __init__(self, topic_partition: TopicPartition, *, transactional: bool = False) -> None:
        self.topic_partition = topic_partition
        self.transactional = transactional
        self.on_wire: dict[ProducerBatch, int] = {}  # open requests, and their node; also of batches that have failed
        self.sent_to = -1  # the node of those requests: one for all of them
        self.phase = PROBING
        self.confirmed_by: NodeApiVersions | None = None  # while PIPELINED: the connection that has brought a success
        self.pending: list[ProducerBatch] = []  # in the order of their sequences
        self.in_doubt = _NONE  # batches without an outcome that may be stored
        self.gap: int | None = None
        self.unresolved = False
        self.id_and_epoch = NO_PRODUCER_ID
        self.next_sequence = 0
        self.last_acked_sequence = -1

    def __repr__(self) -> str:
        return (
            f"PartitionState({self.topic_partition}, {self.phase.value}, {len(self.pending)} pending, "
            f"{len(self.on_wire)} on the wire, gap={self.gap}, unresolved={self.unresolved})"
        )

    def move(self, phase: Phase) -> None:
        """A move to the same state is allowed and does nothing."""
        if phase is self.phase:
            return
        if phase not in TRANSITIONS[self.phase]:
            raise IllegalStateError(f"{self!r} cannot go on as {phase.value}.")
        self.phase = phase
        self.confirmed_by = None

    def confirm(self, connection: NodeApiVersions) -> None:
        """PROBING -> PIPELINED: this connection has brought a success, and nothing is pending."""
        self.move(PIPELINED)
        self.confirmed_by = connection

    def begin(self, id_and_epoch: ProducerIdAndEpoch) -> None:
        """Sequences from 0 under an epoch that this partition's leader has not seen; pending batches get new ones."""
        self.move(PROBING)
        self.id_and_epoch = id_and_epoch
        self.next_sequence = 0
        self.last_acked_sequence = -1
        self.gap = None
        self.unresolved = False
        for batch in self.pending:
            self._number(batch)

    def add(self, batch: ProducerBatch) -> None:
        """A new batch gets the next sequence."""
        self._number(batch)
        self.pending.append(batch)

    def remove(self, batch: ProducerBatch) -> None:
        """A batch is acknowledged or has failed."""
        if self.pending and self.pending[0] is batch:  # nearly always
            del self.pending[0]
        elif batch in self.pending:
            self.pending.remove(batch)
        if self.in_doubt:
            self.in_doubt -= {batch}

    def replace(self, batch: ProducerBatch, children: list[ProducerBatch]) -> None:
        """The parts of a batch that was split take its place, with its sequences and its doubt."""
        if batch in self.pending:
            at = self.pending.index(batch)
            self.pending[at : at + 1] = children
        if batch in self.in_doubt:
            self.in_doubt = self.in_doubt - {batch} | {*children}

    def acknowledged(self, last_sequence: int) -> None:
        """Note that the broker has stored everything up to this sequence."""
        if self.last_acked_sequence < 0 or is_after(last_sequence, self.last_acked_sequence):
            self.last_acked_sequence = last_sequence

    def note_gap(self, sequence: int) -> None:
        """Note that a batch that begins with this sequence will never be stored under it."""
        if self.gap is None or is_after(self.gap, sequence):
            self.gap = sequence

    def resolve(self) -> None:
        """Find the gap, when nothing is pending or in flight: a sequence without an acknowledgement is missing then."""
        self.unresolved = False
        acknowledged = sequences.increment(self.last_acked_sequence, 1)
        if acknowledged != self.next_sequence:
            self.note_gap(acknowledged)

    def is_head(self, batch: ProducerBatch) -> bool:
        return bool(self.pending) and self.pending[0] is batch

    def _number(self, batch: ProducerBatch) -> None:
        sequence = self.next_sequence
        batch.set_producer_state(*self.id_and_epoch, sequence, transactional=self.transactional)
        self.next_sequence = sequences.increment(sequence, batch.record_count)


def violations(state: PartitionState, in_flight_max: int, *, idempotent: bool) -> list[str]:
    """What should hold in the partition's state and does not. Tests and the schedule explorer ask after each step."""
    holds = {
        "at most max.in.flight requests are open": len(state.on_wire) <= in_flight_max,
        "all requests are at one node": set(state.on_wire.values()) <= {state.sent_to},
    }
    if idempotent:
        holds |= _always(state) | _BY_PHASE[state.phase](state)
    return [f"{state!r}: not so: {words}" for words, is_so in holds.items() if not is_so]


def _always(state: PartitionState) -> dict[str, bool]:
    pending = state.pending
    return {
        "pending batches have no outcome": not any(batch.is_done for batch in pending),
        "pending batches are of one epoch": all(
            (batch.producer_id, batch.producer_epoch) == state.id_and_epoch for batch in pending
        ),
        "sequences ascend": all(is_after(two.base_sequence, one.last_sequence) for one, two in pairwise(pending)),
        "the next sequence is free": not pending or is_after(state.next_sequence, pending[-1].last_sequence),
        "only pending batches are in doubt": state.in_doubt <= set(pending),
    }


def _is_in_order(state: PartitionState) -> bool:
    return state.gap is None and not state.unresolved


def _only_the_head_is_on_wire(state: PartitionState) -> bool:
    return not state.on_wire or list(state.on_wire) == state.pending[:1]


def _before_gap(state: PartitionState) -> list[ProducerBatch]:
    return [batch for batch in state.pending if state.gap is None or is_after(state.gap, batch.base_sequence)]


def _while_probing(state: PartitionState) -> dict[str, bool]:
    return {
        "sequences are in order": _is_in_order(state),
        "only the oldest pending batch is on the wire": _only_the_head_is_on_wire(state),
    }


def _while_pipelined(state: PartitionState) -> dict[str, bool]:
    return {
        "sequences are in order": _is_in_order(state),
        "what is pending is on the wire, and nothing else is": list(state.on_wire) == state.pending,
        "nothing is in doubt": not state.in_doubt,
        "a connection has brought a success": state.confirmed_by is not None,
    }


def _while_draining(state: PartitionState) -> dict[str, bool]:
    return {"a request is open": bool(state.on_wire)}


def _while_repairing(state: PartitionState) -> dict[str, bool]:
    return {
        "records may be missing": not _is_in_order(state),
        "only the oldest pending batch is on the wire": _only_the_head_is_on_wire(state),
        "a pending batch is before the gap": bool(_before_gap(state)),
    }


def _while_awaiting_epoch(state: PartitionState) -> dict[str, bool]:
    return {
        "there is a gap": state.gap is not None,
        "no pending batch is before it": not _before_gap(state),
        "no request is open": not state.on_wire,
    }


_BY_PHASE = {
    PROBING: _while_probing,
    PIPELINED: _while_pipelined,
    DRAINING: _while_draining,
    REPAIRING: _while_repairing,
    AWAITING_EPOCH: _while_awaiting_epoch,
}
