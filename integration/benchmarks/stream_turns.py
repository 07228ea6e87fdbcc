"""Comparison of two streams of one Spark session that take turns: the time that one needs more per micro-batch.

Both streams use the same Python workers, JVM and Kafka, so the difference is not caused by drivers that are more or
less warmed up. A turn is a block of consecutive micro-batches without pauses. Work that a micro-batch leaves to the
brokers therefore delays the next one, as in a stream that never waits for its source. One block of each stream is a
pair, and the order alternates between pairs. The result is the median of the differences within pairs. Their quartiles
show how reliable it is.
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

from integration.benchmarks.page import iterate_turns
from integration.benchmarks.spark_sink import SHAPES, RoundFigures
from integration.support.librdkafka import create_topic
from integration.support.processes import CpuMeter

TASKS = 2
ROWS_PER_TASK = 500
BLOCK = 7
"""Number of micro-batches in a block. The first one follows a pause and is not counted."""
WARM_UP_PAIRS = 20
"""Pairs of a full run before the measurement. JVMs compile during the first hundred micro-batches of each stream."""


class Stream:
    """A query that is idle until `run_block`. Each task reads one record, a number, and expands it to rows.

    The source is a topic, because with files each task would read Hadoop's settings, which costs more than all its
    other work.
    """

    def __init__(self, spark: SparkSession, bootstrap: str, options: Mapping[str, str], folder: Path) -> None:
        self._producer = Producer({"bootstrap.servers": bootstrap})
        self._topic = create_topic(bootstrap, partitions=TASKS)
        self._last_batch_id = -1
        source = spark.readStream.format("kafka").option("kafka.bootstrap.servers", bootstrap)
        source = source.option("subscribe", self._topic).option("startingOffsets", "earliest")
        source = source.option("maxOffsetsPerTrigger", TASKS)
        first = f"{ROWS_PER_TASK} * CAST(CAST(value AS STRING) AS BIGINT)"
        rows = source.load().selectExpr(f"explode(sequence({first}, {first} + {ROWS_PER_TASK - 1})) AS id")
        rows = rows.selectExpr("id", "repeat('so ', int(9 + id * 7919 % 22)) AS rest").selectExpr(*SHAPES["real"])
        writer = rows.writeStream.format("pykafka").options(**options)
        writer = writer.option("checkpointLocation", str(folder / "checkpoint"))
        self.query = writer.trigger(processingTime="0 seconds").start()

    def run_block(self) -> dict[str, float]:
        """Run a block. Return the medians of addBatch and trigger without the first micro-batch, and CPU per batch."""
        with CpuMeter(excluded_pid=None) as meter:
            for number in range(BLOCK * TASKS):
                self._producer.produce(self._topic, str(number).encode(), partition=number % TASKS)
            self._producer.flush()  # the first micro-batch, which is not counted, may start before this
            self.query.processAllAvailable()
        progress = [
            row for row in self.query.recentProgress if row["batchId"] > self._last_batch_id and row["numInputRows"]
        ]
        assert [row["numInputRows"] for row in progress] == [TASKS] * BLOCK
        self._last_batch_id = progress[-1]["batchId"]
        starts = [datetime.fromisoformat(row["timestamp"].replace("Z", "+00:00")).timestamp() for row in progress]
        return {
            "addBatch": statistics.median(row["durationMs"]["addBatch"] for row in progress[1:]),
            "trigger": statistics.median((late - early) * 1000 for early, late in itertools.pairwise(starts[1:])),
            "CPU": meter.seconds / BLOCK * 1000,
        }


def run_streams_in_turns(
    spark: SparkSession,
    bootstrap: str,
    contenders: Mapping[str, Mapping[str, str]],
    pairs: int,
    warm_up: int = WARM_UP_PAIRS,
) -> RoundFigures:
    """Run the streams in turns, and return the figures of each block. `contenders`: stream options by name."""
    # An idle query polls the end offsets of its source, a hundred times per second by default.
    spark.conf.set("spark.sql.streaming.pollingDelay", "100ms")
    results: RoundFigures = {name: [] for name in contenders}
    with contextlib.ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        streams: dict[str, Stream] = {}
        for name, options in contenders.items():
            streams[name] = Stream(spark, bootstrap, options, folder / name)
            stack.callback(streams[name].query.stop)
        for turn, name in iterate_turns(list(contenders), warm_up + pairs):
            block = streams[name].run_block()
            summary = ", ".join(f"{key} {value:.0f}" for key, value in block.items())
            pair, load = turn - warm_up, os.getloadavg()[0]
            print(f"pair {pair}: {name}: {summary}; load {load:.1f}", file=sys.stderr, flush=True)
            if pair >= 0:
                results[name].append(block)
    return results


class AddedTime(NamedTuple):
    """The differences between two streams in pairs of blocks, in milliseconds: their median and quartiles."""

    median: float
    quartiles: tuple[float, float]
    pairs: int

    def __str__(self) -> str:
        low, high = self.quartiles
        return f"{self.median:+.0f} ms, quartiles of {self.pairs} pairs {low:+.0f} and {high:+.0f}"


def compute_added_time(
    blocks: Sequence[Mapping[str, float]], baseline_blocks: Sequence[Mapping[str, float]], key: str
) -> AddedTime:
    """Compute how much longer a micro-batch takes in the blocks of one stream than in those of the baseline."""
    differences = [block[key] - baseline[key] for block, baseline in zip(blocks, baseline_blocks, strict=True)]
    low, median, high = statistics.quantiles(differences, n=4)
    return AddedTime(median, (low, high), len(differences))


def split_into_rounds(results: RoundFigures, rounds: int) -> RoundFigures:
    """Split the blocks of each contender into rounds of equal size, and return the medians of each round."""
    return {name: list(_medians(blocks, len(blocks) // rounds)) for name, blocks in results.items()}


def _medians(blocks: Sequence[Mapping[str, float]], size: int) -> Iterator[dict[str, float]]:
    for first in range(0, len(blocks), size):
        part = blocks[first : first + size]
        yield {key: statistics.median(block[key] for block in part) for key in part[0]}
