"""NetworkClient on a real Kafka cluster: API versions, metadata, records of librdkafka, and broker restarts."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa
import pytest
from confluent_kafka import KafkaException, Producer

from integration.support.kafka_cluster import USERS, KafkaCluster
from integration.support.librdkafka import create_topic, delete_topic, read_topic
from spark_kafka_sink.client.metadata import Metadata, create_metadata
from spark_kafka_sink.client.network_client import NetworkClient, create_network_client
from spark_kafka_sink.client.options import parse_client_config
from spark_kafka_sink.client.versions import MIN_VERSION_WITH_ROUTING_CHECK
from spark_kafka_sink.errors import AuthenticationError, BrokerError, MetadataTimeoutError
from spark_kafka_sink.network.system import OperatingSystem
from spark_kafka_sink.protocol.message import ApiKey
from spark_kafka_sink.protocol.messages.api_versions import ApiVersionsRequest, ApiVersionsResponse
from spark_kafka_sink.reader.fetched import ROWS_SCHEMA
from spark_kafka_sink.reader.reader import TopicReader, read_topic_table
from spark_kafka_sink.requests import blocking
from spark_kafka_sink.requests.blocking import BlockingClient
from tests.requests.node_message import send_to
from tests.waiting import WAIT_TIMEOUT_SECONDS, wait_until

pytestmark = pytest.mark.needs("kafka")

SYSTEM = OperatingSystem()


def poll_until_known(client: NetworkClient, metadata: Metadata, topic: str) -> None:
    def is_known() -> bool:
        client.poll(100, SYSTEM.now())
        return metadata.snapshot.partition_count(topic) is not None

    metadata.add_topic(topic, SYSTEM.now())
    wait_until(is_known, metadata.describe_connection_failures)


def rows(table: pa.Table) -> list[tuple[int, int, int, bytes | None, bytes | None, tuple[tuple[str, bytes], ...]]]:
    return [
        (
            row["partition"],
            row["offset"],
            round(row["timestamp"].timestamp() * 1000),
            row["key"],
            row["value"],
            tuple((header["key"], header["value"]) for header in row["headers"] or ()),
        )
        for row in table.to_pylist()
    ]


def test_learns_cluster_id_leaders_versions_and_features(kafka: KafkaCluster) -> None:
    config = parse_client_config({"bootstrap.servers": kafka.bootstrap()})
    topic = create_topic(kafka.bootstrap(), partitions=3)
    metadata = create_metadata(config, system=SYSTEM)
    client = create_network_client(config, metadata, system=SYSTEM)
    try:
        poll_until_known(client, metadata, topic)
        snapshot = metadata.snapshot
        assert snapshot.partition_count(topic) == 3
        assert snapshot.cluster_id
        assert snapshot.topic_name(snapshot.topic_id(topic) or snapshot.topics[topic].topic_id) == topic
        leader = snapshot.leader(topic, 0)
        assert leader is not None
        assert snapshot.topics[topic].partitions[0].leader_epoch is not None
        while not client.ready(leader, SYSTEM.now()):
            client.poll(100, SYSTEM.now())
        assert client.latest_usable_version(leader.id, ApiKey.PRODUCE) >= 11
        assert client.latest_usable_version(leader.id, ApiKey.METADATA) >= 12
        assert client.finalized_features.levels["transaction.version"] >= 1
        assert client.finalized_features.epoch >= 0
    finally:
        client.close()


def test_broker_accepts_every_supported_api_versions_version(kafka: KafkaCluster) -> None:
    with BlockingClient(parse_client_config({"bootstrap.servers": kafka.bootstrap()})) as client:
        topic = create_topic(kafka.bootstrap())
        client.wait_for_topic(topic)
        node = client.find_leader(topic, 0)
        assert node is not None
        for version in range(ApiVersionsRequest.VERSIONS.min, MIN_VERSION_WITH_ROUTING_CHECK):
            only = type(ApiVersionsRequest.VERSIONS)(version, version)
            response = send_to(
                client,
                node,
                ApiVersionsResponse,
                ApiVersionsRequest(client_software_name="test", client_software_version="1.0"),
                versions=only,
            )
            assert response.error_code == 0
            assert len(response.api_keys) > 10


@pytest.mark.parametrize("codec", ["none", "gzip", "snappy", "lz4", "zstd"])
def test_reads_records_of_librdkafka_with_each_codec(kafka: KafkaCluster, codec: str) -> None:
    topic = create_topic(kafka.bootstrap(), partitions=3)
    producer = Producer({"bootstrap.servers": kafka.bootstrap(), "compression.type": codec, "linger.ms": 20})
    for number in range(3_000):
        key = b"k%d" % number if number % 5 else None
        value = b"v" * (number % 300) if number % 7 else None
        headers: list[tuple[str, str | bytes | None]] = [("n", b"%d" % number)] if number % 3 == 0 else []
        producer.produce(topic, value=value, key=key, headers=headers, partition=number % 3)
    producer.flush(WAIT_TIMEOUT_SECONDS)
    table = read_topic_table(kafka.bootstrap(), topic)
    assert table.schema.equals(ROWS_SCHEMA)
    witness = sorted(read_topic(kafka.bootstrap(), topic), key=lambda record: (record.partition, record.offset))
    assert rows(table) == [(r.partition, r.offset, r.timestamp, r.key, r.value, r.headers) for r in witness]
    assert table.num_rows == 3_000
    assert set(table.column("timestampType").to_pylist()) == {0}


def test_only_read_committed_hides_aborted_transactions(kafka: KafkaCluster) -> None:
    topic = create_topic(kafka.bootstrap(), partitions=2)
    producer = Producer({"bootstrap.servers": kafka.bootstrap(), "transactional.id": f"tx-{topic}"})
    producer.init_transactions(WAIT_TIMEOUT_SECONDS)
    for turn, commit in enumerate([True, False, True, False]):
        producer.begin_transaction()
        for number in range(50):
            producer.produce(
                topic, value=b"%s-%d-%d" % (b"kept" if commit else b"gone", turn, number), partition=number % 2
            )
        producer.flush(WAIT_TIMEOUT_SECONDS)
        if commit:
            producer.commit_transaction(WAIT_TIMEOUT_SECONDS)
        else:
            producer.abort_transaction(WAIT_TIMEOUT_SECONDS)
    committed = read_topic_table(kafka.bootstrap(), topic)
    assert rows(committed) == [
        (r.partition, r.offset, r.timestamp, r.key, r.value, r.headers)
        for r in sorted(read_topic(kafka.bootstrap(), topic), key=lambda r: (r.partition, r.offset))
    ]
    assert committed.num_rows == 100
    assert all(value.startswith(b"kept") for value in committed.column("value").to_pylist())
    assert read_topic_table(kafka.bootstrap(), topic, isolation="read_uncommitted").num_rows == 200


def test_read_committed_stops_before_open_transaction(kafka: KafkaCluster) -> None:
    topic = create_topic(kafka.bootstrap())
    plain = Producer({"bootstrap.servers": kafka.bootstrap()})
    plain.produce(topic, value=b"before")
    plain.flush(WAIT_TIMEOUT_SECONDS)
    producer = Producer({"bootstrap.servers": kafka.bootstrap(), "transactional.id": f"tx-{topic}"})
    producer.init_transactions(WAIT_TIMEOUT_SECONDS)
    producer.begin_transaction()
    producer.produce(topic, value=b"open")
    producer.flush(WAIT_TIMEOUT_SECONDS)
    config = parse_client_config({"bootstrap.servers": kafka.bootstrap()})
    with TopicReader(config) as reader:
        assert reader.end_offsets(topic) == {0: 1}
        assert reader.read(topic).column("value").to_pylist() == [b"before"]
    with TopicReader(config, isolation="read_uncommitted") as reader:
        assert reader.end_offsets(topic) == {0: 2}
    producer.abort_transaction(WAIT_TIMEOUT_SECONDS)


def security(kafka: KafkaCluster, listener: str, password: str = USERS["alice"]) -> dict[str, object]:
    options: dict[str, object] = {"bootstrap.servers": kafka.bootstrap(listener)}
    if "SSL" in listener:
        ca = Path(kafka.certificates) / "ca.pem"
        options |= {"ssl.truststore.type": "PEM", "ssl.truststore.location": str(ca)}
    if "SASL" in listener:
        login = "org.apache.kafka.common.security.scram.ScramLoginModule required"
        options["sasl.jaas.config"] = f'{login} username="alice" password="{password}";'
        options["sasl.mechanism"] = "SCRAM-SHA-512"
    return options | {"security.protocol": listener}


@pytest.mark.parametrize("listener", ["PLAINTEXT", "SSL", "SASL_PLAINTEXT", "SASL_SSL"])
def test_reads_topic_with_each_security_protocol(kafka: KafkaCluster, listener: str) -> None:
    topic = create_topic(kafka.bootstrap())
    producer = Producer({"bootstrap.servers": kafka.bootstrap()})
    producer.produce(topic, value=b"hello")
    producer.flush(WAIT_TIMEOUT_SECONDS)
    options = security(kafka, listener)
    with TopicReader(parse_client_config(options)) as reader:
        assert reader.read(topic).column("value").to_pylist() == [b"hello"]


def test_wrong_password_fails_immediately_and_stays_secret(kafka: KafkaCluster) -> None:
    config = parse_client_config(security(kafka, "SASL_PLAINTEXT", password="not-this-one"))
    # A timeout would be another error, and come after an hour.
    with TopicReader(config, timeout_ms=3_600_000) as reader, pytest.raises(AuthenticationError) as failure:
        reader.read("any")
    assert "not-this-one" not in str(failure.value)


def test_error_for_listener_of_another_protocol_names_security_protocol(kafka: KafkaCluster) -> None:
    config = parse_client_config({"bootstrap.servers": kafka.bootstrap("SSL")})
    with TopicReader(config, timeout_ms=3_000) as reader, pytest.raises(MetadataTimeoutError) as failure:
        reader.read("any")
    assert "security.protocol" in str(failure.value)


def test_reads_recreated_topic(kafka: KafkaCluster) -> None:
    topic = create_topic(kafka.bootstrap(), partitions=2)
    with TopicReader(parse_client_config({"bootstrap.servers": kafka.bootstrap()})) as reader:
        assert reader.partitions(topic) == [0, 1]
        first = reader.end_offsets(topic)
        delete_topic(kafka.bootstrap(), topic)

        def is_created() -> bool:
            """Try to create the topic again, which fails until its deletion in the background has finished."""
            try:
                return create_topic(kafka.bootstrap(), topic, partitions=2) == topic
            except KafkaException:
                return False

        wait_until(is_created)
        producer = Producer({"bootstrap.servers": kafka.bootstrap()})
        producer.produce(topic, value=b"second life", partition=1)
        producer.flush(WAIT_TIMEOUT_SECONDS)
        assert first == {0: 0, 1: 0}
        assert reader.end_offsets(topic) == {0: 0, 1: 1}
        assert reader.read(topic).column("value").to_pylist() == [b"second life"]


def test_metadata_lookup_does_not_create_missing_topic(kafka: KafkaCluster, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(blocking, "MAX_UNKNOWN_TOPIC_MS", 500)
    with TopicReader(parse_client_config({"bootstrap.servers": kafka.bootstrap()})) as reader:
        for _ in range(2):
            with pytest.raises(BrokerError, match="UNKNOWN_TOPIC_OR_PARTITION"):
                reader.partitions("no-such-topic")


def test_reconnects_to_restarted_broker(kafka: KafkaCluster) -> None:
    topic = create_topic(kafka.bootstrap())
    producer = Producer({"bootstrap.servers": kafka.bootstrap()})
    producer.produce(topic, value=b"before")
    producer.flush(WAIT_TIMEOUT_SECONDS)
    with TopicReader(parse_client_config({"bootstrap.servers": kafka.bootstrap()})) as reader:
        assert reader.read(topic).num_rows == 1
        kafka.restart(1)
        producer.produce(topic, value=b"after")
        producer.flush(WAIT_TIMEOUT_SECONDS)
        assert reader.read(topic).column("value").to_pylist() == [b"before", b"after"]
