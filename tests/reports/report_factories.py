"""Factories of reports."""

from __future__ import annotations

from random import Random

from spark_kafka_sink.producer.results import OffsetRange
from spark_kafka_sink.producer.totals import Totals
from spark_kafka_sink.producer.windows import LatencyHistogram
from spark_kafka_sink.reports.write_report import TaskSummary, WriteReport


def make_report(batch_id: int = 0, *, rows: int = 1_000, latency_ms: float = 20.0) -> WriteReport:
    latencies = LatencyHistogram()
    latencies.add(latency_ms, rows)
    return WriteReport(
        batch=f"6d2a/{batch_id}",
        started_ms=1_700_000_000_000 + 10_000 * batch_id,
        published_ms=1_700_000_000_600 + 10_000 * batch_id,
        duration_ms=500,
        tasks=2,
        partitions={"orders": {0: OffsetRange(batch_id * rows, batch_id * rows + rows - 1, rows)}},
        rows=rows,
        bytes=100 * rows,
        dead_letters=2,
        dead_letters_cut=1,
        errors={"RecordTooLargeError": 2},
        producer=Totals(bytes=44 * rows, uncompressed_bytes=110 * rows, latencies=latencies, retries=3, blocked_ms=40),
        longest_task_ms=400,
        task_list=(TaskSummary(0, 0, "worker-1", rows, 100 * rows, 400, 3, 40),),
    )


def make_micro_batches(writes: int) -> list[WriteReport]:
    """Return reports of the micro-batches of a stream, with one large partition and one slow task."""
    random = Random(writes)
    return [_micro_batch(random, number) for number in range(writes)]


def _micro_batch(random: Random, number: int) -> WriteReport:
    rows = [random.randrange(9_000, 11_000) * (3 if partition == 5 else 1) for partition in range(6)]
    latencies = LatencyHistogram()
    for _ in range(200):
        latencies.add(random.lognormvariate(3.2, 0.5), sum(rows) // 200)
    tasks = [
        TaskSummary(
            partition_id=task,
            attempt=0,
            host=f"worker-{task % 3}.cluster.internal",
            rows=sum(rows) // 8,
            bytes=sum(rows) * 15,
            duration_ms=random.randrange(300, 500) + (600 if task == 3 else 0),
            retries=0,
            blocked_ms=random.randrange(40),
        )
        for task in range(8)
    ]
    tasks.sort(key=lambda task: -task.duration_ms)
    return WriteReport(
        batch=f"6d2a41f0-77a5-4c0e-9a38-8a4ef3a8ad51/{number}",
        started_ms=1_763_786_400_000 + number * 5_000,
        duration_ms=tasks[0].duration_ms + 40,
        tasks=8,
        partitions={
            "orders": {
                partition: OffsetRange(number * 40_000, number * 40_000 + count - 1, count)
                for partition, count in enumerate(rows)
            }
        },
        rows=sum(rows),
        bytes=sum(rows) * 120,
        dead_letters=0,
        dead_letters_cut=0,
        producer=Totals(
            bytes=sum(rows) * 40,
            uncompressed_bytes=sum(rows) * 128,
            latencies=latencies,
            retries=random.choice([0, 0, 0, 0, 120, 9_000]),
            blocked_ms=sum(task.blocked_ms for task in tasks),
        ),
        longest_task_ms=tasks[0].duration_ms,
        task_list=tuple(tasks),
    )
