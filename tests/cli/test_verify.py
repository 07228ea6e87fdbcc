"""`pykafka verify` reads the offset ranges of reports from an embedded broker, and exits with 1 unless all agree."""

from __future__ import annotations

import shlex
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pyarrow as pa
import pytest

from spark_kafka_sink import KafkaProducer
from spark_kafka_sink.cli import main
from spark_kafka_sink.producer.record_digests import DigestCollector
from spark_kafka_sink.producer.results import OffsetRange, OffsetRangeCollector
from spark_kafka_sink.records.columns import RecordColumns
from spark_kafka_sink.reports.store import save_report
from spark_kafka_sink.testing import EmbeddedBroker, embedded_broker
from tests.documents import command_lines
from tests.reports.report_factories import make_report

Output = pytest.CaptureFixture[str]


@pytest.fixture
def broker() -> Iterator[EmbeddedBroker]:
    with embedded_broker(topics={"orders": 2}) as broker:
        yield broker


def write(broker: EmbeddedBroker, *values: bytes) -> dict[int, OffsetRange]:
    """Write the values to both partitions in turn, and return the receipt."""
    options = {"bootstrap.servers": broker.bootstrap_servers}
    ranges, digests = OffsetRangeCollector(), DigestCollector()
    columns = RecordColumns(pa.array(values, pa.binary()))
    with KafkaProducer(options) as producer:
        partitions = pa.array([index % 2 for index in range(len(values))])
        result = producer.send_columns("orders", columns, partitions, keep_row_indices=True).result(60)
    ranges.add(result)
    digests.add(result, columns)
    return digests.with_digests(ranges.by_topic())["orders"]


@pytest.fixture
def path(tmp_path: Path) -> str:
    return str(tmp_path / "reports.jsonl")


def save(path: str, *receipts: dict[int, OffsetRange]) -> None:
    for number, receipt in enumerate(receipts):
        save_report(path, replace(make_report(number), partitions={"orders": receipt}))


def verify(broker: EmbeddedBroker, path: str, *arguments: str) -> int:
    return main(["verify", path, "--bootstrap-server", broker.bootstrap_servers, *arguments])


def test_intact_writes_exit_with_0(broker: EmbeddedBroker, path: str, capsys: Output) -> None:
    save(path, write(broker, b"a", b"b", b"c"), write(broker, b"d", b"e"))
    assert verify(broker, path) == 0
    assert [line.split() for line in capsys.readouterr().out.splitlines()] == [
        ["topic", "partition", "first", "offset", "last", "offset", "written", "found", "outcome"],
        ["------", "---------", "------------", "-----------", "-------", "-----", "-------"],
        ["orders", "0", "0", "2", "3", "3", "intact"],
        ["orders", "1", "0", "1", "2", "2", "intact"],
    ]


def test_documented_command_verifies_file_of_reports(broker: EmbeddedBroker, path: str) -> None:
    (line,) = (line for line in command_lines("docs/cli.md") if line.startswith("pykafka verify "))
    save(path, write(broker, b"a"))
    line = line.replace("/data/reports.jsonl", path).replace("localhost:9092", broker.bootstrap_servers)
    assert main(shlex.split(line)[1:]) == 0


def test_records_of_other_writers_between_two_writes(broker: EmbeddedBroker, path: str, capsys: Output) -> None:
    first, _, last = write(broker, b"a", b"b"), write(broker, b"x"), write(broker, b"d", b"e")
    save(path, first, last)
    assert verify(broker, path) == 0
    assert "orders, partition 0: 1 record from other writers, at offset 1." in capsys.readouterr().out
    assert verify(broker, path, "--last", "1") == 0
    assert "other writers" not in capsys.readouterr().out


def test_duplicate_exits_with_1(broker: EmbeddedBroker, path: str, capsys: Output) -> None:
    first, _, last = write(broker, b"a", b"b"), write(broker, b"a"), write(broker, b"d", b"e")
    save(path, first, last)
    assert verify(broker, path) == 1
    assert "orders, partition 0: 1 record duplicated, at offset 1." in capsys.readouterr().out


def test_missing_and_altered_records_exit_with_1(broker: EmbeddedBroker, path: str, capsys: Output) -> None:
    receipt = write(broker, b"a", b"b", b"c")
    save(path, {0: replace(receipt[0], last_offset=5, rows=6), 1: replace(receipt[1], digest=1)})
    assert verify(broker, path) == 1
    output = capsys.readouterr().out
    assert "orders, partition 0: at least 4 records missing: the partition now ends at offset 2, so " in output
    assert "orders, partition 1: the number of records is right, but at least one was altered" in output


def test_missing_partition_is_missing_records(broker: EmbeddedBroker, path: str, capsys: Output) -> None:
    save(path, {7: OffsetRange(0, 9, 10, 1)})
    assert verify(broker, path) == 1
    assert (
        "orders, partition 7: at least 10 records missing: the partition now ends at offset 0, so "
        in capsys.readouterr().out
    )


def test_report_without_digest_exits_with_1(broker: EmbeddedBroker, path: str, capsys: Output) -> None:
    save(path, {0: OffsetRange(0, 0, 1)})
    assert verify(broker, path) == 1
    assert "orders, partition 0: the report has no digest: set receipt=true for the write." in capsys.readouterr().out


def test_reads_committed_records_only_by_default(broker: EmbeddedBroker, path: str, capsys: Output) -> None:
    first = write(broker, b"a", b"b")
    options = {"bootstrap.servers": broker.bootstrap_servers, "transactional.id": "t"}
    with KafkaProducer(options) as producer:
        producer.init_transactions()
        producer.begin_transaction()
        producer.send("orders", b"aborted", partition=0)
        producer.flush()
        producer.abort_transaction()
        save(path, first, write(broker, b"c", b"d"))
        assert verify(broker, path) == 0
        assert verify(broker, path, "--isolation", "read_uncommitted") == 0
        assert "orders, partition 0: 1 record from other writers, at offset 1." in capsys.readouterr().out
        producer.begin_transaction()
        producer.send("orders", b"open", partition=0)
        producer.flush()
        save(path, write(broker, b"e", b"f"))
        assert verify(broker, path) == 1
        assert "an open transaction hides the records from offset 4 on" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("arguments", "message"),
    [(("--last", "0"), "--last must be at least 1, not 0"), (("--job", "other"), "no report of a write with rows")],
)
def test_rejects_arguments_without_reports(
    broker: EmbeddedBroker, path: str, capsys: Output, arguments: tuple[str, ...], message: str
) -> None:
    save(path, write(broker, b"a"))
    assert verify(broker, path, *arguments) == 1
    assert message in capsys.readouterr().err
