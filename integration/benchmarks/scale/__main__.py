"""Simulation of a write, which shows its load on the brokers and how it grows with tasks, partitions and brokers.

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
from math import ceil

from integration.benchmarks.scale.served_cluster import SLOWNESS, Service
from integration.benchmarks.scale.simulated_write import SimulatedWrite, WriteParameters, WriteResult
from spark_kafka_sink.diagnostics.text import format_count

FIGURES = (
    ("max_connections", "concurrent connections", "{:,.0f}"),
    ("requests", "Produce requests", "{:,.0f}"),
    ("requests_per_second", "... per second", "{:,.0f}"),
    ("requests_per_million_rows", "... per million rows", "{:,.0f}"),
    ("batch_bytes", "mean batch, bytes", "{:,.0f}"),
    ("peak_memory_bytes", "buffer.memory used per producer, bytes", "{:,.0f}"),
    ("producer_states", "producer states", "{:,.0f}"),
    ("retried_rows", "retried rows", "{:,.0f}"),
    ("failed_rows", "failed rows", "{:,.0f}"),
    ("lost_rows", "lost rows", "{:,.0f}"),
    ("duplicated_rows", "duplicated rows", "{:,.0f}"),
    ("duration_s", "seconds to the last acknowledgement", "{:,.1f}"),
)
FAILED_ROWS_MESSAGE = (
    "Failed rows have waited for kafka.delivery.timeout.ms, two minutes, because the slow broker cannot keep up with "
    "all tasks. In that case, the write fails with an error."
)


def main() -> int:
    """Simulate the writes and print the tables. Return the exit status, which is 1 if rows were lost or duplicated."""
    options = parse_arguments()
    logging.disable(logging.WARNING)  # no warnings about the failing broker
    parameters = WriteParameters(
        tasks=options.tasks,
        partitions=options.partitions,
        brokers=options.brokers,
        concurrent_tasks=options.at_once or max(1, options.tasks // 4),
        rows=options.rows,
        max_simulated_slots=options.sampled,
        service=Service(max_connections=options.connections_max),
    )
    print(describe_assumptions(parameters))
    results: list[WriteResult] = []
    for is_distributed in (False, True):
        cases = build_variants(replace(parameters, is_distributed=is_distributed))
        for title, case in cases.items():
            print(f"Simulating {title} ...", file=sys.stderr, flush=True)
            results.append(SimulatedWrite(case).run())
        heading = (
            "each partition has the rows of few tasks" if is_distributed else "each task has rows of all partitions"
        )
        print(f"\n{heading}")
        print("\n".join(format_table(list(cases), results[-len(cases) :])), flush=True)
    if any(result.failed_rows for result in results):
        print(f"\n{FAILED_ROWS_MESSAGE}")
    return int(any(result.lost_rows or result.duplicated_rows for result in results))


def parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m integration.benchmarks.scale", description=__doc__)
    add = parser.add_argument
    add("--tasks", type=int, default=1000)
    add("--partitions", type=int, default=10_000)
    add("--brokers", type=int, default=100)
    add("--at-once", type=int, help="number of concurrent tasks (default: a quarter of the tasks)")
    add("--rows", type=int, default=WriteParameters.rows, help="rows of each task (default: %(default)s)")
    add(
        "--sampled",
        type=int,
        default=WriteParameters.max_simulated_slots,
        help="number of concurrent tasks that are simulated (default: %(default)s)",
    )
    add(
        "--connections-max",
        type=int,
        default=Service.max_connections,
        help="maximum number of connections per broker (default: %(default)s)",
    )
    return parser.parse_args()


def describe_assumptions(parameters: WriteParameters) -> str:
    """Describe the requested write, the sample and the service times of the brokers."""
    service = parameters.service
    concurrent_tasks = min(parameters.concurrent_tasks, parameters.tasks)
    sampled = (
        f"Of the {concurrent_tasks} concurrent tasks, {parameters.simulated_slots} are simulated, each of which "
        f"counts as {parameters.weight:g}"
    )
    if parameters.weight == 1:
        sampled = "All tasks are simulated"
    return (
        f"{format_count(parameters.tasks, 'task')}, {concurrent_tasks} of which run concurrently. Each receives "
        f"{parameters.rows:,} rows of {parameters.row_bytes} bytes at {parameters.rows_per_second:,.0f} rows/s.\n"
        f"{sampled}. All partitions and brokers are simulated.\n"
        f"A broker takes {service.request_ms} ms for a request, {service.partition_ms} ms for each batch in it and a "
        f"second for {service.bytes_per_ms / 1000:.0f} MB. One broker takes {SLOWNESS} times as long, and one fails at "
        "its second Produce request."
    )


def build_variants(parameters: WriteParameters) -> dict[str, WriteParameters]:
    """Return the write and its variants with a quarter of the tasks, partitions or brokers, each with a title."""
    fewer = replace(
        parameters, tasks=max(1, parameters.tasks // 4), concurrent_tasks=ceil(parameters.concurrent_tasks / 4)
    )
    narrower = replace(parameters, partitions=max(1, parameters.partitions // 4))
    smaller = replace(parameters, brokers=max(1, parameters.brokers // 4))
    return {
        f"{parameters.tasks} x {parameters.partitions} x {parameters.brokers}": parameters,
        format_count(fewer.tasks, "task"): fewer,
        format_count(narrower.partitions, "partition"): narrower,
        format_count(smaller.brokers, "broker"): smaller,
    }


def format_table(titles: Sequence[str], results: Sequence[WriteResult]) -> list[str]:
    """Return a line for each figure. The factor after a smaller write's figure is that of the first write to it."""
    width = max(len(title) for _, title, _ in FIGURES)
    lines = [f"{'':{width}} {titles[0]:>20}" + "".join(f"{title:>22}" for title in titles[1:])]
    for name, title, template in FIGURES:
        full_figure, *quarters = (float(getattr(result, name)) for result in results)
        cells = (f"{template.format(quarter):>14}{_format_growth(full_figure, quarter):>8}" for quarter in quarters)
        lines.append(f"{title:{width}} {template.format(full_figure):>20}{''.join(cells)}".rstrip())
    return lines


def _format_growth(full_figure: float, quarter: float) -> str:
    return f" x {full_figure / quarter:.1f}" if full_figure and quarter else ""


if __name__ == "__main__":
    raise SystemExit(main())
