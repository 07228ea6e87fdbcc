"""`pykafka cat`, as it is called, against an embedded broker on the loopback interface."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from spark_kafka_sink.cli import main
from spark_kafka_sink.client.options import ClientConfig
from spark_kafka_sink.protocol.messages.produce import (
    PartitionProduceData,
    ProduceRequest,
    ProduceResponse,
    TopicProduceData,
)
from spark_kafka_sink.protocol.schema import VersionRange
from spark_kafka_sink.reader.blocking_client import BlockingClient
from spark_kafka_sink.testing import embedded_broker
from tests.reader.stored_batches import batch

Output = pytest.CaptureFixture[bytes]


@pytest.fixture(scope="module")
def bootstrap() -> Iterator[str]:
    with embedded_broker({"t": 2, "empty": 1}) as broker:
        write(broker.bootstrap_servers, 0, batch(0, b"a", b"b", b"c", headers=(("h", b"\xff"),)))
        write(broker.bootstrap_servers, 1, batch(0, "straße".encode(), b"\xff\x00"))
        yield broker.bootstrap_servers


def write(bootstrap: str, partition: int, records: bytes) -> None:
    with BlockingClient(ClientConfig((bootstrap,))) as client:
        client.topic("t")
        leader = client.leader("t", partition)
        assert leader is not None
        data = PartitionProduceData(index=partition, records=[records])
        request = ProduceRequest(
            acks=-1, timeout_ms=1_000, topic_data=[TopicProduceData(name="t", partition_data=[data])]
        )
        answer = client.ask(leader, ProduceResponse, request, versions=VersionRange(3, 12))
        assert answer.responses[0].partition_responses[0].error_code == 0


def cat(output: Output, bootstrap: str, *arguments: str, topic: str = "t") -> list[bytes]:
    assert main(["cat", "--bootstrap-server", bootstrap, topic, *arguments]) == 0
    return output.readouterr().out.splitlines()


@pytest.fixture
def output(capfdbinary: Output) -> Output:
    return capfdbinary


def test_values_are_printed_as_they_are(output: Output, bootstrap: str) -> None:
    assert sorted(cat(output, bootstrap)) == sorted([b"a", b"b", b"c", "straße".encode(), b"\xff\x00"])
    assert cat(output, bootstrap, topic="empty") == []


def test_one_partition_can_be_chosen(output: Output, bootstrap: str) -> None:
    assert cat(output, bootstrap, "--partition", "0", "--from-beginning") == [b"a", b"b", b"c"]


@pytest.mark.parametrize(
    ("offset", "expected"),
    [("1", [b"b", b"c"]), ("-1", [b"c"]), ("-99", [b"a", b"b", b"c"]), ("99", []), ("beginning", [b"a", b"b", b"c"])],
)
def test_it_begins_where_it_is_told(output: Output, bootstrap: str, offset: str, expected: list[bytes]) -> None:
    at_once = ["--option", "retry.backoff.ms=1"]  # between two looks at the metadata
    assert cat(output, bootstrap, "--partition", "0", f"--offset={offset}", *at_once) == expected


def test_it_stops_after_so_many_messages(output: Output, bootstrap: str) -> None:
    assert len(cat(output, bootstrap, "--max-messages", "4")) == 4
    assert cat(output, bootstrap, "--max-messages", "0") == []


def test_json_tells_all_of_a_record(output: Output, bootstrap: str) -> None:
    lines = [json.loads(line) for line in cat(output, bootstrap, "--format", "json")]
    found = {(line["partition"], line["offset"]): line for line in lines}
    assert found[0, 0] == {
        "key": "k0",
        "value": "a",
        "topic": "t",
        "partition": 0,
        "offset": 0,
        "timestamp": "2023-11-14T22:13:20+00:00",
        "timestampType": 0,
        "headers": [{"key": "h", "value": {"base64": "/w=="}}],
    }
    assert (found[1, 0]["value"], found[1, 1]["value"]) == ("straße", {"base64": "/wA="})


def test_options_come_from_the_command_line_and_from_a_file(output: Output, bootstrap: str, tmp_path: Path) -> None:
    file = tmp_path / "client.properties"
    file.write_text("# how to log in\n\nclient.id = me\nsecurity.protocol=PLAINTEXT\n")
    arguments = ["--command-config", str(file), "--option", "client.dns.lookup=use_all_dns_ips", "--partition", "0"]
    assert len(cat(output, bootstrap, *arguments)) == 3


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--option", "sasl.pasword=hunter2"], "sasl.pasword is not an option"),
        (["--option", "hunter2"], "NAME=VALUE"),
        (["--command-config", "/nowhere"], "/nowhere"),
        (["--offset=soon"], "--offset"),
        (["--partition", "7"], "topic t has the partitions [0, 1], but not [7]"),
    ],
)
def test_what_went_wrong_is_said_in_one_line_without_secrets(
    output: Output, bootstrap: str, arguments: list[str], words: str
) -> None:
    assert main(["cat", "--bootstrap-server", bootstrap, "t", *arguments]) == 1
    captured = output.readouterr()
    assert words in captured.err.decode()
    assert captured.err.count(b"\n") == 1
    assert b"hunter2" not in captured.err
    assert captured.out == b""


def test_a_bad_address_is_named(output: Output) -> None:
    assert main(["cat", "--bootstrap-server", "nonsense", "t"]) == 1
    assert "'nonsense' is not HOST:PORT" in output.readouterr().err.decode()
