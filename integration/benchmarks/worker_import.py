"""What a Spark worker spends on our imports, beside numpy, pyarrow and pyspark, which it needs for any Arrow writer.

    python -m integration.benchmarks.worker_import [--rounds 11]

CPU of processes that import and end, in turns.
"""

from __future__ import annotations

import argparse
import resource
import subprocess
import sys
from collections.abc import Iterator

from integration.benchmarks.page import Line, Scale, in_turns, line_of, table

OURS, BARE = PAIR = ("with pykafka", "numpy, pyarrow, pyspark")
_BARE = "import numpy, pyarrow, pyspark.worker, pyspark.sql.datasource"
CODE = {OURS: f"{_BARE}, spark_kafka_sink.spark.writer", BARE: _BARE}


def cpu_milliseconds(code: str) -> float:
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    subprocess.run([sys.executable, "-c", code], check=True)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    return (after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime) * 1000


def measure(rounds: int) -> Line:
    seen: dict[str, list[dict[str, float]]] = {name: [] for name in PAIR}
    for turn, name in in_turns(PAIR, rounds + 1):
        one = {"CPU": cpu_milliseconds(CODE[name])}
        if turn:  # what is imported has been compiled then
            seen[name].append(one)
    return line_of("**A worker's import**, CPU", "ms", seen, "CPU", PAIR, "")


def lines(scale: Scale) -> Iterator[Line]:
    yield measure(max(5, scale.rounds))


def main() -> None:
    parser = argparse.ArgumentParser(description="What a Spark worker spends on our imports.")
    parser.add_argument("--rounds", type=int, default=11)
    print(table([measure(parser.parse_args().rounds)]))


if __name__ == "__main__":
    main()
