"""`pykafka bench`: how fast is this cluster, from here, with these options? Records of a realistic shape, and counted
only when brokers have acknowledged them.

Rows are made before the clock starts, and sent again and again in calls of some thousand, as a Spark task does it. A
latency is the time from a call of send_columns to its acknowledgement. At full speed most of it is waiting in our own
memory for the calls before; `--rate` shows what a record takes when nothing is ahead of it.
"""

from __future__ import annotations

import argparse
import json
import threading
from collections.abc import Sequence
from concurrent.futures import Future
from dataclasses import asdict, dataclass
from functools import partial
from typing import TYPE_CHECKING

from spark_kafka_sink.cli.client_options import add_connection_arguments, given_options, reach_to_write
from spark_kafka_sink.errors import ConfigurationError
from spark_kafka_sink.producer.progress_bar import Progress

if TYPE_CHECKING:
    from spark_kafka_sink.network.system import System
    from spark_kafka_sink.producer.producer import KafkaProducer
    from spark_kafka_sink.producer.results import ColumnsResult
    from spark_kafka_sink.records.columns import RecordColumns

HELP = "write records of a realistic shape to a topic, and measure"
RECORDS = 1_000_000
ROWS_PER_CALL = 5_000
DISTINCT_CALLS_MAX = 20
"""The rows of this number of calls are different; then they come again."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add_connection_arguments(parser)
    add = parser.add_argument
    add("topic", metavar="TOPIC", help="the topic to fill: use one that exists for this purpose")
    add("--records", type=int, default=RECORDS, metavar="N", help="how many records (default: %(default)s)")
    add(
        "--value-bytes",
        type=int,
        default=100,
        metavar="N",
        help="size of each value, about; JSON (default: %(default)s)",
    )
    add(
        "--rows-per-call",
        type=int,
        default=ROWS_PER_CALL,
        metavar="N",
        help="rows in each call of send_columns (default: %(default)s)",
    )
    add("--rate", type=float, metavar="N", help="records per second at most (default: as fast as it goes)")
    add("--json", action="store_true", help="print one JSON document")


@dataclass(frozen=True)
class Figures:
    """Latencies in milliseconds, of calls; bytes before compression."""

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


def run(chosen: argparse.Namespace) -> int:
    from spark_kafka_sink.cli.benched_rows import realistic_calls
    from spark_kafka_sink.network.system import OperatingSystem
    from spark_kafka_sink.producer.config import ProducerConfig
    from spark_kafka_sink.producer.producer import KafkaProducer

    _check(chosen)
    options = {"client.id": "pykafka-bench", **given_options(chosen)}
    reach_to_write(ProducerConfig.parse(options), chosen.topic)
    rows = min(chosen.rows_per_call, chosen.records)
    calls_max = min(DISTINCT_CALLS_MAX, -(-chosen.records // rows))
    calls = realistic_calls(calls_max, rows, chosen.value_bytes)
    with KafkaProducer(options) as producer:
        producer.partitions_for(chosen.topic)
        with Progress("records", chosen.records, says_total=False) as progress:
            figures = measure(producer, chosen, calls, progress, OperatingSystem())
    _show(figures, chosen)
    return 1 if figures.failed else 0


def _check(chosen: argparse.Namespace) -> None:
    numbers = {
        "--records": chosen.records,
        "--rows-per-call": chosen.rows_per_call,
        "--value-bytes": chosen.value_bytes,
    }
    for flag, value in numbers.items():
        if value < 1:
            raise ConfigurationError(f"{flag} is {value}, but must be at least 1")
    if chosen.rate is not None and chosen.rate <= 0:
        raise ConfigurationError(f"--rate is {chosen.rate}, but must be more than 0")


class _Clocked:
    """When calls are acknowledged, by the sender's thread; how many records failed, and why the first did."""

    def __init__(self, system: System) -> None:
        self.latencies_ms: list[float] = []
        self.failed = 0
        self.first_error: BaseException | None = None
        self._system = system

    def done(self, started_ms: float, rows: int, call: Future[ColumnsResult]) -> None:
        self.latencies_ms.append(self._system.now() - started_ms)
        error = call.exception()
        failures = () if error is not None else call.result().failures
        self.failed += rows if error is not None else call.result().rows_failed
        if self.first_error is None:
            self.first_error = error or (failures[0].error if failures else None)


def measure(
    producer: KafkaProducer,
    chosen: argparse.Namespace,
    calls: Sequence[RecordColumns],
    progress: Progress,
    system: System,
) -> Figures:
    clocked, number, sent, sent_bytes = _Clocked(system), 0, 0, 0
    started_ms = system.now()
    while sent < chosen.records:
        columns = calls[number % len(calls)]
        if len(columns) > chosen.records - sent:
            columns = columns.slice(0, chosen.records - sent)
        if chosen.rate is not None:
            _wait_until(started_ms + sent * 1000 / chosen.rate, system)
        call = producer.send_columns(chosen.topic, columns)
        call.add_done_callback(partial(clocked.done, system.now(), len(columns)))
        number, sent, sent_bytes = number + 1, sent + len(columns), sent_bytes + columns.nbytes
        progress.advance(len(columns))
    producer.flush()
    seconds = (system.now() - started_ms) / 1000
    if clocked.failed == sent and clocked.first_error is not None:
        raise clocked.first_error
    latencies = sorted(clocked.latencies_ms)
    written = sent - clocked.failed
    return Figures(
        records=written,
        failed=clocked.failed,
        seconds=seconds,
        records_per_second=written / seconds,
        megabytes_per_second=sent_bytes * written / sent / seconds / 1e6,
        bytes_per_record=sent_bytes / sent,
        compression_ratio=producer.metric("compression-rate-avg"),
        calls=number,
        latency_p50_ms=percentile(latencies, 0.50),
        latency_p95_ms=percentile(latencies, 0.95),
        latency_p99_ms=percentile(latencies, 0.99),
        latency_max_ms=latencies[-1],
    )


def percentile(sorted_values: Sequence[float], share: float) -> float:
    """The smallest value that this share of all does not exceed."""
    return sorted_values[max(0, -(-int(share * 10_000) * len(sorted_values) // 10_000) - 1)]


def _wait_until(due_ms: float, system: System) -> None:
    wait_ms = due_ms - system.now()
    if wait_ms > 0:
        threading.Event().wait(wait_ms / 1000)


def _show(figures: Figures, chosen: argparse.Namespace) -> None:
    if chosen.json:
        print(json.dumps(asdict(figures)))
        return
    f = figures
    print(f"{f.records} records acknowledged in {f.seconds:.2f} s, {f.failed} failed")
    print(f"{f.records_per_second:,.0f} records/s, {f.megabytes_per_second:.1f} MB/s before compression")
    packed = f", {f.compression_ratio:.2f} of that after compression" if 0 < f.compression_ratio < 1 else ""
    print(f"{f.bytes_per_record:.0f} bytes a record (key and value){packed}")
    latencies = (("p50", f.latency_p50_ms), ("p95", f.latency_p95_ms), ("p99", f.latency_p99_ms))
    shown = ", ".join(f"{name} {value:.1f}" for name, value in (*latencies, ("max", f.latency_max_ms)))
    print(f"ms from a call ({chosen.rows_per_call} records) to its acknowledgement: {shown}; of {f.calls} calls")
    if chosen.rate is None:
        print("At full speed a call waits for those before it: --rate N shows the latency at a load of your own.")
