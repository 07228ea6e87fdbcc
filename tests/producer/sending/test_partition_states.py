"""PartitionState: only the transitions of the table are made, and the invariants of each state are checked."""

from __future__ import annotations

import re
from collections.abc import Callable
from itertools import product
from pathlib import Path
from random import Random

import pytest

from spark_kafka_sink.client.producer_ids import MAX_EPOCH, ProducerIdAndEpoch
from spark_kafka_sink.client.topic_partition import TopicPartition
from spark_kafka_sink.client.versions import NodeApiVersions
from spark_kafka_sink.errors import IllegalStateError
from spark_kafka_sink.producer.batching.batch import ProducerBatch
from spark_kafka_sink.producer.sending import partition_states
from spark_kafka_sink.producer.sending.partition_states import (
    AWAITING_EPOCH,
    DRAINING,
    PIPELINED,
    PROBING,
    REPAIRING,
    PartitionState,
    Phase,
    find_violations,
)
from tests.producer.sending.checked_idempotence import CheckedIdempotence

TP = TopicPartition("t", 0)
TRANSITIONS = partition_states.TRANSITIONS
INTERNALS = Path(__file__).parents[3] / "docs" / "internals.md"
ID = ProducerIdAndEpoch(7, 0)


def create_batch(records: int = 1) -> ProducerBatch:
    batch = ProducerBatch(TP, oldest_row_arrival_ms=0, deadline_ms=1_000)
    batch.record_count = records
    return batch


@pytest.mark.parametrize(("before", "after"), list(product(Phase, Phase)), ids=lambda phase: phase.value)
def test_rejects_transition_that_is_not_in_the_table(before: Phase, after: Phase) -> None:
    state = PartitionState(TP)
    state.phase = before
    if after is before or after in TRANSITIONS[before]:
        state.transition_to(after)
        assert state.phase is after
    else:
        with pytest.raises(IllegalStateError, match=f"t-0, {before.value}.*cannot move to the state {after.value}"):
            state.transition_to(after)


def test_internals_page_shows_the_transitions() -> None:
    rows = re.findall(r"^\| `(\w+)` \|.*\| ([^|]*) \|$", INTERNALS.read_text(), re.MULTILINE)
    documented = {name: set(re.findall(r"`(\w+)`", after)) for name, after in rows if name in Phase.__members__}
    assert documented == {phase.name: {after.name for after in TRANSITIONS[phase]} for phase in Phase}


def test_finds_no_gap_when_everything_is_acknowledged_at_sequence_wrap() -> None:
    state = PartitionState(TP)
    state.has_unresolved_sequence, state.last_acked_sequence, state.next_sequence = True, 2**31 - 1, 0
    state.resolve_sequences()
    assert (state.has_unresolved_sequence, state.gap_start) == (False, None)


def test_finds_the_gap_behind_the_last_acknowledged_sequence() -> None:
    state = PartitionState(TP)
    state.has_unresolved_sequence, state.last_acked_sequence, state.next_sequence = True, 2**31 - 1, 1
    state.resolve_sequences()
    assert (state.has_unresolved_sequence, state.gap_start) == (False, 0)


