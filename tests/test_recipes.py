"""The recipes of docs/developing.md, applied to a copy of the package with exactly the edits that they describe."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]


@pytest.fixture
def insert(tmp_path: Path) -> Callable[[str, str, str], None]:
    """Insert lines into a module of the copy, after a line that occurs once."""
    for folder in ("spark_kafka_sink", "tools"):
        shutil.copytree(ROOT / folder, tmp_path / folder)  # with the compiled modules, which stay valid until edited

    def insert(module: str, anchor: str, lines: str) -> None:
        path = tmp_path / "spark_kafka_sink" / module
        text = path.read_text()
        assert text.count(f"{anchor}\n") == 1, f"{module} has no line, or several, {anchor!r}"
        path.write_text(text.replace(f"{anchor}\n", f"{anchor}\n{lines}\n"))

    return insert


@pytest.fixture
def run(tmp_path: Path) -> Callable[..., subprocess.CompletedProcess[str]]:
    """Run Python code, or a module, with the copy of the package."""

    def run(code: str, switch: str = "-c") -> subprocess.CompletedProcess[str]:
        environment = {**os.environ, "PYTHONPATH": str(tmp_path)}
        return subprocess.run(
            [sys.executable, switch, code], cwd=tmp_path, env=environment, capture_output=True, text=True, check=False
        )

    return run


WRITE = """
import pyarrow as pa

from spark_kafka_sink.producer.column_plan import ColumnPlan
from spark_kafka_sink.spark.options.parse import parse_options
from spark_kafka_sink.spark.pool import create_pool
from spark_kafka_sink.spark.task_report import build_write_report
from spark_kafka_sink.spark.write_task import write_rows
from spark_kafka_sink.testing import embedded_broker

with embedded_broker(topics={"t": 1}) as broker:
    pool = create_pool()
    options = parse_options({"kafka.bootstrap.servers": broker.bootstrap_servers})
    rows = pa.record_batch({"value": [b"1", b"2", b"3"]})
    tasks = [write_rows(options, ColumnPlan(value=0, fixed_topic="t"), iter([rows]), pool) for _ in range(2)]
    pool.close()
report = build_write_report(tasks)
"""
EXPORT = """
import json

from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics.export import InMemoryMetricReader
from prometheus_client import CollectorRegistry, generate_latest

from spark_kafka_sink.exporters.opentelemetry import WriteInstruments
from spark_kafka_sink.exporters.prometheus import WriteCollector
from spark_kafka_sink.reports.write_report import parse_report

registry, writes, reader = CollectorRegistry(), WriteCollector(), InMemoryMetricReader()
registry.register(writes)
writes.record(report)
WriteInstruments(MeterProvider([reader])).record(report)
for name in ("throwaways", "wastes"):
    print("task", [task.totals.counts()[name] for task in tasks])
    print("report", report.counts()[name], json.loads(report.to_json())[name])
    print("read", parse_report(report.to_json()).counts()[name])
    lines = generate_latest(registry).decode().splitlines()
    print([line for line in lines if line.startswith(f"pykafka_{name}_total{{")])
    for metric in reader.get_metrics_data().resource_metrics[0].scope_metrics[0].metrics:
        if metric.name == f"pykafka.{name}":
            print(metric.name, metric.unit, metric.data.data_points[0].value)
"""
COUNT_IN_PRODUCER = (
    "producer/metrics.py",
    "            self._totals.requests += 1",
    "            self._totals.throwaways += 3",
)
COUNT_IN_TASK = ("spark/write_task.py", "        self._counts.rows += written_rows", "        self._counts.wastes += 3")


def test_counter_recipe_adds_report_field_and_metric(
    insert: Callable[[str, str, str], None], run: Callable[..., subprocess.CompletedProcess[str]]
) -> None:
    """Follow the recipe with one counter of the producer and one of a task."""
    insert(
        "producer/totals.py",
        '    retries: int = _define_counter("Records that were retried", "record", metric_name="retried_records")',
        '    throwaways: int = _define_counter("Throwaways", "throwaway")',
    )
    insert(*COUNT_IN_PRODUCER)
    insert(
        "producer/totals.py",
        '    rows: int = _define_counter("Rows that brokers have acknowledged", "row")',
        '    wastes: int = _define_counter("Wastes", "waste")',
    )
    insert(*COUNT_IN_TASK)
    done = run(WRITE + EXPORT)
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines() == [
        line
        for name in ("throwaway", "waste")
        for line in (
            "task [3, 3]",
            "report 6 6",
            "read 6",
            f"['pykafka_{name}s_total{{query=\"batch job\"}} 6.0']",
            f"pykafka.{name}s {{{name}}} 6",
        )
    ]


def test_counting_undeclared_counter_raises(
    insert: Callable[[str, str, str], None], run: Callable[..., subprocess.CompletedProcess[str]]
) -> None:
    insert("producer/metrics.py", "            self._totals.requests += 1", "            self._totals.throwaways = 3")
    done = run(WRITE)
    assert "unexpected keyword argument 'throwaways'" in done.stderr


READ_OPTION = """
from spark_kafka_sink.producer.config import ProducerConfig
from spark_kafka_sink.spark.options.parse import parse_options

