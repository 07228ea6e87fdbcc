"""Behavior of the library with each supported version of Kafka, as listed in docs/compatibility.md.

`make test` runs the oldest and the newest version, `make soak` all of them (SOAK=1). Kafka 4 has two versions of
transactions; `make soak` tests the older one separately.
"""

from __future__ import annotations

import json
import os
from collections import Counter
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from confluent_kafka.admin import AdminClient
from pyspark.sql import SparkSession

from integration.support.kafka_cluster import CLUSTER_ID
from integration.support.kafka_of_version import KafkaOfVersion
from integration.support.kafka_versions import NEWEST, OLDEST, VERSIONS, KafkaVersion
from integration.support.librdkafka import create_topic, read_committed_offset, read_topic
from spark_kafka_sink import KafkaProducer, RecordColumns
from spark_kafka_sink.cli.main import main
from spark_kafka_sink.client.options import parse_client_config
from spark_kafka_sink.client.versions import build_api_versions_request
from spark_kafka_sink.errors import KafkaSinkError, PreflightError
from spark_kafka_sink.exactly_once.clients import create_client
from spark_kafka_sink.exactly_once.transaction_aborts import abort_transactions
from spark_kafka_sink.exactly_once.transaction_names import DECISION_LOG_TOPIC, TaskAttempt, build_task_id
from spark_kafka_sink.producer.config import ProducerConfig
from spark_kafka_sink.protocol import error_codes
from spark_kafka_sink.protocol.messages.api_versions import ApiVersionsResponse
from spark_kafka_sink.protocol.schema import VersionRange
from spark_kafka_sink.requests.blocking import BlockingClient
from spark_kafka_sink.requests.transaction_admin import describe_transactions
from tests.requests.node_message import send_to
from tests.waiting import WAIT_TIMEOUT_SECONDS, wait_until

pytestmark = pytest.mark.needs("kafka")

Output = pytest.CaptureFixture[str]
SOAK = bool(os.environ.get("SOAK"))
ROWS = 1_000
EXACTLY_ONCE = {"deliveryGuarantee": "exactly-once"}
CODECS = ("none", "gzip", "snappy", "lz4", "zstd")
NEEDS_3_0 = "Exactly-once delivery requires Kafka 3.0 or newer"


TESTED_VERSIONS = [
    (version, transactions)
    for version in (VERSIONS if SOAK else (OLDEST, NEWEST))
    for transactions in (version.transactions if SOAK else version.transactions[-1:])
]
"""Tested versions of Kafka, each with the transaction version with which its storage is formatted."""


def parametrize_broker(*brokers: tuple[KafkaVersion, int]) -> pytest.MarkDecorator:
    names = [f"kafka-{version}-transactions-{transactions}" for version, transactions in brokers]
    return pytest.mark.parametrize("broker", brokers, ids=names, indirect=True)


with_each_version = parametrize_broker(*TESTED_VERSIONS)
with_versions_that_list_transactions = parametrize_broker(
    *(case for case in TESTED_VERSIONS if case[0].describes_transactions)
)
with_versions_without_transaction_lists = parametrize_broker(
    *(case for case in TESTED_VERSIONS if not case[0].describes_transactions)
)
"""Versions whose brokers cannot describe transactions, which exactly-once writes require."""
with_versions_of_smoke_tests = with_each_version if SOAK else with_versions_without_transaction_lists
"""Versions for the tests of other guarantees. On the others, the short run writes the same rows exactly once."""


