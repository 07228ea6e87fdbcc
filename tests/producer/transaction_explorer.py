"""The schedule explorer for transactions: producers, faults and other processes are drawn from a seed.

    python -m tests.producer.transaction_explorer --seeds 0:5000      prints the seeds that fail
    python -m tests.producer.transaction_explorer --seed 17           replays one seed and prints its schedule

One or two transactional ids write to the same partitions, in transactions of version 1 or 2. Producers are killed, or
replaced while they continue as zombies. Other producers end the transactions that they have prepared, and are killed
and replaced, too. In half of the runs a second thread calls send() while the first one writes, commits or aborts. After
each round of a sender, the invariants of each partition's state hold.

After each run, a read_committed reader finds:

- A transaction and its offsets are visible completely if its commit succeeded, and not at all if it was aborted or its
  commit was never requested or has failed with an error that rules it out. If the outcome is unknown, either is
  correct.
- Each partition contains the records of a transactional id once, in the order in which they were sent.

No transaction is left open, and the next producer of each id can write. A producer continues after the faults, unless
another one has taken over or its transaction timed out. All memory is released, and no socket, thread or descriptor
is left.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from functools import partial
from random import Random

from spark_kafka_sink.broker.transaction_coordinator import ProducerIdentity
from spark_kafka_sink.producer.producer import KafkaProducer
from spark_kafka_sink.requests.transaction_identity import TransactionIdentity
from tests.explorer_command import run_command
from tests.fake_system import FakeSystem
from tests.history import History, Outcome, Place, Write, offsets_anomalies
from tests.leak_check import assert_no_leaks
from tests.producer.explorer import check_partition_queues
from tests.producer.schedules import TOPIC
from tests.producer.second_caller import serialize_paused
from tests.producer.transaction_schedules import TransactionSchedule
from tests.producer.transactional_writers import (
    Committer,
    RecordCounter,
    TransactionalWriter,
    WrittenTransaction,
    build_group_id,
)
from tests.producer.virtual_time import create_simulated_producer, get_loop, get_reserved_bytes, get_sender
from tests.rare_branches import TRANSACTION_BRANCHES
from tests.simulated_cluster import SimulatedCluster

LONG_TIMEOUT_MS = 60_000
SHORT_TIMEOUT_MS = 3_000
LATEST_MS = 15_000
"""Longest delay between the last fault and the execution of a request."""


class TransactionRun:
    def __init__(self, seed: int) -> None:
        self.random = random = Random(seed)
        self.later_random = Random(f"{seed}, and what came later")
        self.system = FakeSystem(latency_ms=random.choice((0.5, 2, 20)))
        self.partitions = random.randint(1, 3)
        self.ids = ("x", "y")[: random.randint(1, 2)]
        self.cluster = SimulatedCluster(
            self.system,
            nodes=random.randint(1, 3),
            topics={TOPIC: self.partitions},
            seed=seed,
            first_sequence_must_be_zero=seed % 4 == 3,
            transaction_version=random.randint(1, 2),
        )
        self.cluster.executes_after_disconnect = True
        self.timeout_ms = random.choice((LONG_TIMEOUT_MS, LONG_TIMEOUT_MS, SHORT_TIMEOUT_MS))
        self.pauses_ms = random.choice(((0.1, 3, 40, 400), (300, 1500)))
        self.has_second_callers = random.random() < 0.5
        self.schedule = TransactionSchedule(random, self.cluster, self.ids, self.partitions)
        self.record_counter = RecordCounter()
        self.producers: list[KafkaProducer] = []
        self.writers: list[TransactionalWriter] = []
        self.committers: list[Committer] = []
        self.timed_out_ids: set[str] = set()
        """Transactional ids with a transaction that brokers have aborted after its timeout."""
        self.superseded_identities: set[tuple[int, int]] = set()
        """Producer ids and epochs that were current when another producer requested a producer id.

        The other producer may be older, if it repeats its request or requests its next epoch. While a transaction is
        open, brokers compare only the producer id.
        """
        self._record_timeouts()
        self._record_superseded_identities()

    def run(self) -> None:
        for transactional_id in self.ids:
            self.create_writer(transactional_id)
        self.schedule.draw()
        for _ in range(self.random.choice((0, 1, 4))):
            self.system.after(self.random.uniform(0, 6000), lambda: self.random.choice(self.writers).step())
        for _ in range(self.random.randint(5, 60)):
            self.random.choices((self.step, self.wait, self.hand_over, self.replace), (6, 2, 2, 1))[0]()
        self.schedule.remove_faults()
        self.end()
        self.check()

    # --- producers

    def create_producer(self, transactional_id: str) -> KafkaProducer:
        random = self.random
        producer = create_simulated_producer(
            self.cluster,
            random.randrange(1 << 30),
            serialize_paused,
            transactional_id=transactional_id,
            transaction_timeout_ms=self.timeout_ms,
            linger_ms=random.choice((0, 5)),
            batch_size=random.choice((120, 400, 4000)),
            max_in_flight_requests_per_connection=random.randint(1, 5),
            request_timeout_ms=random.choice((300, 1000)),
            delivery_timeout_ms=random.choice((1500, 4000, 20_000)),
            retry_backoff_ms=random.choice((5, 50)),
            retry_backoff_max_ms=500,
            max_block_ms=3000,
        )
        get_loop(producer).after_round = partial(self.after_round, producer)
        self.producers.append(producer)
        return producer

    def create_writer(self, transactional_id: str) -> TransactionalWriter:
        for earlier in self.writers:
            earlier.has_successor |= earlier.transactional_id == transactional_id
        producer = self.create_producer(transactional_id)
        writer = TransactionalWriter(producer, transactional_id, self.random, self.record_counter, self.partitions)
        writer.record_takeover = self.record_takeover
        writer.later_random = self.later_random
        self.writers.append(writer)
        return writer

    def record_takeover(self, new_writer: TransactionalWriter) -> None:
        """Mark the other writers of the transactional id, which `new_writer` owns after its request."""
        for writer in self.writers:
            writer.has_rival |= writer is not new_writer and writer.transactional_id == new_writer.transactional_id

    def after_round(self, producer: KafkaProducer) -> None:
        check_partition_queues(producer)
        if self.random.random() < 0.1:
            self.random.choice(self.writers).run_sender_round()
        if self.has_second_callers and self.random.random() < 0.2:
            for writer in self.writers:
                if writer.producer is producer and not writer.is_closed:
                    writer.call_from_second_thread()

    # --- events

    def step(self) -> None:
        current = [writer for writer in self.writers if not writer.has_successor]
        self.random.choice(current if self.random.random() < 0.8 else self.writers).step()

    def wait(self) -> None:
        self.random.choice(self.writers).pass_time(self.random.choice(self.pauses_ms))

    def replace(self) -> None:
        """Create another producer with the transactional id. The earlier ones are killed, or continue unaware of it."""
        transactional_id = self.random.choice(self.ids)
        previous_writers = [
            writer
            for writer in self.writers
            if writer.transactional_id == transactional_id and not writer.has_successor
        ]
        new_writer = self.create_writer(transactional_id)
        for writer in previous_writers:
            if self.random.random() < 0.5:
                writer.kill()
        new_writer.step()

    def hand_over(self) -> None:
        """Hand prepared transactions to drivers, which end them now or later, or die and leave them to the next."""
        for writer in self.writers:
            if writer.prepared is not None and not self.find_committers(writer.transactions[-1]):
                self.create_committer(writer.prepared, writer.transactions[-1], commit=self.random.random() < 0.8)
        for committer in [committer for committer in self.committers if not committer.has_ended]:
            if self.random.random() < 0.3:
                committer.kill()
                self.create_committer(committer.prepared, committer.transaction, commit=committer.commit)
            elif self.random.random() < 0.7:
                committer.step()

    def find_committers(self, transaction: WrittenTransaction) -> list[Committer]:
        return [committer for committer in self.committers if committer.transaction is transaction]

    def create_committer(self, prepared: TransactionIdentity, transaction: WrittenTransaction, *, commit: bool) -> None:
        producer = self.create_producer(transaction.transactional_id)
        self.committers.append(Committer(producer, prepared, transaction, commit=commit))

    def _record_timeouts(self) -> None:
        coordinator = self.cluster.core.coordinator
        abort_timed_out_transactions: Callable[[float], list[str]] = coordinator.abort_timed_out_transactions

        def recorded(now_ms: float) -> list[str]:
            overdue = abort_timed_out_transactions(now_ms)
            self.timed_out_ids.update(overdue)
            return overdue

        coordinator.abort_timed_out_transactions = recorded  # type: ignore[method-assign]

    def _record_superseded_identities(self) -> None:
        coordinator = self.cluster.core.coordinator
        init_producer_id = coordinator.init_producer_id

        def recorded(
            transactional_id: str | None, timeout_ms: int, expected_identity: ProducerIdentity | None
        ) -> ProducerIdentity:
            transaction = coordinator.transactions.get(transactional_id or "")
            if transaction is not None and (expected_identity is None or expected_identity.epoch < transaction.epoch):
                self.superseded_identities.add((transaction.producer_id, transaction.epoch))
            return init_producer_id(transactional_id, timeout_ms, expected_identity)

        coordinator.init_producer_id = recorded  # type: ignore[method-assign]

    # --- the end

    def end(self) -> None:
        self.has_second_callers = False
        for writer in self.writers:
            writer.end_second_call()
            writer.finish_and_write_another()
        for writer in self.writers:
            writer.close()
        for committer in self.committers:
            committer.producer.close()
        for _ in range(2):
            self.system.advance(LATEST_MS)  # a late request of an older producer fences the next producer
            for transactional_id in self.ids:
                self.write_with_new_writer(transactional_id)
        self.system.advance(LATEST_MS)

    def write_with_new_writer(self, transactional_id: str) -> None:
        """Check that a new producer with the transactional id can write."""
        new_writer = self.create_writer(transactional_id)
        new_writer.write_whole_transaction()
        new_writer.close()

    # --- invariants

    def check(self) -> None:
        history = History([as_write(transaction) for writer in self.writers for transaction in writer.transactions])
        history.writes.sort(key=lambda write: write.places[0][1] if write.places else b"")
        values_by_partition = {
            partition: [value or b"" for value in self.cluster.values(TOPIC, partition, committed=True)]
            for partition in range(self.partitions)
        }
        history.check(values_by_partition)
        for partition in values_by_partition:
            log = self.cluster.log(TOPIC, partition)
            assert log.last_stable_offset == log.log_end_offset, f"partition {partition}: a transaction is left open"
        for writer in self.writers:
            for transaction in writer.transactions:
                self.check_futures(transaction)
        places = {(partition, value) for partition, values in values_by_partition.items() for value in values}
        for transactional_id in self.ids:
            self.check_offsets(transactional_id, places)
        for writer in self.writers:
            self.check_end_reason(writer)
        for producer in self.producers:
            assert get_reserved_bytes(producer) == 0, "memory did not come back"
        assert not self.system.open_sockets

    def check_futures(self, transaction: WrittenTransaction) -> None:
        for partition, value, future in transaction.futures:
            assert future.done(), f"{value!r} has no outcome"
            if transaction.committed:
                metadata = future.result(0)
                table = self.cluster.table(TOPIC, partition, committed=True)
                if metadata.offset >= 0:
                    row_index = table.column("offset").to_pylist().index(metadata.offset)
                    assert table.column("value")[row_index].as_py() == value, f"{value!r}: wrong offset"

    def check_offsets(self, transactional_id: str, places: set[Place]) -> None:
        writers = [writer for writer in self.writers if writer.transactional_id == transactional_id]
        writes = [as_write(transaction) for writer in writers for transaction in writer.transactions]
        committed_offset = self.cluster.core.offsets.get(build_group_id(transactional_id), (TOPIC, 0))
        anomalies = offsets_anomalies(writes, places, None if committed_offset is None else committed_offset.offset)
        assert not anomalies, str(anomalies[0])

    def check_end_reason(self, writer: TransactionalWriter) -> None:
        is_superseded = get_sender(writer.producer).idempotence.id_and_epoch in self.superseded_identities
        is_expected = writer.had_rival_at_end or self.timed_out_ids or is_superseded or self.schedule.fences_senders
        assert writer.end_error is None or is_expected, f"a producer gave up: {writer.end_error!r}"


def as_write(transaction: WrittenTransaction) -> Write:
    outcome = Outcome.UNKNOWN if transaction.commit_requested else Outcome.OPEN
    if transaction.has_ended:
        outcome = Outcome.COMMITTED if transaction.committed else Outcome.ABORTED
    name = f"a transaction of {transaction.transactional_id}"
    return Write(name, transaction.values, outcome, writer=transaction.transactional_id, offset=transaction.offset)


def explore(seed: int) -> None:
    with assert_no_leaks():
        TransactionRun(seed).run()


if __name__ == "__main__":
    sys.exit(run_command(explore, TRANSACTION_BRANCHES, __doc__))
