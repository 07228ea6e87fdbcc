"""Idempotence.acknowledged is off_wire, confirm and stored in one step: the same comes of both, after whatever."""

from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st

from spark_kafka_sink.producer.batching.batch import ProducerBatch, TopicPartition
from spark_kafka_sink.producer.sending.idempotence import Idempotence, Identity, PartitionState

TP = TopicPartition("t", 0)
CONNECTION = object()
SLOTS = ("confirmed_by", "gap", "identity", "last_acked_sequence", "next_sequence", "unresolved")


class Run:
    """The same steps, with the answers of success given in one way or the other."""

    def __init__(self, *, at_once: bool, enabled: bool) -> None:
        self.at_once = at_once
        self.made = Idempotence(enabled=enabled, in_flight_max=5, connection_of=lambda node_id: CONNECTION)
        self.made.adopt(Identity(7, 3))
        self.batches: list[ProducerBatch] = []
        self.queue: list[ProducerBatch] = []  # to be sent again

    def send(self, records: int) -> bool:
        batch = self.queue[0] if self.queue else ProducerBatch(TP, created_ms=0, deadline_ms=1e9)
        batch.record_count = batch.record_count or records
        admitted = self.made.admit(batch, 1, 0)
        if admitted:
            self.batches.append(batch)
            del self.queue[:1]
        return admitted

    def step(self, what: str, at: int) -> None:
        if what == "send":
            self.send(at + 1)
            return
        if not self.batches:
            return
        batch = self.batches.pop(at % len(self.batches))
        if what == "success" and self.at_once:
            self.made.acknowledged(batch, CONNECTION)
            return
        self.made.off_wire(batch, in_doubt=what == "doubt")
        if what == "success":
            self.made.confirm(TP, 1)
            self.made.stored(batch)
        elif what == "failure":
            self.made.failed(batch, in_doubt=False)
        else:
            self.made.retried(batch, new_sequence=False)
            self.queue.append(batch)

    def state(self) -> tuple[object, ...]:
        state: PartitionState = self.made.state(TP)
        groups = (state.unsettled, state.on_wire, state.in_doubt)
        sequences = [sorted((batch.producer_epoch, batch.base_sequence) for batch in group) for group in groups]
        return (*(getattr(state, slot) for slot in SLOTS), sequences, self.made.identity)


STEPS = st.tuples(
    st.sampled_from(["send", "send", "success", "success", "retry", "doubt", "failure"]), st.integers(0, 9)
)


@settings(max_examples=60, deadline=None)
@given(steps=st.lists(STEPS, max_size=40), enabled=st.booleans())
def test_a_success_told_at_once_is_the_same_as_told_in_three_steps(steps: list[tuple[str, int]], enabled: bool) -> None:
    runs = [Run(at_once=at_once, enabled=enabled) for at_once in (True, False)]
    for what, at in steps:
        for run in runs:
            run.step(what, at)
        assert runs[0].state() == runs[1].state()