@pytest.fixture(scope="module")
def broker(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[KafkaOfVersion]:
    version, transactions = request.param
    with KafkaOfVersion(tmp_path_factory.mktemp("of-a-version") / "kafka", version, transactions) as running:
        yield running


def numbers(broker: KafkaOfVersion, topic: str, isolation: str = "read_committed") -> Counter[int]:
    return Counter(int(record.value or b"") for record in read_topic(broker.bootstrap(), topic, isolation=isolation))


def count_each_row_once(rows: int = ROWS) -> Counter[int]:
    return Counter(range(rows))


def list_topics(broker: KafkaOfVersion) -> set[str]:
    return set(AdminClient({"bootstrap.servers": broker.bootstrap()}).list_topics(timeout=60).topics)


def save(spark: SparkSession, broker: KafkaOfVersion, topic: str, options: Mapping[str, str]) -> None:
    frame = spark.range(0, ROWS, 1, 2).selectExpr("CAST(id % 7 AS STRING) AS key", "CAST(id AS STRING) AS value")
    writer = frame.write.format("pykafka").option("kafka.bootstrap.servers", broker.bootstrap()).option("topic", topic)
    writer.options(**options).save()


def stream(spark: SparkSession, broker: KafkaOfVersion, topic: str, folder: Path, options: Mapping[str, str]) -> None:
    """Start a query twice. The second start writes one more micro-batch with the next numbers."""
    source = folder / "source"
    source.mkdir()
    for start in range(2):
        lines = range(start * ROWS // 2, (start + 1) * ROWS // 2)
        (source / f"{start}.txt").write_text("\n".join(map(str, lines)))
        writer = spark.readStream.text(str(source)).writeStream.format("pykafka").options(**options)
        writer = writer.option("kafka.bootstrap.servers", broker.bootstrap()).option("topic", topic)
        writer = writer.option("checkpointLocation", str(folder / "checkpoint")).trigger(availableNow=True)
        writer.start().awaitTermination()


def command(output: Output, broker: KafkaOfVersion, name: str, *arguments: str) -> tuple[int, Any]:
    output.readouterr()
    status = main([name, "--bootstrap-server", broker.bootstrap(), "--json", *arguments])
    prefix_status = output.readouterr()
    return status, json.loads(prefix_status.out) if prefix_status.out else prefix_status.err


# --- connections


@parametrize_broker((NEWEST, NEWEST.transactions[-1]))
@pytest.mark.parametrize(
    ("cluster_id", "node_id", "error_code"),
    [
        (CLUSTER_ID, 1, error_codes.NONE),
        (CLUSTER_ID, 2, error_codes.REBOOTSTRAP_REQUIRED),
        ("another", 1, error_codes.REBOOTSTRAP_REQUIRED),
        (CLUSTER_ID, -1, error_codes.INVALID_REQUEST),
    ],
)
def test_broker_rejects_connection_for_another_cluster_or_node(
    broker: KafkaOfVersion, cluster_id: str, node_id: int, error_code: int
) -> None:
    topic = create_topic(broker.bootstrap())
    request = build_api_versions_request(cluster_id, node_id)
    with BlockingClient(parse_client_config({"bootstrap.servers": broker.bootstrap()})) as client:
        client.wait_for_topic(topic)
        node = client.find_leader(topic, 0)
        assert node is not None
        response = send_to(client, node, ApiVersionsResponse, request, versions=VersionRange(5, 5))
    assert response.error_code == error_code


# --- the producer


@with_each_version
@pytest.mark.parametrize("codec", CODECS)
def test_librdkafka_reads_records_of_producer_with_each_codec(broker: KafkaOfVersion, codec: str) -> None:
    topic = create_topic(broker.bootstrap(), partitions=3)
    config = {"bootstrap.servers": broker.bootstrap(), "compression.type": codec}
    with KafkaProducer(config) as producer:
        values = [str(number).encode() for number in range(ROWS)]
        producer.send_columns(topic, RecordColumns(pa.array(values), pa.array(values))).result().raise_for_failures()
    assert numbers(broker, topic) == count_each_row_once()


@with_each_version
def test_transactional_producer_commits_and_aborts(broker: KafkaOfVersion) -> None:
    topic = create_topic(broker.bootstrap(), partitions=3)
    with KafkaProducer({"bootstrap.servers": broker.bootstrap(), "transactional.id": topic}) as producer:
        producer.init_transactions()
        for value, ends in (
            (b"0", producer.commit_transaction),
            (b"1", producer.abort_transaction),
            (b"2", producer.commit_transaction),
        ):
            producer.begin_transaction()
            producer.send_columns(topic, RecordColumns(pa.array([value]))).result().raise_for_failures()
            ends()
    assert numbers(broker, topic) == {0: 1, 2: 1}
    assert numbers(broker, topic, "read_uncommitted") == {0: 1, 1: 1, 2: 1}


@with_each_version
def test_transactional_producer_commits_offsets_of_a_group(broker: KafkaOfVersion) -> None:
    topic = create_topic(broker.bootstrap())
    with KafkaProducer({"bootstrap.servers": broker.bootstrap(), "transactional.id": topic}) as producer:
        producer.init_transactions()
        with producer.transaction():
            producer.send_offsets_to_transaction({(topic, 0): 17}, topic)
        # Without this wait, a broker before Kafka 4.0 may commit the second transaction's offset with the first
        # transaction, because it applies the end of a transaction to offsets after its response (KAFKA-17507).
        wait_until(lambda: read_committed_offset(broker.bootstrap(), topic, topic, 0) == 17)
        producer.begin_transaction()
        producer.send_offsets_to_transaction({(topic, 0): 99}, topic)
        producer.abort_transaction()
    assert read_committed_offset(broker.bootstrap(), topic, topic, 0) == 17


# --- Spark


@with_versions_of_smoke_tests
def test_batch_job_writes_each_row(spark: SparkSession, broker: KafkaOfVersion) -> None:
    topic = create_topic(broker.bootstrap(), partitions=3)
    save(spark, broker, topic, {})
    assert numbers(broker, topic) == count_each_row_once()


@with_versions_of_smoke_tests
def test_stream_writes_each_row(spark: SparkSession, broker: KafkaOfVersion, tmp_path: Path) -> None:
    topic = create_topic(broker.bootstrap(), partitions=3)
    stream(spark, broker, topic, tmp_path, {})
    assert numbers(broker, topic) == count_each_row_once()


@with_versions_that_list_transactions
def test_batch_job_with_idempotency_key_writes_once_in_two_runs(spark: SparkSession, broker: KafkaOfVersion) -> None:
    topic = create_topic(broker.bootstrap(), partitions=3)
    for _ in range(2):
        save(spark, broker, topic, EXACTLY_ONCE | {"idempotencyKey": topic})
    assert numbers(broker, topic) == count_each_row_once()
    assert numbers(broker, topic, "read_uncommitted") == count_each_row_once()


@with_versions_that_list_transactions
def test_stream_writes_exactly_once_across_restart(spark: SparkSession, broker: KafkaOfVersion, tmp_path: Path) -> None:
    topic = create_topic(broker.bootstrap(), partitions=3)
    stream(spark, broker, topic, tmp_path, EXACTLY_ONCE)
    assert numbers(broker, topic) == count_each_row_once()


@with_versions_without_transaction_lists
@pytest.mark.parametrize("check_connection", ["true", "false"])
def test_rejects_exactly_once_before_it_creates_the_decision_log(
    spark: SparkSession, broker: KafkaOfVersion, tmp_path: Path, check_connection: str
) -> None:
    """Batch writes and streams fail. With checkConnection=false, the planning worker detects the version."""
    topic = create_topic(broker.bootstrap(), partitions=3)
    options = EXACTLY_ONCE | {"checkConnection": check_connection}
    error = PreflightError if check_connection == "true" else Exception
    with pytest.raises(error, match=NEEDS_3_0):
        save(spark, broker, topic, options)
    with pytest.raises(error, match=NEEDS_3_0):
        stream(spark, broker, topic, tmp_path, options)
    assert (tmp_path / "checkpoint").exists() == (check_connection == "false")
    assert numbers(broker, topic) == {}
    assert DECISION_LOG_TOPIC not in list_topics(broker)


# --- the command line


@with_each_version
def test_doctor_passes(broker: KafkaOfVersion, capsys: Output) -> None:
    topic = create_topic(broker.bootstrap())
    status, document = command(capsys, broker, "doctor", "--topic", topic, "--transactional-id", "an-id")
    assert status == 0, document
    outcomes = {check["name"]: check["outcome"] for check in document["checks"]}
    assert outcomes.pop("clock") == ("skipped" if broker.version.has_zookeeper else "passed")
    assert set(outcomes.values()) == {"passed"}


@with_versions_without_transaction_lists
def test_doctor_rejects_exactly_once_like_the_driver(broker: KafkaOfVersion, capsys: Output, tmp_path: Path) -> None:
    conf = tmp_path / "spark.json"
    conf.write_text(json.dumps(EXACTLY_ONCE | {"topic": create_topic(broker.bootstrap())}))
    status, document = command(capsys, broker, "doctor", "--spark-conf", str(conf))
    (failed,) = (check for check in document["checks"] if check["outcome"] == "failed")
    assert (status, failed["name"]) == (1, "versions")
    assert NEEDS_3_0 in failed["remedy"]


@with_each_version
def test_topics_are_listed_and_described(broker: KafkaOfVersion, capsys: Output) -> None:
    topic = create_topic(broker.bootstrap(), partitions=2)
    _, output = command(capsys, broker, "topics")
    assert {"topic": topic, "partitions": 2, "replicas": 1} in output
    _, described = command(capsys, broker, "topics", topic)
    assert [(partition["partition"], partition["leader"], partition["end_offset"]) for partition in described] == [
        (0, 1, 0),
        (1, 1, 0),
    ]


@with_versions_that_list_transactions
def test_open_transactions_are_listed(spark: SparkSession, broker: KafkaOfVersion, capsys: Output) -> None:
    topic = create_topic(broker.bootstrap())
    save(spark, broker, topic, EXACTLY_ONCE | {"transactionalIdPrefix": topic})
    name = build_task_id(topic, TaskAttempt(1, 0, 0))
    with KafkaProducer({"bootstrap.servers": broker.bootstrap(), "transactional.id": name}) as producer:
        producer.init_transactions()
        producer.begin_transaction()
        producer.send_columns(topic, RecordColumns(pa.array([b"x"]))).result().raise_for_failures()
        status, output = command(capsys, broker, "transactions", "--prefix", topic)
        producer.abort_transaction()
    (prefix_status,) = output
    assert (status, [transaction["transactional_id"] for transaction in prefix_status["open"]]) == (0, [name])


@with_versions_that_list_transactions
def test_rejects_writes_of_task_whose_transaction_was_aborted(broker: KafkaOfVersion) -> None:
    """Before Kafka 3.6, leaders accept records without an open transaction, which would block readers forever.

    A record that arrives before the abort marker is accepted and aborted, so the write follows the marker.
    """
    topic = create_topic(broker.bootstrap())
    config = {"bootstrap.servers": broker.bootstrap()}
    alive = KafkaProducer({**config, "transactional.id": topic})
    alive.init_transactions()
    alive.begin_transaction()
    alive.send(topic, b"1").result(WAIT_TIMEOUT_SECONDS)
    with create_client(ProducerConfig.parse(config).client_config()) as client:
        abort_transactions(client, [*describe_transactions(client, [topic]).values()])
        wait_until(lambda: not describe_transactions(client, [topic])[topic].is_ending)
    with pytest.raises(KafkaSinkError):
        alive.send(topic, b"2").result(WAIT_TIMEOUT_SECONDS)
    alive.close(timeout=0)
    with KafkaProducer(config) as other:
        other.send(topic, b"3").result(WAIT_TIMEOUT_SECONDS)
    assert numbers(broker, topic) == {3: 1}


@with_versions_without_transaction_lists
def test_transactions_command_names_required_kafka_version(broker: KafkaOfVersion, capsys: Output) -> None:
    status, text = command(capsys, broker, "transactions")
    assert status != 0
    assert "is older than Kafka 3.0" in text
