"""The schedule explorer: thousands of short runs in virtual time, each under faults drawn from its seed.

    python -m tests.producer.explorer --seeds 0:5000      prints the seeds that fail
    python -m tests.producer.explorer --seed 17           replays one, with what happened

After each run, whatever the faults: every future is complete; what was acknowledged is in the log exactly once, at the
offset that was told; what failed is there at most once; each partition has its records in the order in which they were
sent; all memory is back in the pool, and no socket is open.
"""

from __future__ import annotations

import argparse
import logging
import sys
import traceback
from concurrent.futures import Future
from random import Random

import numpy as np
import pyarrow as pa

from spark_kafka_sink.errors import KafkaSinkError
from spark_kafka_sink.producer.producer import KafkaProducer
from spark_kafka_sink.producer.record import ProducerRecord
from spark_kafka_sink.producer.results import ColumnsResult, RecordMetadata
from spark_kafka_sink.protocol import error_codes as codes
from spark_kafka_sink.protocol.api_keys import ApiKey
from spark_kafka_sink.records.columns import RecordColumns
from tests.fake_system import FakeSystem
from tests.producer.virtual_time import loop_of, simulated_producer
from tests.simulated_cluster import SimulatedCluster

TOPIC = "t"
REFUSALS = (
    codes.NOT_LEADER_OR_FOLLOWER,
    codes.NOT_ENOUGH_REPLICAS,
    codes.LEADER_NOT_AVAILABLE,
    codes.UNKNOWN_TOPIC_OR_PARTITION,
    codes.CORRUPT_MESSAGE,
    codes.KAFKA_STORAGE_ERROR,
    codes.OUT_OF_ORDER_SEQUENCE_NUMBER,
    codes.INVALID_RECORD,
    codes.MESSAGE_TOO_LARGE,
    codes.TOPIC_AUTHORIZATION_FAILED,
)
DOUBTS = (codes.REQUEST_TIMED_OUT, codes.NOT_ENOUGH_REPLICAS_AFTER_APPEND)


