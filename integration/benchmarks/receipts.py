"""Benchmark of receipts: CPU per row of whole writes with and without `receipt=true`.

    python -m integration.benchmarks.receipts [--pairs 31] [--shape real]

Both writes take turns in one Spark session (`local[2]`), with the rows and the discard broker of the benchmark of Spark
sinks (spark_sink.py), and without compression. CPU is that of the driver, its JVM and the Python workers, without the
broker. Single writes vary by more than 5%, so the median ratio needs many pairs; its quartiles show how certain it is.
"""

from __future__ import annotations

import argparse
import statistics
import sys
import tempfile
from functools import partial
from pathlib import Path

from pyspark.sql import DataFrame

from integration.benchmarks.discard_broker import discard_broker
from integration.benchmarks.page import iterate_turns
from integration.benchmarks.spark_sink import SHAPES, TOPIC, TOPICS, build_frames, measure_write, start_spark

ROWS = {"real": 3_000_000, "even": 3_000_000, "long": 1_000_000}
"""Number of rows of each shape."""
WITH_RECEIPT, WITHOUT_RECEIPT = "with a receipt", "without"


def write(frame: DataFrame, bootstrap: str, report_path: Path, kind: str) -> None:
    writer = frame.write.format("pykafka").option("kafka.bootstrap.servers", bootstrap).option("topic", TOPIC)
    writer.option("receipt", kind == WITH_RECEIPT).option("reportPath", str(report_path)).save()


def measure_pairs(
    frames: tuple[DataFrame, DataFrame], pairs: int, bootstrap: str, broker: int, report_path: Path
) -> dict[str, list[float]]:
    """Return the CPU time per row in nanoseconds of each write with and without a receipt, after a warm-up pair."""
    warm_up_frame, frame = frames
    rows = frame.count()
    results: dict[str, list[float]] = {WITH_RECEIPT: [], WITHOUT_RECEIPT: []}
    for turn, kind in iterate_turns([*results], pairs + 1):
        write(warm_up_frame, bootstrap, report_path, kind)  # because Spark stops Python workers that are idle
        cpu_ns = measure_write(partial(write, frame, bootstrap, report_path, kind), broker).cpu / rows * 1e9
        print(f"pair {turn}: {kind}: {cpu_ns:,.0f} ns/row", file=sys.stderr, flush=True)
        if turn:
            results[kind].append(cpu_ns)
    return results


def show(shape: str, results: dict[str, list[float]]) -> None:
    """Print the medians of both kinds of writes, and the median and the quartiles of their ratios."""
    with_receipt, without = results[WITH_RECEIPT], results[WITHOUT_RECEIPT]
    lower, ratio, upper = statistics.quantiles([a / b for a, b in zip(with_receipt, without, strict=True)], n=4)
    medians = f"{statistics.median(without):,.0f} -> {statistics.median(with_receipt):,.0f} ns/row"
    print(f"{shape}: {medians}, median ratio {ratio:.3f}, quartiles {lower:.3f} to {upper:.3f}", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description="What a receipt costs per row of a whole write.")
    parser.add_argument("--pairs", type=int, default=31)
    parser.add_argument("--shape", action="append", choices=[*SHAPES], help="the rows; all shapes without it")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder, discard_broker(TOPICS) as (bootstrap, broker):
        spark = start_spark()
        try:
            for shape in arguments.shape or SHAPES:
                frames = build_frames(spark, ROWS[shape], shape)
                show(shape, measure_pairs(frames, arguments.pairs, bootstrap, broker, Path(folder) / f"{shape}.jsonl"))
        finally:
            spark.stop()


if __name__ == "__main__":
    main()
