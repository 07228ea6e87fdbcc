"""Benchmark of a process that runs one small write, from the start of Python to its exit.

    python -m integration.benchmarks.cold_job [--rows 100000] [--rounds 7]

Each run is a new process with a new JVM (`cold_job_program.py`) that writes to a discard broker. Spark's own sink takes
turns with pykafka as a data source and through mapInArrow. The results are medians of the rounds after a warm-up round.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import time
from collections.abc import Iterator

from integration.benchmarks.discard_broker import discard_broker
from integration.benchmarks.page import ROOT, Line, Scale, build_line, format_table, iterate_turns

ROWS = 100_000
TOPIC = "cold-job"
PARTITIONS = 12
SPARKS, MAP_IN_ARROW, DATA_SOURCE = CONTENDERS = ("Spark's own sink", "mapInArrow", "data source")
WRITERS = {SPARKS: "kafka", MAP_IN_ARROW: "mapInArrow", DATA_SOURCE: "dataSource"}
"""The argument of the program, by contender."""


def run_job(contender: str, bootstrap: str, rows: int) -> float:
    """Run a process, and return its duration in seconds."""
    program = [sys.executable, "-m", "integration.benchmarks.cold_job_program"]
    environment = {**os.environ, "PYSPARK_PYTHON": sys.executable, "SPARK_LOCAL_IP": "127.0.0.1"}
    command = [*program, WRITERS[contender], bootstrap, TOPIC, str(rows)]
    started = time.perf_counter()
    subprocess.run(command, check=True, cwd=ROOT, env=environment, stderr=subprocess.DEVNULL)
    return time.perf_counter() - started


def measure_lines(scale: Scale, rows: int = ROWS) -> Iterator[Line]:
    results: dict[str, list[dict[str, float]]] = {name: [] for name in CONTENDERS}
    with discard_broker({TOPIC: PARTITIONS}) as (bootstrap, _):
        for turn, name in iterate_turns(CONTENDERS, scale.rounds + 1):
            seconds = run_job(name, bootstrap, rows)
            print(f"round {turn}: {name}: {seconds:.1f} s, load {os.getloadavg()[0]:.1f}", file=sys.stderr, flush=True)
            if turn:
                results[name].append({"seconds": seconds})
    measurement = f"**A cold job** of {rows:,} rows, whole process"
    yield build_line(f"{measurement}, `mapInArrow`", "s", results, "seconds", (MAP_IN_ARROW, SPARKS), "1.25")
    yield build_line("... by the data source", "s", results, "seconds", (DATA_SOURCE, SPARKS), "")


def main() -> None:
    parser = argparse.ArgumentParser(description="Measure a job that is started for one small write.")
    parser.add_argument("--rows", type=int, default=ROWS)
    parser.add_argument("--rounds", type=int, default=7)
    arguments = parser.parse_args()
    print(format_table(measure_lines(Scale(arguments.rounds, 1.0), arguments.rows)))


if __name__ == "__main__":
    main()
