"""`pykafka bench`: measure the throughput and latency of writes from this machine to a cluster.

The records resemble a real event stream, and only acknowledged records are counted. All rows are built before the
measurement starts. They are sent repeatedly in calls of a few thousand rows each, as a Spark task would send them. A
call's latency is the time from `send_columns` until all of its rows are acknowledged. At full speed, rows spend most of
this time queued in the producer's memory behind earlier calls. Use `--rate` to measure the latency without this queue.
"""

from __future__ import annotations

import argparse
import json
import math
import threading
from collections.abc import Sequence
from concurrent.futures import Future
from dataclasses import asdict, dataclass
from fractions import Fraction
from functools import partial
from typing import TYPE_CHECKING

from spark_kafka_sink.cli.client_options import add_connection_arguments, check_write_access, parse_client_options
from spark_kafka_sink.diagnostics.text import format_count
from spark_kafka_sink.errors import ConfigurationError
from spark_kafka_sink.producer.progress_bar import Progress

if TYPE_CHECKING:
    from spark_kafka_sink.network.system import System
    from spark_kafka_sink.producer.producer import KafkaProducer
    from spark_kafka_sink.producer.results import ColumnsResult
    from spark_kafka_sink.records.columns import RecordColumns

COMMAND_HELP = "write realistic records to a topic and measure throughput and latency"
DEFAULT_RECORD_COUNT = 1_000_000
DEFAULT_ROWS_PER_CALL = 5_000
MAX_DISTINCT_CALLS = 20
"""Maximum number of calls with different rows. Later calls send the same rows again."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add_connection_arguments(parser)
    parser.add_argument("topic", metavar="TOPIC", help="the topic to write to; use one that is meant for benchmarks")
    parser.add_argument(
        "--records",
        type=int,
        default=DEFAULT_RECORD_COUNT,
        metavar="N",
        help="number of records (default: %(default)s)",
    )
    parser.add_argument(
        "--value-bytes",
        type=int,
        default=100,
        metavar="N",
        help="approximate size of each value, which is JSON (default: %(default)s)",
    )
    parser.add_argument(
        "--rows-per-call",
        type=int,
        default=DEFAULT_ROWS_PER_CALL,
        metavar="N",
        help="rows in each call of send_columns (default: %(default)s)",
    )
    parser.add_argument(
        "--rate", type=float, metavar="N", help="maximum number of records per second (default: as many as possible)"
    )
    parser.add_argument("--json", action="store_true", help="print one JSON document")


@dataclass(frozen=True)
class BenchResult:
    """The figures of a run. Latencies are per call, and bytes are counted before compression."""

    records: int
    failed: int
    seconds: float
    records_per_second: float
    megabytes_per_second: float
    bytes_per_record: float
    compression_ratio: float
    calls: int
    latency_p50_ms: float
    latency_p95_ms: float
    latency_p99_ms: float
    latency_max_ms: float


def run(args: argparse.Namespace) -> int:
    from spark_kafka_sink.cli.bench_rows import build_call_columns
    from spark_kafka_sink.network.system import OperatingSystem
    from spark_kafka_sink.producer.config import ProducerConfig
    from spark_kafka_sink.producer.producer import KafkaProducer

    _check_arguments(args)
    options = {"client.id": "pykafka-bench", **parse_client_options(args)}
    check_write_access(ProducerConfig.parse(options), args.topic)
    rows_per_call = min(args.rows_per_call, args.records)
    distinct_call_count = min(MAX_DISTINCT_CALLS, math.ceil(args.records / rows_per_call))
    call_columns = build_call_columns(distinct_call_count, rows_per_call, args.value_bytes)
    with KafkaProducer(options) as producer:
        producer.partitions_for(args.topic)  # connects and fetches metadata before the measurement
        with Progress("records", args.records, prints_total=False) as progress:
            result = measure(producer, args, call_columns, progress, OperatingSystem())
    _print_result(result, args)
    return 1 if result.failed else 0


def _check_arguments(args: argparse.Namespace) -> None:
    numbers = {
        "--records": args.records,
        "--rows-per-call": args.rows_per_call,
        "--value-bytes": args.value_bytes,
    }
    for flag, value in numbers.items():
        if value < 1:
            raise ConfigurationError(f"{flag} must be at least 1, not {value}")
    if args.rate is not None and args.rate <= 0:
        raise ConfigurationError(f"--rate must be more than 0, not {args.rate}")


class _CallTotals:
    """Counts the records sent, and records the latencies and failures of the calls.

    `record_completion` runs on the sender thread.
    """

    def __init__(self, system: System) -> None:
        self.call_count = 0
        self.sent_count = 0
        self.failed_count = 0
        self.first_error: BaseException | None = None
        self._sent_bytes = 0
        self._latencies_ms: list[float] = []
        self._system = system

    def record_call(self, columns: RecordColumns) -> None:
        """Record that the columns were sent in a call."""
        self.call_count += 1
        self.sent_count += len(columns)
        self._sent_bytes += columns.nbytes

    def record_completion(self, started_ms: float, row_count: int, future: Future[ColumnsResult]) -> None:
        """Record the end of a call. If the future has an exception, all `row_count` rows of the call have failed."""
        self._latencies_ms.append(self._system.now() - started_ms)
        error = future.exception()
        if error is not None:
            self.failed_count += row_count
        else:
            result = future.result()
            self.failed_count += result.rows_failed
            error = result.failures[0].error if result.failures else None
        # Keep the first failure. After a success, `error` is None.
        if self.first_error is None:
            self.first_error = error

    def build_result(self, seconds: float, compression_ratio: float) -> BenchResult:
        """Compute the figures, once all calls have ended. `seconds`: the time that the calls took in total."""
        latencies_ms = sorted(self._latencies_ms)
        acknowledged_count = self.sent_count - self.failed_count
        acknowledged_bytes = self._sent_bytes * acknowledged_count / self.sent_count
        return BenchResult(
            records=acknowledged_count,
            failed=self.failed_count,
            seconds=seconds,
            records_per_second=acknowledged_count / seconds,
            megabytes_per_second=acknowledged_bytes / seconds / 1e6,
            bytes_per_record=self._sent_bytes / self.sent_count,
            compression_ratio=compression_ratio,
            calls=self.call_count,
            latency_p50_ms=compute_quantile(latencies_ms, 0.50),
            latency_p95_ms=compute_quantile(latencies_ms, 0.95),
            latency_p99_ms=compute_quantile(latencies_ms, 0.99),
            latency_max_ms=latencies_ms[-1],
        )


def measure(
    producer: KafkaProducer,
    args: argparse.Namespace,
    call_columns: Sequence[RecordColumns],
    progress: Progress,
    system: System,
) -> BenchResult:
    """Send all records, wait until each one is acknowledged or has failed, and compute the figures.

    `call_columns`: the columns for each call, which are used repeatedly until all records are sent.

    Raise the first error if every record failed.
    """
    totals = _CallTotals(system)
    started_ms = system.now()
    while totals.sent_count < args.records:
        columns = call_columns[totals.call_count % len(call_columns)]
        remaining_count = args.records - totals.sent_count
        if len(columns) > remaining_count:  # the last call may be shorter
            columns = columns.slice(0, remaining_count)
        if args.rate is not None:
            _wait_until(started_ms + totals.sent_count * 1000 / args.rate, system)
        future = producer.send_columns(args.topic, columns)
        future.add_done_callback(partial(totals.record_completion, system.now(), len(columns)))
        totals.record_call(columns)
        progress.advance(len(columns))
    producer.flush()  # waits until each record is acknowledged or has failed, so the totals are then complete
    seconds = (system.now() - started_ms) / 1000
    if totals.failed_count == totals.sent_count and totals.first_error is not None:
        raise totals.first_error
    return totals.build_result(seconds, producer.metric("compression-rate-avg"))


def compute_quantile(sorted_values: Sequence[float], quantile: float) -> float:
    """Compute a quantile by the nearest-rank method, so that the result is always one of the values.

    For example, the quantile 0.5 of [1, 2, 3, 4] is 2.

    `sorted_values`: the values in ascending order; must not be empty.
    `quantile`: a number from 0 to 1.
    """
    # Use exact arithmetic, because math.ceil turns a tiny float error into the next rank: 0.07 * 100 > 7.
    exact_quantile = Fraction(str(quantile))
    rank = math.ceil(exact_quantile * len(sorted_values))
    return sorted_values[max(0, rank - 1)]


def _wait_until(due_ms: float, system: System) -> None:
    wait_ms = due_ms - system.now()
    if wait_ms > 0:
        threading.Event().wait(wait_ms / 1000)


def _print_result(result: BenchResult, args: argparse.Namespace) -> None:
    """Print the figures as text or, with --json, as a document with the fields of BenchResult."""
    if args.json:
        print(json.dumps(asdict(result)))
        return
    print(f"{result.records} records acknowledged in {result.seconds:.2f} s, {result.failed} failed")
    print(f"{result.records_per_second:,.0f} records/s, {result.megabytes_per_second:.1f} MB/s before compression")
    ratio = result.compression_ratio
    compression_note = f", {ratio:.2f} of that after compression" if 0 < ratio < 1 else ""
    print(f"{result.bytes_per_record:.0f} bytes per record (key and value){compression_note}")
    print(
        f"latency of {format_count(result.calls, 'call')} of at most {min(args.rows_per_call, args.records)} records "
        f"in ms: p50 {result.latency_p50_ms:.1f}, "
        f"p95 {result.latency_p95_ms:.1f}, p99 {result.latency_p99_ms:.1f}, max {result.latency_max_ms:.1f}"
    )
    if args.rate is None:
        print("At full speed a call waits for earlier calls. Set --rate N to measure the latency at a lower load.")
