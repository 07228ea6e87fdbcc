"""Two streams of one Spark session that take turns, block by block: what one adds to a micro-batch of the other.

Both have the same Python workers, the same JVM and the same Kafka, so what differs is what each does with a
micro-batch, and not which driver is warmer. A block is a few micro-batches, one directly after the other, as a stream
has them that never waits for its source: what a micro-batch leaves to brokers to be finished is met by the next one.
One block of each makes a pair, and every second pair begins with the other one. What is added is the median of the
differences within the pairs; how far it can be trusted is seen by their quartiles.
"""

from __future__ import annotations

import contextlib
import itertools
import os
import statistics
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from datetime import datetime
from pathlib import Path
from typing import NamedTuple

from confluent_kafka import Producer
from pyspark.sql import SparkSession

from integration.benchmarks.page import in_turns
from integration.benchmarks.spark_sink import SHAPES, Seen
from integration.support.librdkafka import create_topic
from integration.support.processes import CpuMeter

TASKS = 2
ROWS_OF_TASK = 500
BLOCK = 7
"""Micro-batches. The first does not count: it follows a pause."""
WARM_UP_PAIRS = 20
"""Of a full run: for about a hundred micro-batches of each, Spark and Kafka get faster (their JVMs compile)."""


class Stream:
    """A query that sleeps until it gets a block. Each task reads one record: a number, of which rows are made.

    The source is a topic, as that of most streams that write to Kafka. Of files, each task would read all settings of
    Hadoop anew, which costs more than everything else in it.
    """

    def __init__(self, spark: SparkSession, bootstrap: str, options: Mapping[str, str], folder: Path) -> None:
        self._producer = Producer({"bootstrap.servers": bootstrap})
        self._topic = create_topic(bootstrap, partitions=TASKS)
        self._last = -1
        source = spark.readStream.format("kafka").option("kafka.bootstrap.servers", bootstrap)
        source = source.option("subscribe", self._topic).option("startingOffsets", "earliest")
        source = source.option("maxOffsetsPerTrigger", TASKS)
        first = f"{ROWS_OF_TASK} * CAST(CAST(value AS STRING) AS BIGINT)"
        rows = source.load().selectExpr(f"explode(sequence({first}, {first} + {ROWS_OF_TASK - 1})) AS id")
        rows = rows.selectExpr("id", "repeat('so ', int(9 + id * 7919 % 22)) AS rest").selectExpr(*SHAPES["real"])
        writer = rows.writeStream.format("pykafka").options(**options)
        writer = writer.option("checkpointLocation", str(folder / "checkpoint"))
        self.query = writer.trigger(processingTime="0 seconds").start()

    def run_block(self) -> dict[str, float]:
        """Medians of the block's micro-batches but the first: `addBatch`, and from trigger to trigger; and the CPU of
        one.
        """
        with CpuMeter(excluded_pid=None) as meter:
            for number in range(BLOCK * TASKS):
                self._producer.produce(self._topic, str(number).encode(), partition=number % TASKS)
            self._producer.flush()  # the first micro-batch may begin before all are there, and does not count
            self.query.processAllAvailable()
        progress = [row for row in self.query.recentProgress if row["batchId"] > self._last and row["numInputRows"]]
        assert [row["numInputRows"] for row in progress] == [TASKS] * BLOCK
        self._last = progress[-1]["batchId"]
        starts = [datetime.fromisoformat(row["timestamp"].replace("Z", "+00:00")).timestamp() for row in progress]
        return {
            "addBatch": statistics.median(row["durationMs"]["addBatch"] for row in progress[1:]),
            "trigger": statistics.median((late - early) * 1000 for early, late in itertools.pairwise(starts[1:])),
            "CPU": meter.seconds / BLOCK * 1000,
        }


def streams_in_turns(
    spark: SparkSession,
    bootstrap: str,
    contenders: Mapping[str, Mapping[str, str]],
    pairs: int,
    warm_up: int = WARM_UP_PAIRS,
) -> Seen:
    """By contender, which is a name with the options of its stream: the figures of each block."""
    # A query that has nothing to do asks for the ends of its source; by default a hundred times in a second.
    spark.conf.set("spark.sql.streaming.pollingDelay", "100ms")
    seen: Seen = {name: [] for name in contenders}
    with contextlib.ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        streams: dict[str, Stream] = {}
        for name, options in contenders.items():
            streams[name] = Stream(spark, bootstrap, options, folder / name)
            stack.callback(streams[name].query.stop)
        for turn, name in in_turns(list(contenders), warm_up + pairs):
            block = streams[name].run_block()
            words = ", ".join(f"{key} {value:.0f}" for key, value in block.items())
            pair, load = turn - warm_up, os.getloadavg()[0]
            print(f"pair {pair}: {name}: {words}; load {load:.1f}", file=sys.stderr, flush=True)
            if pair >= 0:
                seen[name].append(block)
    return seen


class Added(NamedTuple):
    """By which one contender is above the other, in pairs of blocks."""

    middle: float
    quartiles: tuple[float, float]
    pairs: int

    def __str__(self) -> str:
        low, high = self.quartiles
        return f"{self.middle:+.0f} ms, quartiles of {self.pairs} pairs {low:+.0f} and {high:+.0f}"


def added(here: Sequence[Mapping[str, float]], beside: Sequence[Mapping[str, float]], key: str) -> Added:
    differences = [one[key] - other[key] for one, other in zip(here, beside, strict=True)]
    low, middle, high = statistics.quantiles(differences, n=4)
    return Added(middle, (low, high), len(differences))


def by_round(seen: Seen, rounds: int) -> Seen:
    """Medians of the blocks of each round: as many as there are, in their order, in equal parts."""
    return {name: list(_medians(blocks, len(blocks) // rounds)) for name, blocks in seen.items()}


def _medians(blocks: Sequence[Mapping[str, float]], size: int) -> Iterator[dict[str, float]]:
    for first in range(0, len(blocks), size):
        part = blocks[first : first + size]
        yield {key: statistics.median(block[key] for block in part) for key in part[0]}
