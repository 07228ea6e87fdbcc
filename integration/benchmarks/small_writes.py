"""Benchmark of small writes: micro-batches of 1,000 rows in two tasks, and jobs of 1,000 rows in a warm session.

    python -m integration.benchmarks.small_writes [--rounds 7] [--count 20] [--rows 1000] [--what stream,jobs]

Each contender has its own driver (`local[2]`). Sinks of one session would share Python workers, and so influence each
other's cost. All drivers start before the first round and then take turns, so only one driver works at a time. Without
`--bootstrap`, a discard broker runs in a separate process.

- addBatch and trigger: medians of a round, from Spark's progress of each micro-batch. Trigger is the time between the
  starts of consecutive micro-batches.
- CPU: CPU time of all processes of the driver during these micro-batches, by kind of process, without the broker.

`--conf NAME:KEY=VALUE` adds pykafka with a Spark setting as a contender. `--tree NAME=FOLDER` adds pykafka from another
checkout of the project, so that a change can be compared with the code before it.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import statistics
import subprocess
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Any, NamedTuple

from integration.benchmarks.discard_broker import discard_broker
from integration.benchmarks.page import Line, Scale, build_line, format_table, iterate_turns
from integration.benchmarks.spark_sink import TOPIC, TOPICS

ROOT = Path(__file__).resolve().parents[2]
DRIVER = Path(__file__).with_name("small_writes_driver.py")


class Contender(NamedTuple):
    """A sink with Spark settings and options. `tree` is the checkout of the project that is used."""

    sink: str
    conf: Mapping[str, str] = MappingProxyType({})
    options: Mapping[str, str] = MappingProxyType({})
    tree: str = str(ROOT)
    rows: int = 1_000


OURS, COUNTING, SPARKS, NOOP = "pykafka", "an Arrow writer that only counts", "Spark's own sink", "noop"
CONTENDERS = {
    OURS: Contender("pykafka"),
    COUNTING: Contender("counting"),
    SPARKS: Contender("kafka"),
    NOOP: Contender("noop"),
}


class Driver:
    """A process with a Spark session that runs the requested workloads (small_writes_driver.py)."""

    def __init__(self, contender: Contender, bootstrap: str) -> None:
        options = {"kafka.bootstrap.servers": bootstrap, "topic": TOPIC, **contender.options}
        workload = json.dumps([contender.sink, dict(contender.conf), options, contender.rows])
        environment = {
            **os.environ,
            "PYTHONPATH": contender.tree,
            "PYSPARK_PYTHON": sys.executable,
            "SPARK_LOCAL_IP": "127.0.0.1",
        }
        self._process = subprocess.Popen(
            [sys.executable, DRIVER, workload],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            cwd=contender.tree,
            env=environment,
        )

    def wait_until_ready(self) -> None:
        """Wait until the session has started. Raise RuntimeError if the process ends before."""
        assert self._process.stdout is not None
        while (line := self._process.stdout.readline()) != "ready\n":
            if not line:
                raise RuntimeError("the driver has ended")

    def run(self, workload: str, count: int) -> dict[str, Any]:
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write(json.dumps([workload, count]) + "\n")
        self._process.stdin.flush()
        result: dict[str, Any] = json.loads(self._process.stdout.readline())
        return result

    def close(self) -> None:
        assert self._process.stdin is not None
        self._process.stdin.close()
        self._process.wait()


def compute_figures(results: dict[str, Any]) -> dict[str, float]:
    """Compute the figures of a round: the median of each time, and the CPU time in total and by kind of process."""
    times = {name: statistics.median(values) for name, values in results.items() if name != "cpu"}
    return {
        **times,
        "CPU": sum(results["cpu"].values()),
        **{f"CPU {kind}": milliseconds for kind, milliseconds in results["cpu"].items()},
    }


RoundFigures = dict[str, list[dict[str, float]]]
"""The figures of each round, by contender."""


def compare(
    contenders: Mapping[str, Contender], counts: Mapping[str, int], rounds: int, bootstrap: str
) -> list[RoundFigures]:
    """Run all contenders, and return the results of each workload.

    `counts`: the number of micro-batches ("stream") and jobs ("jobs") in a round. The results have the same order.
    """
    with contextlib.ExitStack() as stack:
        drivers: dict[str, Driver] = {}
        for name, contender in contenders.items():
            drivers[name] = Driver(contender, bootstrap)
            stack.callback(drivers[name].close)
        for driver in drivers.values():
            driver.wait_until_ready()
        return [_measure_workload(drivers, workload, count, rounds) for workload, count in counts.items()]


def _measure_workload(drivers: Mapping[str, Driver], workload: str, count: int, rounds: int) -> RoundFigures:
    """Run a workload on all drivers in turns, after a warm-up. Return the figures of each round."""
    results: RoundFigures = {name: [] for name in drivers}
    for driver in drivers.values():
        driver.run(workload, 2 * count)  # a warm-up, because JVMs compile code that runs often
    for turn, name in iterate_turns(list(drivers), rounds):
        round_figures = compute_figures(drivers[name].run(workload, count))
        results[name].append(round_figures)
        summary = ", ".join(f"{key} {value:.0f}" for key, value in round_figures.items())
        load = os.getloadavg()[0]
        print(f"round {turn + 1}: {workload}: {name}: {summary}; load {load:.1f}", file=sys.stderr, flush=True)
    return results


def show(workload: str, results: RoundFigures) -> None:
    """Print the medians of all contenders, and the ratios of the first contender to each of the others."""
    keys = [key for key in ("addBatch", "trigger", "job", "CPU") if key in next(iter(results.values()))[0]]
    kinds = sorted({key for runs in results.values() for run in runs for key in run if key.startswith("CPU ")})
    print(f"\n| {workload} | " + " | ".join([*keys, *kinds]) + " |")
    print("|---|" + "---:|" * len([*keys, *kinds]))
    for name, runs in results.items():
        cells = [f"{statistics.median(run.get(key, 0.0) for run in runs):.0f}" for key in [*keys, *kinds]]
        print(f"| {name} | " + " | ".join(cells) + " |")
    first, *others = results
    print()
    print(
        format_table(
            build_line(f"{workload}, {key}", "ms", results, key, (first, other), "") for other in others for key in keys
        )
    )


def measure_lines(scale: Scale, bootstrap: str) -> Iterator[Line]:
    stream, jobs = compare(
        CONTENDERS, {"stream": scale.scale_count(30), "jobs": scale.scale_count(10, 4)}, scale.rounds, bootstrap
    )
    batch = "a micro-batch of 1,000 rows in two tasks"
    yield build_line(f"**Small writes**, {batch}: `addBatch`", "ms", stream, "addBatch", (OURS, COUNTING), "0.9")
    yield build_line("... from trigger to trigger", "ms", stream, "trigger", (OURS, COUNTING), "0.95")
    yield build_line("... CPU of all processes", "ms", stream, "CPU", (OURS, COUNTING), "1.1")
    for key, workload in (("addBatch", "`addBatch`"), ("trigger", "from trigger to trigger"), ("CPU", "CPU")):
        for other in (SPARKS, NOOP):
            yield build_line(f"... {workload}", "ms", stream, key, (OURS, other), "")
    yield build_line("a job of 1,000 rows in a warm session", "ms", jobs, "job", (OURS, SPARKS), "1.5")
    yield build_line("... CPU", "ms", jobs, "CPU", (OURS, SPARKS), "")


def main() -> None:
    parser = argparse.ArgumentParser(description="Benchmark of small writes.")
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--count", type=int, default=20, help="micro-batches or jobs in a round")
    parser.add_argument("--rows", type=int, default=1_000, help="rows of each micro-batch or job")
    parser.add_argument("--what", default="stream,jobs")
    parser.add_argument("--bootstrap", help=f"a Kafka with the topic {TOPIC}, instead of the discard broker")
    parser.add_argument("--only", default="", help="run only pykafka and the contenders whose names contain this text")
    parser.add_argument("--conf", action="append", default=[], metavar="NAME:KEY=VALUE")
    parser.add_argument("--tree", action="append", default=[], metavar="NAME=FOLDER")
    arguments = parser.parse_args()
    contenders = {name: contender for name, contender in CONTENDERS.items() if name == OURS or arguments.only in name}
    for text in arguments.tree:
        name, _, folder = text.partition("=")
        contenders[name] = Contender("pykafka", tree=str(Path(folder).resolve()))
    for text in arguments.conf:
        name, _, setting = text.partition(":")
        key, _, value = setting.partition("=")
        contenders[name] = Contender("pykafka", {key: value})
    contenders = {name: contender._replace(rows=arguments.rows) for name, contender in contenders.items()}
    counts = dict.fromkeys(arguments.what.split(","), arguments.count)
    with contextlib.ExitStack() as stack:
        bootstrap = arguments.bootstrap or stack.enter_context(discard_broker(TOPICS))[0]
        for workload, results in zip(counts, compare(contenders, counts, arguments.rounds, bootstrap), strict=True):
            show(workload, results)


if __name__ == "__main__":
    main()