class Run:
    """One seed."""

    def __init__(self, seed: int) -> None:
        self.random = random = Random(seed)
        self.system = FakeSystem(latency_ms=random.choice((0.5, 2, 20)))
        self.nodes = random.randint(1, 3)
        self.partitions = random.randint(1, 3)
        self.cluster = SimulatedCluster(self.system, nodes=self.nodes, topics={TOPIC: self.partitions}, seed=seed)
        self.producer: KafkaProducer = simulated_producer(
            self.cluster,
            seed,
            linger_ms=random.choice((0, 5)),
            batch_size=random.choice((120, 400, 4000)),
            compression_type=random.choice(("none", "none", "lz4")),
            max_in_flight_requests_per_connection=random.randint(1, 5),
            request_timeout_ms=random.choice((300, 1000)),
            delivery_timeout_ms=random.choice((1500, 4000, 20_000)),
            retry_backoff_ms=random.choice((5, 50)),
            max_block_ms=3000,
        )
        self.singles: list[tuple[int, bytes, Future[RecordMetadata]]] = []
        self.columns: list[tuple[int, list[bytes], Future[ColumnsResult]]] = []

    def run(self) -> None:
        self.scatter_faults()
        self.produce()
        self.system.after(30_000, self.heal)
        self.producer.close(timeout=self.random.choice((None, None, 0.5)))
        self.check()

    # --- faults

    def scatter_faults(self) -> None:
        self.random.choice((self.scatter, self.scatter, self.refuse_the_first, self.doubt_before_a_refusal))()

    def refuse_the_first(self) -> None:
        """A broker that knows nothing of the producer refuses the head of a pipeline, and would take what follows."""
        rule = self.cluster.control.when(api=ApiKey.PRODUCE, times=self.random.randint(1, 2))
        rule.fail(self.random.choice((codes.NOT_ENOUGH_REPLICAS, codes.NOT_LEADER_OR_FOLLOWER)))
        self.fill_the_pipeline()
        if self.random.random() < 0.5:
            self.system.after(self.random.uniform(1, 100), self.pull_lever)

    def doubt_before_a_refusal(self) -> None:
        """In the middle of a pipeline one batch is stored without a word, and one behind it is refused for good."""
        nth = self.random.randint(2, 6)
        control = self.cluster.control
        control.when(api=ApiKey.PRODUCE, nth=nth).fail(self.random.choice(DOUBTS), after_applying=True)
        behind = control.when(api=ApiKey.PRODUCE, nth=nth + self.random.randint(1, 2))
        behind.fail(self.random.choice((codes.INVALID_RECORD, codes.TOPIC_AUTHORIZATION_FAILED)))
        self.fill_the_pipeline()
        if self.random.random() < 0.5:
            self.system.after(self.random.uniform(1, 100), self.pull_lever)

    def fill_the_pipeline(self) -> None:
        """More batches of one partition than may be under way at once."""
        self.give(0, [b"!%05d" % i for i in range(60)])

    def scatter(self) -> None:
        for _ in range(self.random.randint(0, 4)):
            self.add_rule()
        for _ in range(self.random.randint(0, 5)):
            self.system.after(self.random.uniform(0, 3000), self.pull_lever)

    def add_rule(self) -> None:
        random = self.random
        rule = self.cluster.control.when(
            api=ApiKey.PRODUCE,
            nth=random.randint(1, 12),
            times=random.randint(1, 4),
            probability=random.uniform(0.3, 1),
        )
        verb = random.choice(
            ("refuse", "refuse", "doubt", "drop", "drop", "delay", "delay", "cut", "silent", "throttle")
        )
        if verb == "refuse":
            rule.fail(random.choice(REFUSALS))
        elif verb == "doubt":
            rule.fail(random.choice(DOUBTS), after_applying=random.random() < 0.5)
        elif verb == "drop":
            rule.drop(applied=random.random() < 0.5)
        elif verb == "delay":
            rule.delay(0, random.choice((50, 900, 3000)), before_applying=random.random() < 0.3)
        elif verb == "cut":
            rule.cut(at=random.random())
        elif verb == "silent":
            rule.never_answer(applied=random.random() < 0.5)
        else:
            rule.throttle(random.randint(1, 800))

    def pull_lever(self) -> None:
        random, control = self.random, self.cluster.control
        node = random.randrange(self.nodes)
        lever = random.choice(("move", "move", "bounce", "hide"))
        if lever == "move":
            control.move_leader(TOPIC, random.randrange(self.partitions), node)
        elif lever == "bounce":
            control.stop_node(node)
            self.system.after(random.uniform(10, 1500), lambda: control.start_node(node))
        else:
            control.hide_topic(TOPIC)
            self.system.after(random.uniform(10, 800), lambda: control.show_topic(TOPIC))

    def heal(self) -> None:
        self.cluster.control.clear()

    # --- load

    def produce(self) -> None:
        number = 0
        for _ in range(self.random.randint(3, 40)):
            count = self.random.choice((1, 1, 5, 30))
            partition = self.random.randrange(self.partitions)
            values = [b"%06d" % (number + i) for i in range(count)]
            number += count
            try:
                self.give(partition, values)
            except KafkaSinkError:
                continue  # told by the call: nothing of it may be stored
            if self.random.random() < 0.7:
                loop_of(self.producer).run_until(lambda: False, self.random.choice((0.1, 3, 40, 300)))

    def give(self, partition: int, values: list[bytes]) -> None:
        if len(values) == 1:
            future = self.producer.send(ProducerRecord(TOPIC, values[0], partition=partition))
            self.singles.append((partition, values[0], future))
        else:
            columns = RecordColumns(pa.array(values, pa.binary()))
            self.columns.append((partition, values, self.producer.send_columns(TOPIC, columns, partition)))

    # --- invariants

    def check(self) -> None:
        stored = {p: self.cluster.values(TOPIC, p) for p in range(self.partitions)}
        for values in stored.values():
            assert values == sorted(set(values), key=lambda v: v or b""), f"doubled or out of order: {values}"
        places = {p: {value: i for i, value in enumerate(values)} for p, values in stored.items()}
        for partition, value, single in self.singles:
            assert single.done(), f"{value!r} has no outcome"
            if single.exception(0) is None:
                assert value in places[partition], f"{value!r} was acknowledged and is not stored"
                assert single.result(0).offset in (-1, places[partition][value]), f"{value!r}: wrong offset"
        for partition, given, future in self.columns:
            assert future.done(), f"{given[0]!r}... have no outcome"
            result = future.result(0)
            failed = np.concatenate([failure.rows for failure in result.failures]) if result.failures else np.empty(0)
            assert len(set(failed.tolist())) == len(failed)
            assert result.rows_written + len(failed) == len(given)
            for value in set(given) - {given[int(row)] for row in failed}:
                assert value in places[partition], f"{value!r} was acknowledged and is not stored"
        pool = self.producer._pool
        assert pool.free_bytes == pool.bytes_max, f"memory did not come back: {pool!r}"
        assert not self.system.open_sockets


def explore(seed: int) -> None:
    Run(seed).run()


def survives(seed: int, *, explain: bool) -> bool:
    try:
        explore(seed)
    except Exception:
        print(f"seed {seed} fails", flush=True)
        if explain:
            traceback.print_exc()
        return False
    return True


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", default="0:1000", help="from:to")
    parser.add_argument("--seed", type=int)
    options = parser.parse_args()
    logging.disable(logging.NOTSET if options.seed is not None else logging.CRITICAL)
    start, stop = (options.seed, options.seed + 1) if options.seed is not None else map(int, options.seeds.split(":"))
    failed = [seed for seed in range(start, stop) if not survives(seed, explain=options.seed is not None)]
    print(f"{stop - start} runs, {len(failed)} failed: {failed[:20]}")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
