"""Reports for tests."""

from __future__ import annotations

from spark_kafka_sink.producer.futures import OffsetRange
from spark_kafka_sink.producer.windows import Latencies
from spark_kafka_sink.reports.write_report import TaskSummary, WriteReport


def report(batch_id: int = 0, *, rows: int = 1_000, latency_ms: float = 20.0) -> WriteReport:
    latencies = Latencies()
    latencies.add(latency_ms, rows)
    return WriteReport(
        batch=f"6d2a/{batch_id}",
        started_ms=1_700_000_000_000 + 10_000 * batch_id,
        duration_ms=500,
        tasks=2,
        partitions={"orders": {0: OffsetRange(batch_id * rows, batch_id * rows + rows - 1, rows)}},
        rows=rows,
        bytes=100 * rows,
        uncompressed_bytes=110 * rows,
        wire_bytes=44 * rows,
        retries=3,
        dead_letters=2,
        dead_letters_cut=1,
        errors={"RecordTooLargeError": 2},
        blocked_ms=40,
        longest_task_ms=400,
        latencies=latencies,
        task_list=(TaskSummary(0, 0, "worker-1", rows, 100 * rows, 400, 3, 40),),
    )
