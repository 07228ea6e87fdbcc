"""A verifier in Go, built with franz-go from docs/examples, agrees with the receipts of writes."""

from __future__ import annotations

import os
import re
import subprocess
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pyarrow as pa
import pytest

from spark_kafka_sink.cli import main
from spark_kafka_sink.producer.column_plan import ColumnPlan
from spark_kafka_sink.reports.store import save_report
from spark_kafka_sink.reports.write_report import WriteReport
from spark_kafka_sink.spark.options.parse import parse_options
from spark_kafka_sink.spark.pool import create_pool
from spark_kafka_sink.spark.task_report import build_write_report
from spark_kafka_sink.spark.write_task import write_rows
from spark_kafka_sink.testing import EmbeddedBroker, embedded_broker

pytestmark = pytest.mark.needs("go")
SOURCE = Path(__file__).resolve().parents[1] / "docs" / "examples" / "verify_receipt"
HEADERS = pa.list_(pa.struct([("key", pa.string()), ("value", pa.binary())]))


@pytest.fixture(scope="module")
def verifier(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Build the verifier."""
    path = tmp_path_factory.mktemp("verifier") / "verify_receipt"
    subprocess.run(["go", "build", "-o", path, "."], cwd=SOURCE, check=True)
    return path


@pytest.fixture(scope="module")
def broker() -> Iterator[EmbeddedBroker]:
    with embedded_broker(topics={"orders": 3}) as broker:
        yield broker


@pytest.fixture(scope="module")
def report(broker: EmbeddedBroker) -> WriteReport:
    """Write rows with all kinds of keys, values and headers, and return the report with their receipt."""
    lengths = [None, *range(140), 255, 256, 257, 5_000]
    header_lists = [None, [], [("a", b"1")], [("a", None), ("", b""), ("a", b"x" * 200)]]
    rows = [
        (None if length is None else bytes(index % 256 for index in range(length)), key, header_lists[number % 4])
        for number, length in enumerate(lengths)
        for key in (None, b"", b"key-%d" % number)
    ]
    value, key, headers = zip(*rows, strict=True)
    structs = [None if row is None else [{"key": name, "value": data} for name, data in row] for row in headers]
    batch = pa.record_batch(
        [pa.array(value, pa.binary()), pa.array(key, pa.binary()), pa.array(structs, HEADERS)],
        names=["value", "key", "headers"],
    )
    options = parse_options(
        {"kafka.bootstrap.servers": broker.bootstrap_servers, "receipt": "true", "reportTopic": "reports"}
    )
    plan, pool = ColumnPlan(value=0, key=1, headers=2, fixed_topic="orders"), create_pool()
    tasks = [write_rows(options, plan, iter([batch]), pool) for _ in range(2)]
    pool.close()
    return build_write_report(tasks)


def run_verifier(verifier: Path, path: Path, broker: EmbeddedBroker) -> tuple[int, str]:
    done = subprocess.run(
        [verifier, path, broker.bootstrap_servers], env=os.environ, capture_output=True, text=True, check=False
    )
    return done.returncode, done.stdout


def test_both_verifiers_find_the_written_records(
    verifier: Path, broker: EmbeddedBroker, report: WriteReport, tmp_path: Path
) -> None:
    path = tmp_path / "reports.jsonl"
    save_report(str(path), report)
    status, output = run_verifier(verifier, path, broker)
    assert status == 0, output
    found = {int(partition): digest for partition, digest in re.findall(r"orders (\d): .* (\w{32})$", output, re.M)}
    ranges = report.partitions["orders"]
    assert found == {partition: f"{written.digest:032x}" for partition, written in ranges.items()}
    assert len(ranges) == 3
    assert main(["verify", str(path), "--bootstrap-server", broker.bootstrap_servers]) == 0


def test_both_verifiers_find_an_altered_record(
    verifier: Path, broker: EmbeddedBroker, report: WriteReport, tmp_path: Path
) -> None:
    ranges = report.partitions["orders"]
    altered = replace(ranges[1], digest=(ranges[1].digest or 0) ^ 1 << 37)
    path = tmp_path / "reports.jsonl"
    save_report(str(path), replace(report, partitions={"orders": {**ranges, 1: altered}}))
    assert run_verifier(verifier, path, broker)[0] == 1
    assert main(["verify", str(path), "--bootstrap-server", broker.bootstrap_servers]) == 1
