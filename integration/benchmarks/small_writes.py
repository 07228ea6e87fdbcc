"""What a small write costs: micro-batches of 1,000 rows in two tasks, and jobs of 1,000 rows in a warm session.

    python -m integration.benchmarks.small_writes [--rounds 7] [--count 20] [--rows 1000] [--what stream,jobs]

Each contender has a driver of its own (`local[2]`), because Spark's Python workers are shared by all sinks of a
session: what one sink does to a worker would change what another one costs. All drivers are up before the first round,
and take turns; while one works the others idle. Without `--bootstrap` a discard broker runs in a process of its own.

- addBatch and trigger: from Spark's own progress of each micro-batch; the median of a round. Trigger is the time from
  the beginning of one to the beginning of the next.
- CPU: of all processes of the driver, by kind, over the same micro-batches. The broker is not included.

`--conf name:key=value` adds a contender that is ours with a setting of Spark's; `--tree name=folder` one that is ours
from another checkout of the project, so that a change is measured beside what was before it.
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
from integration.benchmarks.page import Line, Scale, in_turns, line_of, table
from integration.benchmarks.spark_sink import TOPIC, TOPICS

ROOT = Path(__file__).resolve().parents[2]
DRIVER = Path(__file__).with_name("small_writes_driver.py")


class Contender(NamedTuple):
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
    """A process with a Spark session, which carries out commands."""

    def __init__(self, contender: Contender, bootstrap: str) -> None:
        options = {"kafka.bootstrap.servers": bootstrap, "topic": TOPIC, **contender.options}
        what = json.dumps([contender.sink, dict(contender.conf), options, contender.rows])
        environment = {
            **os.environ,
            "PYTHONPATH": contender.tree,
            "PYSPARK_PYTHON": sys.executable,
            "SPARK_LOCAL_IP": "127.0.0.1",
        }
        self._process = subprocess.Popen(
            [sys.executable, DRIVER, what],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            cwd=contender.tree,
            env=environment,
        )

    def await_ready(self) -> None:
        assert self._process.stdout is not None
        while (line := self._process.stdout.readline()) != "ready\n":
            if not line:
                raise RuntimeError("the driver has ended")

    def run(self, what: str, count: int) -> dict[str, Any]:
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write(json.dumps([what, count]) + "\n")
        self._process.stdin.flush()
        result: dict[str, Any] = json.loads(self._process.stdout.readline())
        return result

    def close(self) -> None:
        assert self._process.stdin is not None
        self._process.stdin.close()
        self._process.wait()


def figures(seen: dict[str, Any]) -> dict[str, float]:
    """One round: medians, and CPU in all and by kind."""
    times = {name: statistics.median(values) for name, values in seen.items() if name != "cpu"}
    return {**times, "CPU": sum(seen["cpu"].values()), **{f"CPU {kind}": each for kind, each in seen["cpu"].items()}}


Seen = dict[str, list[dict[str, float]]]
"""By contender: the figures of each round."""


def compare(contenders: Mapping[str, Contender], counts: Mapping[str, int], rounds: int, bootstrap: str) -> list[Seen]:
    """`counts`: how many micro-batches ("stream") and jobs ("jobs") a round has; the result is in the same order."""
    with contextlib.ExitStack() as stack:
        drivers: dict[str, Driver] = {}
        for name, contender in contenders.items():
            drivers[name] = Driver(contender, bootstrap)
            stack.callback(drivers[name].close)
        for driver in drivers.values():
            driver.await_ready()
        return [_measured(drivers, what, count, rounds) for what, count in counts.items()]


def _measured(drivers: Mapping[str, Driver], what: str, count: int, rounds: int) -> Seen:
    seen: Seen = {name: [] for name in drivers}
    for driver in drivers.values():
        driver.run(what, 2 * count)  # JVMs compile what they run often
    for turn, name in in_turns(list(drivers), rounds):
        one = figures(drivers[name].run(what, count))
        seen[name].append(one)
        words = ", ".join(f"{key} {value:.0f}" for key, value in one.items())
        load = os.getloadavg()[0]
        print(f"round {turn + 1}: {what}: {name}: {words}; load {load:.1f}", file=sys.stderr, flush=True)
    return seen


def show(what: str, seen: Seen) -> None:
    keys = [key for key in ("addBatch", "trigger", "job", "CPU") if key in next(iter(seen.values()))[0]]
    kinds = sorted({key for runs in seen.values() for run in runs for key in run if key.startswith("CPU ")})
    print(f"\n| {what} | " + " | ".join([*keys, *kinds]) + " |")
    print("|---|" + "---:|" * len([*keys, *kinds]))
    for name, runs in seen.items():
        cells = [f"{statistics.median(run.get(key, 0.0) for run in runs):.0f}" for key in [*keys, *kinds]]
        print(f"| {name} | " + " | ".join(cells) + " |")
    first, *others = seen
    print()
    print(table(line_of(f"{what}, {key}", "ms", seen, key, (first, other), "") for other in others for key in keys))


def lines(scale: Scale, bootstrap: str) -> Iterator[Line]:
    stream, jobs = compare(CONTENDERS, {"stream": scale.of(30), "jobs": scale.of(10, 4)}, scale.rounds, bootstrap)
    batch = "a micro-batch of 1,000 rows in two tasks"
    yield line_of(f"**Small writes**, {batch}: `addBatch`", "ms", stream, "addBatch", (OURS, COUNTING), "0.9")
    yield line_of("... from trigger to trigger", "ms", stream, "trigger", (OURS, COUNTING), "0.95")
    yield line_of("... CPU of all processes", "ms", stream, "CPU", (OURS, COUNTING), "1.1")
    for key, what in (("addBatch", "`addBatch`"), ("trigger", "from trigger to trigger"), ("CPU", "CPU")):
        for other in (SPARKS, NOOP):
            yield line_of(f"... {what}", "ms", stream, key, (OURS, other), "")
    yield line_of("a job of 1,000 rows in a warm session", "ms", jobs, "job", (OURS, SPARKS), "1.5")
    yield line_of("... CPU", "ms", jobs, "CPU", (OURS, SPARKS), "")


def main() -> None:
    parser = argparse.ArgumentParser(description="What a small write costs.")
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--count", type=int, default=20, help="micro-batches or jobs in a round")
    parser.add_argument("--rows", type=int, default=1_000, help="of each of them: settings matter for large ones, too")
    parser.add_argument("--what", default="stream,jobs")
    parser.add_argument("--bootstrap", help=f"a Kafka with the topic {TOPIC}, instead of the discard broker")
    parser.add_argument("--only", default="", help="the contenders whose names have this in them, and ours")
    parser.add_argument("--conf", action="append", default=[], metavar="NAME:KEY=VALUE")
    parser.add_argument("--tree", action="append", default=[], metavar="NAME=FOLDER")
    arguments = parser.parse_args()
    contenders = {name: each for name, each in CONTENDERS.items() if name == OURS or arguments.only in name}
    for text in arguments.tree:
        name, _, folder = text.partition("=")
        contenders[name] = Contender("pykafka", tree=str(Path(folder).resolve()))
    for text in arguments.conf:
        name, _, setting = text.partition(":")
        key, _, value = setting.partition("=")
        contenders[name] = Contender("pykafka", {key: value})
    contenders = {name: each._replace(rows=arguments.rows) for name, each in contenders.items()}
    counts = dict.fromkeys(arguments.what.split(","), arguments.count)
    with contextlib.ExitStack() as stack:
        bootstrap = arguments.bootstrap or stack.enter_context(discard_broker(TOPICS))[0]
        for what, seen in zip(counts, compare(contenders, counts, arguments.rounds, bootstrap), strict=True):
            show(what, seen)


if __name__ == "__main__":
    main()
