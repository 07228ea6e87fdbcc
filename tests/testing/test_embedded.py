"""Embedded brokers that are started by `embedded_broker`, the fixture `kafka_broker` or `pykafka broker`."""

from __future__ import annotations

import signal
import subprocess
import sys
from pathlib import Path

import pytest

from spark_kafka_sink import KafkaProducer, cli
from spark_kafka_sink.errors import ConfigurationError
from spark_kafka_sink.testing import EmbeddedBroker, embedded_broker, read_topic
from tests.broker.loopback_client import LoopbackClient
from tests.broker.wire_client import batch, partition_response, produce_request

SPARK_COLUMNS = ["key", "value", "topic", "partition", "offset", "timestamp", "timestampType", "headers"]


def write(bootstrap: str, topic: str, value: bytes) -> int:
    with LoopbackClient(bootstrap) as client:
        return partition_response(client.request(produce_request(batch(value), topic), 9)).error_code


def test_reads_topic_in_columns_of_sparks_kafka_source() -> None:
    with embedded_broker(topics={"t": 1}) as broker:
        assert write(broker.bootstrap_servers, "t", b"a") == 0
        table = read_topic(broker.bootstrap_servers, "t", isolation="read_uncommitted")
    assert table.column_names == SPARK_COLUMNS
    assert table.column("value").to_pylist() == [b"a"]


def test_kafka_broker_fixture_needs_no_import(kafka_broker: EmbeddedBroker) -> None:
    kafka_broker.create_topic("t", 2, {"message.timestamp.type": "LogAppendTime"})
    assert write(kafka_broker.bootstrap_servers, "t", b"a") == 0


@pytest.mark.parametrize("version", [1, 2])
def test_discarding_broker_accepts_transactions_and_stores_nothing(version: int) -> None:
    with embedded_broker({"t": 1}, discard=True, transaction_version=version) as broker:
        options = {**broker.client_options, "transactional.id": "x"}
        with KafkaProducer(options) as producer:
            producer.init_transactions()
            for _ in range(2):
                with producer.transaction():
                    producer.send("t", b"v")
        assert broker.cluster.log("t", 0).records_appended == 2
        assert broker.cluster.log("t", 0).read(0, 1000).batches == []


def test_discarding_broker_counts_records() -> None:
    with embedded_broker({"t": 1}, discard=True) as broker:
        data = batch(b"a", b"b", b"c")
        with LoopbackClient(broker.bootstrap_servers) as client:
            offsets = [partition_response(client.request(produce_request(data), 9)).base_offset for _ in range(3)]
        log = broker.cluster.log("t", 0)
        assert (offsets, log.records_appended, log.bytes_appended) == ([0, 3, 6], 9, 3 * len(data))
        assert read_topic(broker.bootstrap_servers, "t").num_rows == 0


def test_directory_is_locked_until_broker_is_closed(tmp_path: Path) -> None:
    with embedded_broker({"t": 1}, data=tmp_path) as broker:
        with pytest.raises(ConfigurationError, match="is in use by another broker"):
            embedded_broker({"t": 1}, data=tmp_path)
        assert write(broker.bootstrap_servers, "t", b"a") == 0
    with pytest.raises(OSError, match="Cannot assign requested address"):
        embedded_broker(data=tmp_path, host="192.0.2.1")
    with embedded_broker(data=tmp_path) as broker:
        assert broker.topic("t").read().column("value").to_pylist() == [b"a"]


def test_testing_does_not_import_spark() -> None:
    code = "import sys, spark_kafka_sink.testing; sys.exit('pyspark' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--topic", "t:none"], "--topic must be NAME or NAME:PARTITIONS, not t:none"),
        (["--security", "SSL"], "requires a certificate"),
        (["--security", "SSL", "--certificate", "/no/such.pem"], "/no/such.pem cannot be read: No such file"),
        (["--users", "/no/such/file"], "cannot be read"),
        (["--port", "99999"], "port must be from 0 to 65535 for 1 node"),
        (["--port", "65535", "--nodes", "2"], "port must be from 0 to 65534 for 2 nodes"),
    ],
)
def test_broker_command_rejects_invalid_arguments(
    arguments: list[str], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    handlers_before = [signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)]
    try:
        assert cli.main(["broker", "--port", "0", *arguments]) == 1
    finally:
        for number, handler in zip((signal.SIGINT, signal.SIGTERM), handlers_before, strict=True):
            signal.signal(number, handler)
    assert message in capsys.readouterr().err


def test_broker_command_reports_invalid_users_line_without_its_content(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    users = tmp_path / "users"
    users.write_text("alice:secret\nsecret-of-bob\n")
    assert cli.main(["broker", "--port", "0", "--security", "SASL_PLAINTEXT", "--users", str(users)]) == 1
    errors = capsys.readouterr().err
    assert "line 2" in errors
    assert "secret-of-bob" not in errors
