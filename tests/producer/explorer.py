"""The schedule explorer: thousands of short runs in virtual time, with faults that are drawn from each run's seed.

    python -m tests.producer.explorer --seeds 0:5000      prints the seeds that fail
    python -m tests.producer.explorer --seed 17           replays one seed and prints its schedule

After each round of the sender, the invariants of each partition's state hold, and its queue contains the batches that
wait to be sent again. After each run:

- Every future is complete.
- An acknowledged record is in the log exactly once, at the offset of its future. A failed one is there at most once.
  (`Schedule.stores_once` and `Schedule.keeps_order` say when a client cannot ensure this or the order.)
- Each partition contains its records in the order in which they were sent. A record that failed although it may be
  stored is an exception if the producer has used up the epochs of its id (see `find_late_values`).
- All memory is back in the pool, and no socket, thread or descriptor is left.
"""

from __future__ import annotations

import contextlib
import sys
from concurrent.futures import Future
from random import Random
from unittest.mock import patch

import numpy as np
import pyarrow as pa

from spark_kafka_sink.client.producer_ids import MAX_EPOCH
from spark_kafka_sink.errors import KafkaSinkError
from spark_kafka_sink.producer.producer import KafkaProducer
from spark_kafka_sink.producer.record import ProducerRecord
from spark_kafka_sink.producer.results import ColumnsResult, RecordMetadata
from spark_kafka_sink.producer.sending import idempotence
from spark_kafka_sink.records.columns import RecordColumns
from tests.explorer_command import run_command
from tests.fake_system import FakeSystem
from tests.leak_check import assert_no_leaks
from tests.producer.schedules import TOPIC, Schedule
from tests.producer.virtual_time import create_simulated_producer, get_loop, get_reserved_bytes, get_sender
from tests.rare_branches import PRODUCER_BRANCHES
from tests.simulated_cluster import SimulatedCluster


