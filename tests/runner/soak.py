"""The stages of `make soak`, which take hours and run one after the other.

`python -m tests.runner.soak VERSION...` also runs all Spark tests on these versions of pyspark. The output of a stage
goes to build/soak/STAGE.log. When a stage passes, the commit is written to build/soak/STAGE.passed, and a later run at
this commit skips the stage. So a run that was interrupted can be continued, and one that failed is repeated from the
stage that failed. With uncommitted changes no stage is skipped. A stage during which the commit changes is repeated.
"""

from __future__ import annotations

import os
import resource
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path

from tests.runner.parts import ROOT, SUBREAPER, Part
from tools.mutation_tester import TARGETS

FOLDER = ROOT / "build" / "soak"
HISTORIES = ROOT / "build" / "histories"
PARTS = 8
"""Number of stages that share the schedules with two switches, so that an interruption repeats only one of them."""
LAST_LINES = 40
"""Number of lines to print from the output of a failed stage."""

INTEGRATION_FILES = {
    "faults": ("test_faults_*.py",),
    "coordinators": ("test_coordinators_real_kafka.py", "test_log_writer_real_kafka.py"),
    "exactly-once": ("test_exactly_once_killed.py", "test_exactly_once_spark.py", "test_exactly_once_paused.py"),
    "spark-cluster": ("test_spark_cluster.py", "test_spark_memory.py"),
    "memory": ("test_producer_memory.py", "test_partitioner_keys.py"),
    "brokers": ("test_kafka_versions.py", "test_embedded_broker_clients.py", "test_other_brokers.py"),
}
"""The files of integration/ whose tests SOAK=1 extends."""


def list_stages(pyspark_versions: Sequence[str]) -> list[Part]:
    """Return all stages in the order in which they run."""
    return [
        _explorer("producer-seeds", "producer.explorer", *_SEEDS),
        _explorer("transaction-seeds", "producer.transaction_explorer", *_SEEDS),
        _explorer("exactly-once-seeds", "exactly_once.explorer", *_SEEDS, "--histories", str(HISTORIES)),
        _explorer("exactly-once-job-seeds", "exactly_once.explorer", "--jobs", "--seeds", "0:20000"),
        Part(
            "linearizability",
            ["sh", "-c", f"go -C tools/linearizability run . {HISTORIES}/*.jsonl"],
            predecessors=("exactly-once-seeds",),  # which may leave incomplete histories if it fails
        ),
        _explorer("one-switch-one-kill", "exactly_once.explorer", "--every", "1", "--faults", "1"),
        _explorer("no-switch-other-faults", "exactly_once.explorer", "--every", "0", "--faults", "1", *_OTHER_FAULTS),
        *(
            _explorer(f"two-switches-{part}", "exactly_once.explorer", *_TWO_SWITCHES, "--part", f"{part}:{PARTS}")
            for part in range(PARTS)
        ),
        *(
            Part(f"mutations-{name}", [sys.executable, "-m", "tools.mutation_tester", "--target", name, *_MUTANTS])
            for name in TARGETS
        ),
        Part("unit", ["env", "SOAK=1", "make", "--no-print-directory", "test-unit"]),
        *(
            Part(f"pyspark-{version}", ["make", "--no-print-directory", f"test-whole-pyspark-{version}"])
            for version in pyspark_versions
        ),
        Part("malformed-input", ["make", "--no-print-directory", "fuzz"]),
        *(_integration_tests(name, patterns) for name, patterns in INTEGRATION_FILES.items()),
    ]


_CPU_COUNT = os.cpu_count() or 1
_PROCESSES = ("--processes", str(_CPU_COUNT))
_MUTANTS = ("--processes", str(4 * _CPU_COUNT))  # many of them only wait until a test's time limit
_SEEDS = ("--seeds", "0:20000", "--require-branches")
_TWO_SWITCHES = ("--every", "2", "--faults", "0")
_OTHER_FAULTS = ("--kinds", "lose-response", "late-request")


def _explorer(name: str, module: str, *arguments: str) -> Part:
    return Part(name, [sys.executable, "-m", f"tests.{module}", *_PROCESSES, *arguments])


def _integration_tests(name: str, patterns: Sequence[str]) -> Part:
    files = sorted(str(file) for pattern in patterns for file in (ROOT / "integration").glob(pattern))
    return Part(name, ["env", "SOAK=1", sys.executable, "-m", "pytest", "--capture=no", *files])


def run_stages(stages: Sequence[Part], folder: Path, find_commit: Callable[[], str | None]) -> list[str]:
    """Run the stages that have not passed at the commit, if it is known. Return the names of those that failed.

    `find_commit` is called before and after each stage, because the tree can change during a run of hours.
    """
    folder.mkdir(parents=True, exist_ok=True)
    failed = []
    for stage in stages:
        if any(name in failed for name in stage.predecessors):
            print(f"{stage.name}: not run, because a stage that it needs has failed", flush=True)
            failed.append(stage.name)
            continue
        commit = find_commit()
        marker = folder / f"{stage.name}.passed"
        if commit is not None and marker.exists() and marker.read_text().split()[0] == commit:
            print(f"{stage.name}: has passed before", flush=True)
            continue
        marker.unlink(missing_ok=True)
        started_s, cpu_before_s = time.monotonic(), _children_cpu_seconds()
        with (folder / f"{stage.name}.log").open("wb") as log:
            status = subprocess.run([*SUBREAPER, *stage.command], cwd=ROOT, stdout=log, stderr=log).returncode
        duration = f"{time.monotonic() - started_s:.0f} s, {_children_cpu_seconds() - cpu_before_s:.0f} CPU s"
        print(f"{stage.name}: {f'FAILED ({status})' if status else 'passed'} in {duration}", flush=True)
        if status:
            failed.append(stage.name)
            print("\n".join(Path(log.name).read_text(errors="replace").splitlines()[-LAST_LINES:]), flush=True)
        elif commit is not None and find_commit() == commit:
            marker.write_text(f"{commit} {duration}\n")
    return failed


def _children_cpu_seconds() -> float:
    usage = resource.getrusage(resource.RUSAGE_CHILDREN)
    return usage.ru_utime + usage.ru_stime


def find_commit() -> str | None:
    """Return the commit of the tree, or None if there are uncommitted changes."""
    changes = subprocess.run(["git", "status", "--porcelain"], cwd=ROOT, capture_output=True, text=True, check=True)
    head = subprocess.run(["git", "rev-parse", "HEAD"], cwd=ROOT, capture_output=True, text=True, check=True)
    return None if changes.stdout.strip() else head.stdout.strip()


def main() -> int:
    failed = run_stages(list_stages(sys.argv[1:]), FOLDER, find_commit)
    if failed:
        print(f"Failed: {', '.join(failed)}. The output of each stage is in {FOLDER}.")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
