"""The parts of `make test`, which run concurrently because they mostly wait for brokers and JVMs.

`python -m tests.runner.parts` prints the output of each part when it has ended, and finally the duration of all parts,
longest first. Each part is one process, with a JVM and clusters that its tests share. Files in integration/ that no
part contains belong to REMAINING_PART.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import IO

ROOT = Path(__file__).resolve().parents[2]
PYTEST = (sys.executable, "-m", "pytest")
SUBREAPER = (sys.executable, "-m", "tests.runner.subreaper")
POLL_SECONDS = 0.1


@dataclass(frozen=True)
class Part:
    """A command, and the parts that must have passed before it starts."""

    name: str
    command: Sequence[str]
    predecessors: tuple[str, ...] = ()


@dataclass
class PartResult:
    """The exit status and the duration of a part."""

    part: Part
    status: int
    seconds: float
    cpu_seconds: float
    """CPU time of the part and all its descendants (subreaper.py)."""


FILES = {
    "spark cluster": ("test_spark_cluster.py", "test_spark_submit.py"),
    "faults": (
        "test_faults_of_brokers.py",
        "test_coordinators_real_kafka.py",
        "test_exactly_once_paused.py",
        "test_faults_of_transactions.py",
        "test_faults_on_the_wire.py",
        "test_rack_awareness.py",
    ),
    "killed drivers": ("test_spark_memory.py", "test_exactly_once_spark.py"),
    "exactly once": ("test_exactly_once_killed.py",),
    "memory and network": ("test_producer_memory.py", "test_network.py", "test_partitioner_keys.py"),
}
"""Files of integration/ by part.

The files of a part share its clusters, which cost more than most tests: an idle broker takes 3 % of a core. So the four
nodes of `kafka3` run in one part only.
"""

REMAINING_PART = "real kafka"
PYSPARK_VERSIONS = ROOT / "tests" / "spark" / "pyspark_versions.txt"
"""File with the versions of pyspark, other than the newest, for the smoke suite. The Makefile reads it, too."""


def list_parts() -> list[Part]:
    """Return all parts. Those that others need come first, then the longest, so that none runs alone at the end."""
    *long_parts, short_part = [
        _pytest(name, [f"integration/{file}" for file in files]) for name, files in FILES.items()
    ]
    ignore_options = [f"--ignore=integration/{file}" for files in FILES.values() for file in files]
    return [
        Part("jars", ["make", "--no-print-directory", "test-prepare"]),
        Part("installation", ["make", "--no-print-directory", "test-prepare-pyspark"]),
        Part("unit", ["make", "--no-print-directory", "test-unit"]),
        _pytest("spark", ["tests/spark"]),
        _pytest(REMAINING_PART, ["integration", *ignore_options]),
        *long_parts,
        *(_smoke_tests(version) for version in PYSPARK_VERSIONS.read_text().split()),
        short_part,
    ]


def _smoke_tests(version: str) -> Part:
    """Return the part of the smoke suite on one version of pyspark."""
    target = f"test-pyspark-{version}"
    return Part(f"pyspark {version}", ["make", "--no-print-directory", target], predecessors=("jars", "installation"))


def _pytest(name: str, arguments: Sequence[str]) -> Part:
    return Part(name, [*PYTEST, *arguments], predecessors=("jars",))


class RunningPart:
    """A part that runs in a process group of its own and writes its output to a file."""

    def __init__(self, part: Part) -> None:
        self.part = part
        self._output: IO[bytes] = tempfile.TemporaryFile()  # noqa: SIM115 - closed after it was read
        self._started_s = time.monotonic()
        self._process = subprocess.Popen(
            [*SUBREAPER, *part.command], cwd=ROOT, stdout=self._output, stderr=subprocess.STDOUT, start_new_session=True
        )

    def poll_result(self) -> PartResult | None:
        pid, status, usage = os.wait4(self._process.pid, os.WNOHANG)
        if pid == 0:
            return None
        self._process.returncode = os.waitstatus_to_exitcode(status)  # otherwise Popen would wait for the process again
        seconds = time.monotonic() - self._started_s
        return PartResult(self.part, self._process.returncode, seconds, usage.ru_utime + usage.ru_stime)

    def output(self) -> str:
        self._output.seek(0)
        with self._output:
            return self._output.read().decode(errors="replace")

    def kill(self) -> None:
        os.killpg(self._process.pid, signal.SIGKILL)
        self._process.wait()
        self._output.close()


def run(parts: Sequence[Part], max_concurrent: int) -> list[PartResult]:
    """Run all parts and print the output of each when it ends. A part whose predecessor has failed fails as well."""
    waiting, running, results = list(parts), list[RunningPart](), dict[str, PartResult]()
    try:
        while waiting or running:
            for part in [part for part in waiting if all(name in results for name in part.predecessors)]:
                if any(results[name].status for name in part.predecessors):
                    waiting.remove(part)
                    results[part.name] = PartResult(part, 1, 0.0, 0.0)
                elif len(running) < max_concurrent:
                    waiting.remove(part)
                    running.append(RunningPart(part))
            for running_part in list(running):
                result = running_part.poll_result()
                if result is not None:
                    running.remove(running_part)
                    results[running_part.part.name] = result
                    print(f"=== {running_part.part.name}\n{running_part.output()}", flush=True)
            time.sleep(POLL_SECONDS)
    finally:
        for running_part in running:
            running_part.kill()
    return list(results.values())


def format_table(results: Sequence[PartResult], seconds: float) -> str:
    rows = []
    for result in sorted(results, key=lambda result: -result.seconds):
        verdict = f"FAILED ({result.status})" if result.status else "passed"
        rows.append(f"{result.part.name:<20} {result.seconds:7.0f} {result.cpu_seconds:7.0f}  {verdict}")
    rows.append(f"{'all':<20} {seconds:7.0f} {sum(result.cpu_seconds for result in results):7.0f}")
    return "\n".join([f"{'part':<20} {'seconds':>7} {'CPU s':>7}", *rows])


def main() -> int:
    started_s = time.monotonic()
    max_concurrent = int(os.environ.get("PARTS") or (os.cpu_count() or 1) + 1)
    results = run(list_parts(), max_concurrent)
    print(format_table(results, time.monotonic() - started_s))
    return int(any(result.status for result in results))


if __name__ == "__main__":
    sys.exit(main())