class Run:
    """The run of one seed. A producer without idempotence has one request in flight, and may store duplicates."""

    def __init__(self, seed: int) -> None:
        self.random = random = Random(seed)
        self.system = FakeSystem(latency_ms=random.choice((0.5, 2, 20)))
        nodes = random.randint(1, 3)
        self.partitions = random.randint(1, 3)
        self.idempotent = random.random() < 0.8
        self.cluster = SimulatedCluster(
            self.system,
            nodes=nodes,
            topics={TOPIC: self.partitions},
            seed=seed,
            first_sequence_must_be_zero=seed % 4 == 3,
        )
        self.producer: KafkaProducer = create_simulated_producer(
            self.cluster,
            seed,
            enable_idempotence=self.idempotent,
            linger_ms=random.choice((0, 5)),
            batch_size=random.choice((120, 400, 4000)),
            compression_type=random.choice(("none", "none", "lz4")),
            max_in_flight_requests_per_connection=random.randint(1, 5) if self.idempotent else 1,
            request_timeout_ms=random.choice((300, 1000)),
            delivery_timeout_ms=random.choice((1500, 4000, 20_000)),
            retry_backoff_ms=random.choice((5, 50)),
            metadata_max_age_ms=random.choice((300_000, 50)) if self.idempotent else 50,
            max_block_ms=3000,
        )
        get_loop(self.producer).after_round = self.check_partitions
        self.cluster.executes_after_disconnect = self.idempotent
        self.schedule = Schedule(random, self.cluster, self.partitions, self.fill_pipeline)
        self.singles: list[tuple[int, bytes, Future[RecordMetadata]]] = []
        self.columns: list[tuple[int, list[bytes], Future[ColumnsResult]]] = []
        self.value_count = 0

    def run(self) -> None:
        try:
            self.schedule.draw(idempotent=self.idempotent)
            self.produce()
            self.system.after(30_000, self.schedule.remove_faults)
            self.producer.close(timeout=self.random.choice((None, None, 0.5)))
            self.check()
        except BaseException:  # otherwise the producer would log its lost records during a later test
            get_loop(self.producer).after_round = lambda: None
            self.producer.close(timeout=0)
            raise

    # --- load

    def produce(self) -> None:
        for _ in range(self.random.randint(3, 40)):
            self.send(self.random.randrange(self.partitions), self.random.choice((1, 1, 5, 30)))
            if self.random.random() < 0.7:
                get_loop(self.producer).run_until(lambda: False, self.random.choice((0.1, 3, 40, 300)))
            if self.random.random() < 0.2 and get_loop(self.producer).run_until(self.is_idle, 3000):
                self.schedule.inject_idle_fault()

    def fill_pipeline(self) -> None:
        for _ in range(4):
            self.send(0, 15)

    def send(self, partition: int, count: int) -> None:
        values = [b"%06d" % (self.value_count + i) for i in range(count)]
        self.value_count += count
        with contextlib.suppress(KafkaSinkError):  # The call itself failed, so none of its records are checked.
            self.send_values(partition, values)

    def is_idle(self) -> bool:
        """Return whether every record has an outcome and no request is in flight."""
        sender = get_sender(self.producer)
        return not sender.has_incomplete_rows and not any(state.in_flight_batches for state in sender.idempotence)

    def send_values(self, partition: int, values: list[bytes]) -> None:
        """Send the values with a fixed timestamp, because clock times would make the run of a seed irreproducible."""
        timestamp_ms = self.schedule.timestamp_ms
        if len(values) == 1:
            record = ProducerRecord(TOPIC, values[0], partition=partition, timestamp_ms=timestamp_ms)
            future = self.producer.send(record)
            self.singles.append((partition, values[0], future))
        else:
            times = pa.array([timestamp_ms] * len(values), pa.int64())
            columns = RecordColumns(pa.array(values, pa.binary()), timestamp=times)
            self.columns.append((partition, values, self.producer.send_columns(TOPIC, columns, partition)))

    # --- invariants

    def check_partitions(self) -> None:
        """Check all partitions. Called after each round of the sender."""
        check_partition_queues(self.producer)

    def check(self) -> None:
        stored_values = {
            p: self.schedule.deleted_values[p] + self.cluster.values(TOPIC, p) for p in range(self.partitions)
        }
        late_values = self.find_late_values()
        for values in stored_values.values():
            unique_values = list(dict.fromkeys(values))
            if self.idempotent and self.schedule.stores_once:
                assert values == unique_values, f"doubled: {values}"
            if self.schedule.keeps_order:
                in_order = [value for value in unique_values if value not in late_values]
                assert in_order == sorted(in_order, key=lambda v: v or b""), f"out of order: {values}"
        self.check_singles(stored_values)
        self.check_columns({partition: set(values) for partition, values in stored_values.items()})
        assert get_reserved_bytes(self.producer) == 0, "memory did not come back"
        assert not self.system.open_sockets

    def find_late_values(self) -> set[bytes]:
        """Return the values that a broker may store behind later ones.

        A broker may execute a request after the client has closed the connection and has failed the request's records.
        If the producer has bumped its epoch by then and has written to the partition, the broker rejects the request.
        But a producer that has used up the epochs of its id gets a new id, and does not fence the previous one.
        """
        if self.cluster.core.coordinator.next_producer_id <= 1:  # the only id that it has ever assigned is 0
            return set()
        singles = {value for _, value, future in self.singles if is_possibly_stored(future.exception(0))}
        rows = (
            (values, failure.row_indices)
            for _, values, future in self.columns
            for failure in future.result(0).failures
            if is_possibly_stored(failure.error)
        )
        return singles | {values[int(row)] for values, failed_rows in rows for row in failed_rows}

    def check_singles(self, stored_values: dict[int, list[bytes | None]]) -> None:
        """Check that each acknowledged record of send() is stored at the offset of its future."""
        for partition, value, future in self.singles:
            assert future.done(), f"{value!r} has no outcome"
            if future.exception(0) is None:
                assert value in stored_values[partition], f"{value!r} was acknowledged and is not stored"
                offset = future.result(0).offset
                assert offset == -1 or stored_values[partition][offset] == value, f"{value!r}: wrong offset"

    def check_columns(self, stored_values: dict[int, set[bytes | None]]) -> None:
        """Check that send_columns() reported each row as written or failed, and that the written rows are stored."""
        for partition, values, future in self.columns:
            assert future.done(), f"{values[0]!r}... have no outcome"
            result = future.result(0)
            failed_rows = (
                np.concatenate([failure.row_indices for failure in result.failures]) if result.failures else np.empty(0)
            )
            assert len(set(failed_rows.tolist())) == len(failed_rows)
            assert result.rows_written + len(failed_rows) == len(values)
            for value in set(values) - {values[int(row)] for row in failed_rows}:
                assert value in stored_values[partition], f"{value!r} was acknowledged and is not stored"


def is_possibly_stored(error: BaseException | None) -> bool:
    return isinstance(error, KafkaSinkError) and error.possibly_stored


def check_partition_queues(producer: KafkaProducer) -> None:
    """Check that each partition's queue contains exactly the pending batches that are not in flight."""
    idempotence, accumulator = get_sender(producer).idempotence, get_sender(producer).accumulator
    assert not idempotence.find_violations(), idempotence.find_violations()
    for state in idempotence:
        waiting_batches = [batch for batch in state.pending_batches if batch not in state.in_flight_batches]
        queue = accumulator.list_queued_batches(state.topic_partition)
        queued_batches = [
            batch for batch in queue if batch.has_sequence and batch not in idempotence._abandoned_batches
        ]
        assert queued_batches == waiting_batches, f"{state!r}: {queued_batches} in the queue, not {waiting_batches}"
        for batch in (*state.pending_batches, *state.in_flight_batches):
            assert batch.has_request_in_flight == (batch in state.in_flight_batches), (
                f"{batch!r} and {state!r} disagree"
            )


def explore(seed: int) -> None:
    random = Random(f"{seed}, and its epochs")
    max_epoch = random.randint(0, 2) if random.random() < 0.2 else MAX_EPOCH
    with assert_no_leaks(), patch.object(idempotence, "MAX_EPOCH", max_epoch):
        Run(seed).run()


def main() -> int:
    return run_command(explore, PRODUCER_BRANCHES, __doc__)


if __name__ == "__main__":
    sys.exit(main())
