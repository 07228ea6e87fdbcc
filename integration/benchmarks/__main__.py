"""All benchmarks of docs/benchmarks.md in sequence: `make bench`, or `make bench QUICK=1` for a quick run.

The full run writes the page's table and chart, the README's row, and rows of history.md. `--only NAME` runs the parts
whose names contain NAME. With `--quick` or `--only`, the results are only printed. Progress is printed to stderr.
"""

from __future__ import annotations

import argparse
import os
import platform
import subprocess
import sys
import time
from collections.abc import Callable, Iterable
from datetime import datetime, timezone

from integration.benchmarks import (
    cold_job,
    exactly_once,
    formats,
    producer,
    small_writes,
    spark_sink,
    wide,
    worker_import,
)
from integration.benchmarks.discard_broker import discard_broker
from integration.benchmarks.page import FULL, QUICK, ROOT, Line, Scale, format_results, write_history, write_page
from integration.benchmarks.spark_sink import TOPICS


def _measure_small_writes(scale: Scale) -> Iterable[Line]:
    with discard_broker(TOPICS) as (bootstrap, _):
        yield from small_writes.measure_lines(scale, bootstrap)


PARTS: dict[str, Callable[[Scale], Iterable[Line]]] = {
    "spark": lambda scale: spark_sink.measure_lines(scale, with_for_each=scale is FULL),
    "small": _measure_small_writes,
    "cold": cold_job.measure_lines,
    "once": exactly_once.measure_lines,
    "producer": producer.measure_lines,
    "wide": wide.measure_lines,
    "formats": formats.measure_lines,
    "import": worker_import.measure_lines,
}


def main() -> None:
    parser = argparse.ArgumentParser(description="All benchmarks, as the table and the chart of docs/benchmarks.md.")
    parser.add_argument("--quick", action="store_true", help="fewer rounds and rows; the page is not written")
    parser.add_argument("--only", default="", help=f"the parts whose names have this in them: {', '.join(PARTS)}")
    arguments = parser.parse_args()
    scale = QUICK if arguments.quick else FULL
    started, loads, lines = time.monotonic(), [os.getloadavg()[0]], list[Line]()
    for name, part in PARTS.items():
        if arguments.only in name:
            lines += part(scale)
            loads.append(os.getloadavg()[0])
            print(f"{name}: {time.monotonic() - started:.0f} s since the start", file=sys.stderr, flush=True)
    text = format_results(lines, describe_conditions(scale, loads))
    print(text)
    if scale is FULL and not arguments.only:
        write_page(text, lines)
        write_history(lines, f"{datetime.now(timezone.utc):%Y-%m-%d}", read_commit_id())


def read_commit_id() -> str:
    completed = subprocess.run(["git", "rev-parse", "--short", "HEAD"], cwd=ROOT, capture_output=True, text=True)
    return completed.stdout.strip()


def describe_conditions(scale: Scale, loads: list[float]) -> str:
    python = f"{platform.python_implementation()} {platform.python_version()}"
    return (
        f"Measured at commit `{read_commit_id()}` in {scale.rounds} rounds with {python}, on {os.cpu_count()} cores "
        f"that the brokers and clients shared. Between the parts of the benchmark, the load average was "
        f"{min(loads):.1f} to {max(loads):.1f}, including the benchmark's own load."
    )


if __name__ == "__main__":
    main()