class Walk:
    """A random sequence of all events that a partition's batches can have. Each step checks all invariants."""

    def __init__(self, seed: int) -> None:
        self.random = Random(seed)
        self.connections: dict[int, NodeApiVersions] = {1: NodeApiVersions("b", {}), 2: NodeApiVersions("b", {})}
        self.leader = 1
        self.idempotence = CheckedIdempotence(
            enabled=True,
            max_in_flight=3,
            get_connection_identity=self.connections.get,
            get_topic_id=lambda topic: None,
            get_unix_time_ms=lambda: 0,
        )
        self.idempotence.set_producer_id_and_epoch(ProducerIdAndEpoch(7, MAX_EPOCH - 3))
        self.state = self.idempotence.partition_state(TP)
        self.queue: list[ProducerBatch] = []  # batches to retry, in the order of their sequences
        self.failed_in_flight: list[ProducerBatch] = []
        self.transitions: set[tuple[Phase, Phase]] = set()

    def steps(self, count: int) -> set[tuple[Phase, Phase]]:
        actions: list[Callable[[], None]] = [self.send, self.send, self.send, self.store, self.store, self.store]
        actions += [
            self.retry,
            self.retry_in_doubt,
            self.reject,
            self.retry_with_new_sequence,
            self.split,
            self.expire,
            self.fail_late,
        ]
        actions += [self.reconnect, self.move_leader, self.set_producer_id, self.store_late]
        for _ in range(count):
            before = self.state.phase
            self.random.choice(actions)()
            if self.state.phase is not before:
                self.transitions.add((before, self.state.phase))
            for batch in self.idempotence.take_abandoned_batches():
                self.forget(batch)
                self.idempotence.handle_failed_batch(batch, in_doubt=True)
        return self.transitions

    # --- events

    def send(self) -> None:
        batch = self.queue[0] if self.queue else create_batch(self.random.randint(1, 3))
        if self.idempotence.admit(batch, self.leader):
            self.forget(batch)

    def store(self) -> None:
        if (batch := self.end_request()) is not None:
            self.idempotence.handle_stored_batch(batch, self.connections[self.leader], None)

    def retry(self) -> None:
        self.retry_batch(in_doubt=False, needs_new_sequence=False)

    def retry_in_doubt(self) -> None:
        self.retry_batch(in_doubt=True, needs_new_sequence=False)

    def retry_with_new_sequence(self) -> None:
        head = self.state.pending_batches[0] if self.state.pending_batches else None
        if head in self.state.in_flight_batches and head not in self.state.in_doubt_batches:
            self.retry_batch(in_doubt=False, needs_new_sequence=True, batch=head)

    def reject(self) -> None:
        if (batch := self.end_request()) is not None:
            self.idempotence.handle_failed_batch(batch, in_doubt=batch in self.state.in_doubt_batches)

    def split(self) -> None:
        if (batch := self.end_request()) is None or batch.record_count == 1:
            if batch is not None:
                self.idempotence.handle_stored_batch(batch, self.connections[self.leader], None)
            return
        parts = [create_batch(1), create_batch(batch.record_count - 1)]
        for part, sequence in zip(parts, (batch.base_sequence, batch.base_sequence + 1), strict=True):
            part.set_producer_state(batch.producer_id, batch.producer_epoch, sequence)
        self.queue += parts
        self.idempotence.handle_split(batch, parts)
        self.sort()

    def expire(self) -> None:
        if not self.state.pending_batches:
            return
        batch = self.random.choice(self.state.pending_batches)
        if batch in self.state.in_flight_batches:
            self.failed_in_flight.append(batch)
        self.forget(batch)
        self.idempotence.handle_failed_batch(
            batch, in_doubt=batch in self.state.in_flight_batches or batch in self.state.in_doubt_batches
        )

    def fail_late(self) -> None:
        if self.failed_in_flight:
            batch = self.failed_in_flight.pop(0)
            self.idempotence.handle_failed_attempt(batch, in_doubt=True)
            self.idempotence.handle_late_failure(batch)

    def store_late(self) -> None:
        if self.failed_in_flight:
            batch = self.failed_in_flight.pop(0)
            self.idempotence.handle_stored_batch(batch, self.connections[self.leader], None)

    def reconnect(self) -> None:
        if not self.state.in_flight_batches:
            self.connections[self.leader] = NodeApiVersions("b", {})

    def move_leader(self) -> None:
        self.leader = 3 - self.leader

    def set_producer_id(self) -> None:
        if self.idempotence.needs_producer_id:
            self.idempotence.set_producer_id_and_epoch(ProducerIdAndEpoch(self.random.randint(8, 1000), MAX_EPOCH - 3))

    # --- helpers

    def end_request(self) -> ProducerBatch | None:
        open_requests = [batch for batch in self.state.in_flight_batches if batch not in self.failed_in_flight]
        if not open_requests:
            return None
        batch = self.random.choice(open_requests)
        self.idempotence.handle_failed_attempt(batch, in_doubt=False)
        return batch

    def retry_batch(self, *, in_doubt: bool, needs_new_sequence: bool, batch: ProducerBatch | None = None) -> None:
        open_requests = [batch for batch in self.state.in_flight_batches if batch not in self.failed_in_flight]
        if batch is None and open_requests:
            batch = self.random.choice(open_requests)
        if batch is not None:
            self.idempotence.handle_failed_attempt(batch, in_doubt=in_doubt)
            self.queue.append(batch)
            self.idempotence.handle_retry(batch, needs_new_sequence=needs_new_sequence)
            self.sort()

    def sort(self) -> None:
        self.queue = [batch for batch in self.state.pending_batches if batch in self.queue]

    def forget(self, batch: ProducerBatch) -> None:
        if batch in self.queue:
            self.queue.remove(batch)


