"""What a write costs its brokers, by simulation: connections, requests, batches, memory, time, and how they grow.

    python -m tests.scale --tasks 1000 --partitions 10000 --brokers 100

Two tables: with rows that go from each task to all partitions, and with rows that were brought to the task of their
partition first. Their first line is the write that was asked for; in each of the others one of tasks, partitions and
brokers is a quarter of it. Times are virtual; what they rest on is printed, and may be changed by options.
"""

from __future__ import annotations

import argparse
import logging
from collections.abc import Iterator
from dataclasses import replace

from tests.scale.served_cluster import SLOWNESS, Service
from tests.scale.simulated_write import SimulatedWrite, Write, Written

COLUMNS = (
    ("connections", "connections"),
    ("requests", "requests"),
    ("requests_per_second", "requests/s"),
    ("requests_per_million_rows", "per million rows"),
    ("batch_bytes", "bytes a batch"),
    ("memory_bytes", "memory of a producer"),
    ("producer_states", "producer states"),
    ("retried", "rows sent again"),
    ("failed", "rows failed"),
    ("lost", "rows lost"),
    ("seconds", "seconds"),
)


def main() -> int:
    chosen = arguments()
    logging.disable(logging.WARNING)  # of the broker that dies
    write = Write(
        tasks=chosen.tasks,
        partitions=chosen.partitions,
        brokers=chosen.brokers,
        at_once=chosen.at_once or max(1, chosen.tasks // 4),
        rows=chosen.rows,
        sampled=chosen.sampled,
        service=Service(connections_max=chosen.connections_max),
    )
    print(assumptions(write))
    lost = 0
    for distributed in (False, True):
        print("\neach partition has the rows of few tasks" if distributed else "\neach task has rows of all partitions")
        print(" ".join(f"{name:>20}" for name in ("tasks x part. x brokers", *(shown for _, shown in COLUMNS))))
        for each in variants(replace(write, distributed=distributed)):
            written = SimulatedWrite(each).run()
            lost += written.lost + written.doubled
            print(line(each, written), flush=True)
    return int(lost > 0)


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m tests.scale", description=__doc__)
    add = parser.add_argument
    add("--tasks", type=int, default=1000)
    add("--partitions", type=int, default=10_000)
    add("--brokers", type=int, default=100)
    add("--at-once", type=int, help="tasks that run at one time (a quarter of them)")
    add("--rows", type=int, default=Write.rows, help="of a task (%(default)s)")
    add("--sampled", type=int, default=Write.sampled, help="tasks at one time that are played (%(default)s)")
    add("--connections-max", type=int, default=Service.connections_max, help="of a broker (%(default)s)")
    return parser.parse_args()


def assumptions(write: Write) -> str:
    service = write.service
    return (
        f"{write.tasks} tasks, {write.at_once} at once, of {write.rows} rows of {write.row_bytes} bytes, which come at "
        f"{write.rows_per_second:.0f} rows/s in each.\n"
        f"Sampled: of the tasks at once {write.places} are played, and each counts {write.weight:g} times; "
        "all partitions and brokers are played.\n"
        f"A broker needs {service.request_ms} ms for a request, {service.partition_ms} ms for each batch in it and a "
        f"second for {service.bytes_per_ms / 1000:.0f} MB; one needs {SLOWNESS} times as long, and one dies with its "
        "second request."
    )


def variants(write: Write) -> Iterator[Write]:
    yield write
    yield replace(write, tasks=max(1, write.tasks // 4), at_once=max(1, write.at_once // 4))
    yield replace(write, partitions=max(1, write.partitions // 4))
    yield replace(write, brokers=max(1, write.brokers // 4))


def line(write: Write, written: Written) -> str:
    values = [f"{getattr(written, name):,.0f}" for name, _ in COLUMNS[:-1]] + [f"{written.seconds:,.1f}"]
    name = f"{write.tasks} x {write.partitions} x {write.brokers}"
    return " ".join(f"{value:>20}" for value in (name, *values))


if __name__ == "__main__":
    raise SystemExit(main())
