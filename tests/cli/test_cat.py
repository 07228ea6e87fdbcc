"""`pykafka cat` against an embedded broker on the loopback interface."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from spark_kafka_sink.cli import main
from spark_kafka_sink.client.config import ClientConfig
from spark_kafka_sink.protocol.messages.produce import (
    PartitionProduceData,
    ProduceRequest,
    ProduceResponse,
    TopicProduceData,
)
from spark_kafka_sink.protocol.schema import VersionRange
from spark_kafka_sink.requests.blocking import BlockingClient
from spark_kafka_sink.testing import embedded_broker
from tests.reader.stored_batches import batch
from tests.requests.node_message import send_to

Output = pytest.CaptureFixture[bytes]


@pytest.fixture(scope="module")
def bootstrap() -> Iterator[str]:
    with embedded_broker({"t": 2, "empty": 1}) as broker:
        write(broker.bootstrap_servers, 0, batch(0, b"a", b"b", b"c", headers=(("h", b"\xff"),)))
        write(broker.bootstrap_servers, 1, batch(0, "straße".encode(), b"\xff\x00"))
        yield broker.bootstrap_servers


def write(bootstrap: str, partition: int, records: bytes) -> None:
    with BlockingClient(ClientConfig((bootstrap,))) as client:
        client.wait_for_topic("t")
        leader = client.find_leader("t", partition)
        assert leader is not None
        data = PartitionProduceData(index=partition, records=[records])
        request = ProduceRequest(
            acks=-1, timeout_ms=1_000, topic_data=[TopicProduceData(name="t", partition_data=[data])]
        )
        response = send_to(client, leader, ProduceResponse, request, versions=VersionRange(3, 12))
        assert response.responses[0].partition_responses[0].error_code == 0


def cat(output: Output, bootstrap: str, *arguments: str, topic: str = "t") -> list[bytes]:
    assert main(["cat", "--bootstrap-server", bootstrap, topic, *arguments]) == 0
    return output.readouterr().out.splitlines()


@pytest.fixture
def output(capfdbinary: Output) -> Output:
    return capfdbinary


def test_prints_raw_values(output: Output, bootstrap: str) -> None:
    assert sorted(cat(output, bootstrap)) == sorted([b"a", b"b", b"c", "straße".encode(), b"\xff\x00"])
    assert cat(output, bootstrap, topic="empty") == []


def test_reads_selected_partition(output: Output, bootstrap: str) -> None:
    assert cat(output, bootstrap, "--partition", "0", "--from", "beginning") == [b"a", b"b", b"c"]


@pytest.mark.parametrize(
    ("offset", "expected"),
    [
        ("1", [b"b", b"c"]),
        ("-1", [b"c"]),
        ("-99", [b"a", b"b", b"c"]),
        ("99", []),
        ("beginning", [b"a", b"b", b"c"]),
        ("end", []),
    ],
)
def test_starts_at_offset(output: Output, bootstrap: str, offset: str, expected: list[bytes]) -> None:
    short_backoff = ["--option", "retry.backoff.ms=1"]  # between metadata requests
    assert cat(output, bootstrap, "--partition", "0", f"--from={offset}", *short_backoff) == expected


def test_stops_after_maximum_number_of_messages(output: Output, bootstrap: str) -> None:
    assert len(cat(output, bootstrap, "--max-messages", "4")) == 4
    assert cat(output, bootstrap, "--max-messages", "0") == []


def test_json_contains_every_field(output: Output, bootstrap: str) -> None:
    lines = [json.loads(line) for line in cat(output, bootstrap, "--format", "json")]
    lines_by_offset = {(line["partition"], line["offset"]): line for line in lines}
    assert lines_by_offset[0, 0] == {
        "key": "k0",
        "value": "a",
        "topic": "t",
        "partition": 0,
        "offset": 0,
        "timestamp": "2023-11-14T22:13:20+00:00",
        "timestampType": 0,
        "headers": [{"key": "h", "value": {"base64": "/w=="}}],
    }
    assert (lines_by_offset[1, 0]["value"], lines_by_offset[1, 1]["value"]) == ("straße", {"base64": "/wA="})


def test_reads_options_from_arguments_and_file(output: Output, bootstrap: str, tmp_path: Path) -> None:
    file = tmp_path / "client.properties"
    file.write_text("# how to log in\n\nclient.id = me\nsecurity.protocol=PLAINTEXT\n")
    arguments = ["--command-config", str(file), "--option", "client.dns.lookup=use_all_dns_ips", "--partition", "0"]
    assert len(cat(output, bootstrap, *arguments)) == 3


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--option", "sasl.pasword=hunter2"], "sasl.pasword is not an option"),
        (["--option", "hunter2"], "NAME=VALUE"),
        (["--command-config", "/nowhere"], "/nowhere"),
        (["--from=soon"], "time such as 2026-05-01T12:00, not 'soon'"),
        (["--partition", "7"], "topic t has no partition 7: it has 2, numbered from 0"),
    ],
)
def test_prints_error_in_one_line_without_secrets(
    output: Output, bootstrap: str, arguments: list[str], message: str
) -> None:
    assert main(["cat", "--bootstrap-server", bootstrap, "t", *arguments]) == 1
    captured = output.readouterr()
    assert message in captured.err.decode()
    assert captured.err.count(b"\n") == 1
    assert b"hunter2" not in captured.err
    assert captured.out == b""


def test_names_invalid_address(output: Output) -> None:
    assert main(["cat", "--bootstrap-server", "nonsense", "t"]) == 1
    assert "'nonsense', which is not HOST:PORT" in output.readouterr().err.decode()


def test_prints_selected_columns(output: Output, bootstrap: str) -> None:
    arguments = ["--partition", "0", "-n", "1", "--columns", "key,partition,offset,headers,value"]
    assert cat(output, bootstrap, *arguments) == [b"k0\t0\t0\th=\xff\ta"]
    assert main(["cat", "--bootstrap-server", bootstrap, "t", "--columns", "colour"]) == 1
    assert b"'colour' is not one of partition, offset" in output.readouterr().err


def test_table_has_heading_and_escapes_binary_values(output: Output, bootstrap: str) -> None:
    lines = cat(output, bootstrap, "--format", "table", "--partition", "1")
    assert lines[0].split() == [b"partition", b"offset", b"timestamp", b"key", b"value", b"headers"]
    assert "straße" in lines[2].decode()
    assert b"\\xff" in lines[3]
    assert len(lines) == 4


@pytest.mark.parametrize(
    ("where", "expected"),
    [
        ("2023-11-14T22:13:20Z", 3),
        ("2023-11-14T22:13:20", 3),
        ("2023-11-14T22:13:20.001Z", 2),
        ("1969-01-01", 3),
        ("2030-01-01", 0),
    ],
)
def test_starts_at_timestamp(output: Output, bootstrap: str, where: str, expected: int) -> None:
    assert len(cat(output, bootstrap, "--partition", "0", "--from", where)) == expected


def test_follow_prints_new_records(output: Output) -> None:
    with embedded_broker({"t": 2}) as broker:
        write(broker.bootstrap_servers, 0, batch(0, b"before"))
        writing = threading.Thread(target=write, args=(broker.bootstrap_servers, 1, batch(0, b"x", b"y")))
        writing.start()
        try:
            assert sorted(cat(output, broker.bootstrap_servers, "--follow", "-n", "3")) == [b"before", b"x", b"y"]
        finally:
            writing.join()


@pytest.mark.parametrize(
    ("servers", "topic", "message"),
    [
        (None, "nope", "Topic 'nope' does not exist"),
        (None, "tt", "Did you mean 't'?"),
        ("127.0.0.1:1", "t", "Connection refused"),
    ],
)
def test_prints_error_for_missing_topic_or_server(
    output: Output, bootstrap: str, servers: str | None, topic: str, message: str
) -> None:
    assert main(["cat", "--bootstrap-server", servers or bootstrap, topic]) == 1
    errors = output.readouterr().err.decode()
    assert errors.startswith("pykafka: Cannot read from Kafka. ")
    assert message in errors
    assert "Traceback" not in errors


def test_reader_ignores_producer_options_in_file(output: Output, bootstrap: str, tmp_path: Path) -> None:
    file = tmp_path / "client.properties"
    file.write_text(f"bootstrap.servers={bootstrap}\nacks=all\n")
    assert main(["cat", "--command-config", str(file), "t", "-n", "1"]) == 0
    assert len(output.readouterr().out.splitlines()) == 1


def test_interrupt_ends_follow_without_traceback(bootstrap: str) -> None:
    command = [sys.executable, "-m", "spark_kafka_sink", "cat", "--bootstrap-server", bootstrap, "t", "-f"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as process:
        try:
            assert process.stdout is not None
            assert process.stdout.readline()
            process.send_signal(signal.SIGINT)
            _, errors = process.communicate()
        finally:
            process.kill()
    assert (process.returncode, errors) == (130, b"")


def test_rejects_negative_number_of_messages(output: Output, bootstrap: str) -> None:
    assert cat(output, bootstrap, "-f", "-n", "0") == []
    assert main(["cat", "--bootstrap-server", bootstrap, "t", "-n", "-1"]) == 1
    assert b"--max-messages must be at least 0, not -1" in output.readouterr().err
