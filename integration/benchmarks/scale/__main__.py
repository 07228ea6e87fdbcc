"""Simulates a write to determine its load on the brokers, and how the load grows with tasks, partitions and brokers.

    python -m integration.benchmarks.scale --tasks 1000 --partitions 10000 --brokers 100

It prints two tables: one for rows that go from each task to all partitions, and one for rows that are first moved to
the task of their partition. The first column of a table is the requested write. In each of the other columns, the
number of tasks, partitions or brokers is a quarter of the requested number. The factor after a figure is its growth
from there to the first column. Times are virtual. The assumptions behind them are printed, and can be changed by
options.
"""

from __future__ import annotations

import argparse
import logging
import sys
from collections.abc import Sequence
from dataclasses import replace

from integration.benchmarks.scale.served_cluster import SLOWNESS, Service
from integration.benchmarks.scale.simulated_write import SimulatedWrite, Write, Written
from spark_kafka_sink.diagnostics.text import format_count

FIGURES = (
    ("connections", "connections at one time", "{:,.0f}"),
    ("requests", "Produce requests", "{:,.0f}"),
    ("requests_per_second", "... a second", "{:,.0f}"),
    ("requests_per_million_rows", "... for a million rows", "{:,.0f}"),
    ("batch_bytes", "bytes of a batch", "{:,.0f}"),
    ("memory_bytes", "buffer.memory of a producer, bytes", "{:,.0f}"),
    ("producer_states", "states of producers", "{:,.0f}"),
    ("retried", "rows sent again", "{:,.0f}"),
    ("failed", "rows given up", "{:,.0f}"),
    ("lost", "rows lost", "{:,.0f}"),
    ("doubled", "rows doubled", "{:,.0f}"),
    ("seconds", "seconds to the last acknowledgement", "{:,.1f}"),
)
GIVEN_UP = (
    "Rows given up have waited for kafka.delivery.timeout.ms, two minutes: the slow broker cannot bear what all tasks "
    "write to it. The write fails then, and says so; none is lost in silence."
)


def main() -> int:
    """Simulate the writes and print the tables. Return the exit status, which is 1 if rows were lost or duplicated."""
    chosen = arguments()
    logging.disable(logging.WARNING)  # no warnings about the failing broker
    write = Write(
        tasks=chosen.tasks,
        partitions=chosen.partitions,
        brokers=chosen.brokers,
        at_once=chosen.at_once or max(1, chosen.tasks // 4),
        rows=chosen.rows,
        sampled=chosen.sampled,
        service=Service(max_connections=chosen.connections_max),
    )
    print(assumptions(write))
    found: list[Written] = []
    for distributed in (False, True):
        cases = variants(replace(write, distributed=distributed))
        for title, each in cases.items():
            print(f"playing {title} ...", file=sys.stderr, flush=True)
            found.append(SimulatedWrite(each).run())
        print("\neach partition has the rows of few tasks" if distributed else "\neach task has rows of all partitions")
        print("\n".join(table(list(cases), found[-len(cases) :])), flush=True)
    if any(result.failed for result in found):
        print(f"\n{GIVEN_UP}")
    return int(any(result.lost or result.doubled for result in found))


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m integration.benchmarks.scale", description=__doc__)
    add = parser.add_argument
    add("--tasks", type=int, default=1000)
    add("--partitions", type=int, default=10_000)
    add("--brokers", type=int, default=100)
    add("--at-once", type=int, help="tasks that run at one time (a quarter of them)")
    add("--rows", type=int, default=Write.rows, help="of a task (%(default)s)")
    add("--sampled", type=int, default=Write.sampled, help="tasks at one time that are played (%(default)s)")
    add("--connections-max", type=int, default=Service.max_connections, help="of a broker (%(default)s)")
    return parser.parse_args()


def assumptions(write: Write) -> str:
    """Describe the requested write, the sample and the service times of the brokers."""
    service = write.service
    at_once = min(write.at_once, write.tasks)
    sampled = (
        f"Sampled: of the {at_once} tasks at once {write.places} are played, and each counts {write.weight:g} times"
    )
    if write.weight == 1:
        sampled = "Not sampled: all tasks are played"
    return (
        f"{format_count(write.tasks, 'task')}, {at_once} at once, of {write.rows:,} rows of {write.row_bytes} bytes, "
        f"which come at {write.rows_per_second:,.0f} rows/s in each.\n"
        f"{sampled}; all partitions and brokers are played.\n"
        f"A broker needs {service.request_ms} ms for a request, {service.partition_ms} ms for each batch in it and a "
        f"second for {service.bytes_per_ms / 1000:.0f} MB; one needs {SLOWNESS} times as long, and one dies with its "
        "second request."
    )


def variants(write: Write) -> dict[str, Write]:
    """Return the write and its variants with a quarter of the tasks, partitions or brokers, each with a title."""
    fewer = replace(write, tasks=max(1, write.tasks // 4), at_once=-(-write.at_once // 4))
    narrower = replace(write, partitions=max(1, write.partitions // 4))
    smaller = replace(write, brokers=max(1, write.brokers // 4))
    return {
        f"{write.tasks} x {write.partitions} x {write.brokers}": write,
        format_count(fewer.tasks, "task"): fewer,
        format_count(narrower.partitions, "partition"): narrower,
        format_count(smaller.brokers, "broker"): smaller,
    }


def table(titles: Sequence[str], found: Sequence[Written]) -> list[str]:
    """Return a line for each figure. The factor after a smaller write's figure is that of the first write to it."""
    width = max(len(shown) for _, shown, _ in FIGURES)
    lines = [f"{'':{width}} {titles[0]:>20}" + "".join(f"{title:>22}" for title in titles[1:])]
    for name, shown, form in FIGURES:
        whole, *quarters = (float(getattr(written, name)) for written in found)
        cells = (f"{form.format(quarter):>14}{_growth(whole, quarter):>8}" for quarter in quarters)
        lines.append(f"{shown:{width}} {form.format(whole):>20}{''.join(cells)}".rstrip())
    return lines


def _growth(whole: float, quarter: float) -> str:
    return f" x {whole / quarter:.1f}" if whole and quarter else ""


if __name__ == "__main__":
    raise SystemExit(main())