@pytest.mark.parametrize("seed", range(5))
def test_invariants_hold_and_partition_recovers_in_random_walks(seed: int) -> None:
    walk = Walk(seed)
    walk.steps(3_000)
    for _ in range(200):
        for step in (walk.fail_late, walk.set_producer_id, walk.send, walk.store):
            walk.steps(0)
            step()
            for batch in walk.idempotence.take_abandoned_batches():
                walk.forget(batch)
    assert walk.state.phase is PIPELINED
    assert not walk.queue


def test_random_walks_make_every_transition_of_the_table() -> None:
    transitions = {transition for seed in range(20) for transition in Walk(seed).steps(3_000)}
    assert transitions == {(before, after) for before, allowed in TRANSITIONS.items() for after in allowed}


# --- violations of each invariant


def create_state_with_two_requests() -> PartitionState:
    """Create a state in PIPELINED with two batches in flight."""
    state = PartitionState(TP)
    state.start_sequences(ID)
    state.confirm_pipelining(NodeApiVersions("b", {}), None)
    for _ in range(2):
        batch = create_batch()
        state.add_new_batch(batch)
        state.in_flight_batches[batch] = state.in_flight_node_id = 1
    assert not find_violations(state, 2, idempotent=True)
    return state


def create_state_in_phase(phase: Phase, **fields: object) -> PartitionState:
    state = create_state_with_two_requests()
    state.phase = phase
    for name, value in fields.items():
        setattr(state, name, value)
    return state


def create_state_with_done_batch() -> PartitionState:
    state = create_state_with_two_requests()
    state.pending_batches[0].fail(ValueError("no"))
    return state


def create_state_with_two_epochs() -> PartitionState:
    state = create_state_with_two_requests()
    state.pending_batches[1].set_producer_state(7, 1, 1)
    return state


STATES_BY_VIOLATION: dict[str, Callable[[], PartitionState]] = {
    "to one node": lambda: create_state_in_phase(PIPELINED, in_flight_node_id=2),
    "no pending batch is done": create_state_with_done_batch,
    "have one epoch": create_state_with_two_epochs,
    "sequences ascend": lambda: create_state_in_phase(
        PIPELINED, pending_batches=create_state_with_two_requests().pending_batches[::-1]
    ),
    "the next sequence is free": lambda: create_state_in_phase(PIPELINED, next_sequence=1),
    "only pending batches are in doubt": lambda: create_state_in_phase(PIPELINED, in_doubt_batches={create_batch()}),
    "no sequence is missing": lambda: create_state_in_phase(PIPELINED, gap_start=0),
    "all pending batches and no others are in flight": lambda: create_state_in_phase(PIPELINED, in_flight_batches={}),
    "no batch is in doubt": lambda: create_state_in_phase(PIPELINED, in_doubt_batches={create_batch()}),
    "a request has succeeded on a connection": lambda: create_state_in_phase(PIPELINED, confirmed_connection=None),
    "only the oldest pending batch is in flight": lambda: create_state_in_phase(PROBING),
    "a request is in flight": lambda: create_state_in_phase(DRAINING, in_flight_batches={}),
    "a sequence may be missing": lambda: create_state_in_phase(REPAIRING),
    "a pending batch is before the gap": lambda: create_state_in_phase(REPAIRING, gap_start=0),
    "there is a gap": lambda: create_state_in_phase(AWAITING_EPOCH),
    "no pending batch is before the gap": lambda: create_state_in_phase(AWAITING_EPOCH, gap_start=1),
    "no request is in flight": lambda: create_state_in_phase(AWAITING_EPOCH, gap_start=0),
}


@pytest.mark.parametrize("invariant", list(STATES_BY_VIOLATION))
def test_names_violated_invariant(invariant: str) -> None:
    assert any(invariant in found for found in find_violations(STATES_BY_VIOLATION[invariant](), 2, idempotent=True))


def test_names_too_many_requests_in_flight_without_idempotence() -> None:
    (found,) = find_violations(create_state_with_two_requests(), 1, idempotent=False)
    assert "at most max.in.flight requests are in flight" in found
