"""`make test`: its parts, several at a time, since most of them wait for a broker or a JVM more than they compute.

`python -m tests.runner.parts` prints what each part said when it has ended, and at the end how long each took,
beginning with the longest. One process for each part: it has a JVM and clusters of its own, which its tests share. A
file of integration/ that no part names belongs to REST.
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
ADOPTING = (sys.executable, "-m", "tests.runner.adopting")
LOOK_SECONDS = 0.1


@dataclass(frozen=True)
class Part:
    """`after`: the parts that must have ended well before this one begins."""

    name: str
    command: Sequence[str]
    after: tuple[str, ...] = ()


@dataclass
class Ended:
    part: Part
    status: int
    seconds: float
    cpu_seconds: float
    """Its own and that of everything that it has started (adopting.py)."""


FILES = {
    "spark cluster": ("test_spark_cluster.py", "test_spark_memory.py", "test_spark_submit.py"),
    "faults": (
        "test_faults_of_brokers.py",
        "test_coordinators_real_kafka.py",
        "test_exactly_once_paused.py",
        "test_faults_of_transactions.py",
        "test_faults_on_the_wire.py",
    ),
    "killed drivers": ("test_exactly_once_spark.py",),
    "exactly once": ("test_exactly_once_killed.py",),
    "memory and network": ("test_producer_memory.py", "test_network.py", "test_partitioner_keys.py"),
}
"""The files of integration/ by the part that runs them. Those of a part share its clusters, which cost more than most
tests: a broker without work takes 3 % of a core, so the four nodes of `kafka3` run in one part only."""

REST = "real kafka"


def parts() -> list[Part]:
    """What others need comes first, then the long ones, so that none is left alone at the end."""
    *real, short = [_pytest(name, [f"integration/{file}" for file in files]) for name, files in FILES.items()]
    named = [f"--ignore=integration/{file}" for files in FILES.values() for file in files]
    return [
        Part("jars", ["make", "--no-print-directory", "test-prepare"]),
        Part("installation", ["make", "--no-print-directory", "test-prepare-oldest"]),
        Part("unit", ["make", "--no-print-directory", "test-unit"]),
        _pytest("spark", ["tests/spark"]),
        _pytest(REST, ["integration", *named]),
        *real,
        Part("oldest pyspark", ["make", "--no-print-directory", "test-oldest-spark"], after=("jars", "installation")),
        short,
    ]


def _pytest(name: str, arguments: Sequence[str]) -> Part:
    return Part(name, [*PYTEST, *arguments], after=("jars",))


class Running:
    """A part in a process group of its own, its output in a file."""

    def __init__(self, part: Part) -> None:
        self.part = part
        self._output: IO[bytes] = tempfile.TemporaryFile()  # noqa: SIM115 - closed when it was read
        self._started = time.monotonic()
        self._process = subprocess.Popen(
            [*ADOPTING, *part.command], cwd=ROOT, stdout=self._output, stderr=subprocess.STDOUT, start_new_session=True
        )

    def ended(self) -> Ended | None:
        pid, status, usage = os.wait4(self._process.pid, os.WNOHANG)
        if pid == 0:
            return None
        self._process.returncode = os.waitstatus_to_exitcode(status)  # else it would be waited for again
        seconds = time.monotonic() - self._started
        return Ended(self.part, self._process.returncode, seconds, usage.ru_utime + usage.ru_stime)

    def output(self) -> str:
        self._output.seek(0)
        with self._output:
            return self._output.read().decode(errors="replace")

    def kill(self) -> None:
        os.killpg(self._process.pid, signal.SIGKILL)
        self._process.wait()
        self._output.close()


def run(parts: Sequence[Part], at_once: int) -> list[Ended]:
    """Prints the output of each part as it ends. A part whose predecessor has failed fails with it."""
    waiting, running, ended = list(parts), list[Running](), dict[str, Ended]()
    try:
        while waiting or running:
            for part in [part for part in waiting if all(name in ended for name in part.after)]:
                if any(ended[name].status for name in part.after):
                    waiting.remove(part)
                    ended[part.name] = Ended(part, 1, 0.0, 0.0)
                elif len(running) < at_once:
                    waiting.remove(part)
                    running.append(Running(part))
            for each in list(running):
                outcome = each.ended()
                if outcome is not None:
                    running.remove(each)
                    ended[each.part.name] = outcome
                    print(f"=== {each.part.name}\n{each.output()}", flush=True)
            time.sleep(LOOK_SECONDS)
    finally:
        for each in running:
            each.kill()
    return list(ended.values())


def table(ended: Sequence[Ended], seconds: float) -> str:
    rows = []
    for one in sorted(ended, key=lambda one: -one.seconds):
        how = f"FAILED ({one.status})" if one.status else "passed"
        rows.append(f"{one.part.name:<20} {one.seconds:7.0f} {one.cpu_seconds:7.0f}  {how}")
    rows.append(f"{'all':<20} {seconds:7.0f} {sum(one.cpu_seconds for one in ended):7.0f}")
    return "\n".join([f"{'part':<20} {'seconds':>7} {'of CPU':>7}", *rows])


def main() -> int:
    started = time.monotonic()
    at_once = int(os.environ.get("PARTS") or (os.cpu_count() or 1) + 1)
    ended = run(parts(), at_once)
    print(table(ended, time.monotonic() - started))
    return int(any(one.status for one in ended))


if __name__ == "__main__":
    sys.exit(main())