servers = {"bootstrap.servers": "a:1"}
print(ProducerConfig.parse(servers).throwaway_ms, ProducerConfig.parse({**servers, "throwaway.ms": "9"}).throwaway_ms)
print(parse_options({"kafka.bootstrap.servers": "a:1", "kafka.throwaway.ms": "9"}).producer_options["throwaway.ms"])
"""


def test_option_recipe_generates_field(
    insert: Callable[[str, str, str], None], run: Callable[..., subprocess.CompletedProcess[str]], tmp_path: Path
) -> None:
    insert(
        "producer/options.py", "_DELIVERY = (", '    Option("throwaway.ms", 7, parse_non_negative_int, "a throwaway"),'
    )
    forgotten = run(READ_OPTION)
    assert "unexpected keyword argument 'throwaway_ms'" in forgotten.stderr, "it would have no effect"
    generated = run("tools.typed_options_source", "-m")
    assert generated.returncode == 0, generated.stderr
    done = run(READ_OPTION)
    assert done.stdout.split() == ["7", "9", "9"], done.stderr
    package = tmp_path / "spark_kafka_sink"
    assert "\n    throwaway_ms: int\n" in (package / "producer" / "config.py").read_text()
    assert "\n    throwaway_ms: Number\n" in (package / "producer" / "typed_options.py").read_text()


def test_client_option_without_field_raises(
    insert: Callable[[str, str, str], None], run: Callable[..., subprocess.CompletedProcess[str]]
) -> None:
    row = '    Option("throwaway.ms", 7, parse_non_negative_int, "a throwaway"),'
    insert("client/options.py", "_REQUEST_OPTIONS = (", row)
    done = run(
        "from spark_kafka_sink.client.options import parse_client_config\n"
        'parse_client_config({"bootstrap.servers": "a:1"})'
    )
    assert "unexpected keyword argument 'throwaway_ms'" in done.stderr


LAST_ERROR_CODE = 'SHARE_SESSION_LIMIT_REACHED = _define_error(133, "SHARE_SESSION_LIMIT_REACHED", RETRIABLE)'


def test_error_code_recipe_adds_name_and_advice(
    insert: Callable[[str, str, str], None], run: Callable[..., subprocess.CompletedProcess[str]]
) -> None:
    insert(
        "protocol/error_codes.py",
        LAST_ERROR_CODE,
        'THROWAWAY = _define_error(999, "THROWAWAY", RETRIABLE, "Throw it away.")',
    )
    done = run(
        'from spark_kafka_sink.protocol.error_codes import build_broker_error\nprint(build_broker_error(999, "t-0"))'
    )
    assert done.stdout == "t-0: THROWAWAY (999). Throw it away.\n", done.stderr


@pytest.mark.parametrize(
    "row", ['_define_error(133, "THROWAWAY")', '_define_error(999, "SHARE_SESSION_LIMIT_REACHED")']
)
def test_duplicate_error_code_or_name_raises(
    insert: Callable[[str, str, str], None], run: Callable[..., subprocess.CompletedProcess[str]], row: str
) -> None:
    insert("protocol/error_codes.py", LAST_ERROR_CODE, row)
    done = run("import spark_kafka_sink.protocol.error_codes")
    assert "ValueError: Two rows of the table have the code" in done.stderr


def test_duplicate_option_name_raises(
    insert: Callable[[str, str, str], None], run: Callable[..., subprocess.CompletedProcess[str]]
) -> None:
    insert("producer/options.py", "_DELIVERY = (", '    Option("linger.ms", 7, parse_non_negative_int, "again"),')
    done = run("import spark_kafka_sink.producer.options")
    assert "Two rows of an option table have the name linger.ms" in done.stderr
