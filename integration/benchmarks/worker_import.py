"""Benchmark of a Spark worker's imports of the package, compared with the imports that every Arrow writer needs.

    python -m integration.benchmarks.worker_import [--rounds 11]

It measures the CPU time of processes that only import these modules, in turns.
"""

from __future__ import annotations

import argparse
import resource
import subprocess
import sys
from collections.abc import Iterator

from integration.benchmarks.page import Line, Scale, build_line, format_table, iterate_turns

OURS, BARE = PAIR = ("with pykafka", "numpy, pyarrow, pyspark")
_BARE = "import numpy, pyarrow, pyspark.worker, pyspark.sql.datasource"
CODE = {OURS: f"{_BARE}, spark_kafka_sink.spark.writer", BARE: _BARE}


def measure_cpu_ms(code: str) -> float:
    """Run the code in a new Python process, and return the CPU time of the process."""
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    subprocess.run([sys.executable, "-c", code], check=True)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    return (after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime) * 1000


def measure(rounds: int) -> Line:
    results: dict[str, list[dict[str, float]]] = {name: [] for name in PAIR}
    for turn, name in iterate_turns(PAIR, rounds + 1):
        figures = {"CPU": measure_cpu_ms(CODE[name])}
        if turn:  # the first round compiles the modules to bytecode
            results[name].append(figures)
    return build_line("**A worker's import**, CPU", "ms", results, "CPU", PAIR, "")


def measure_lines(scale: Scale) -> Iterator[Line]:
    yield measure(max(5, scale.rounds))


def main() -> None:
    parser = argparse.ArgumentParser(description="Benchmark of a Spark worker's imports.")
    parser.add_argument("--rounds", type=int, default=11)
    print(format_table([measure(parser.parse_args().rounds)]))


if __name__ == "__main__":
    main()
