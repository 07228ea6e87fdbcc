"""KafkaProducer on brokers that are not Apache Kafka: kfake of franz-go and the mock cluster of librdkafka.

librdkafka reads what the producer has written. kfake also runs as if it were Kafka 2.8, so that the producer uses older
requests and version 1 of transactions. `make soak` runs all cases.
"""

from __future__ import annotations

import json
import os
import uuid
from collections.abc import Iterator
from pathlib import Path

import pytest

from integration.support.librdkafka import StoredRecord, read_topic
from integration.support.other_brokers import Capability, Kfake, LibrdkafkaMock, OtherBroker, build_kfake_server
from spark_kafka_sink.cli.main import main
from spark_kafka_sink.client.options import parse_client_config
from spark_kafka_sink.errors import PreflightError, ProducerFencedError
from spark_kafka_sink.exactly_once.driver import Driver
from spark_kafka_sink.exactly_once.entries import WriterKind
from spark_kafka_sink.exactly_once.settings import ExactlyOnceSettings
from spark_kafka_sink.producer.producer import KafkaProducer
from spark_kafka_sink.protocol import error_codes
from spark_kafka_sink.protocol.error_codes import (
    CONCURRENT_TRANSACTIONS,
    COORDINATOR_LOAD_IN_PROGRESS,
    COORDINATOR_NOT_AVAILABLE,
    NOT_COORDINATOR,
    NOT_ENOUGH_REPLICAS,
    NOT_ENOUGH_REPLICAS_AFTER_APPEND,
    NOT_LEADER_OR_FOLLOWER,
    REQUEST_TIMED_OUT,
)
from spark_kafka_sink.protocol.message import ApiKey
from spark_kafka_sink.records.compression import Codec

SOAK = bool(os.environ.get("SOAK"))
KFAKE, KFAKE_OLD, MOCK = "kfake", "kfake-2.8", "librdkafka-mock"
OLD_VERSION = "2.8"
ALL_BROKERS = [
    pytest.param(KFAKE, marks=pytest.mark.needs("go")),
    *([pytest.param(KFAKE_OLD, marks=pytest.mark.needs("go"))] if SOAK else []),
    MOCK,
]
PARTITIONS = 3
ROWS = 60
ERRORS = 2
"""The number of requests that fail, one after the other."""
QUICK_READS = {"fetch.wait.max.ms": "10"}
PRODUCE_ERRORS = (NOT_LEADER_OR_FOLLOWER, NOT_ENOUGH_REPLICAS, REQUEST_TIMED_OUT)
STORING_ERRORS = (REQUEST_TIMED_OUT, NOT_ENOUGH_REPLICAS_AFTER_APPEND)
"""Errors with which a broker may respond although it has stored the records."""
TRANSACTION_ERRORS = (
    (ApiKey.FIND_COORDINATOR, COORDINATOR_NOT_AVAILABLE),
    (ApiKey.INIT_PRODUCER_ID, COORDINATOR_LOAD_IN_PROGRESS),
    (ApiKey.INIT_PRODUCER_ID, CONCURRENT_TRANSACTIONS),
    (ApiKey.INIT_PRODUCER_ID, NOT_COORDINATOR),
    (ApiKey.ADD_PARTITIONS_TO_TXN, CONCURRENT_TRANSACTIONS),
    (ApiKey.ADD_PARTITIONS_TO_TXN, NOT_COORDINATOR),
    (ApiKey.END_TXN, COORDINATOR_NOT_AVAILABLE),
    (ApiKey.END_TXN, CONCURRENT_TRANSACTIONS),
    (ApiKey.END_TXN, NOT_COORDINATOR),
)[:: 1 if SOAK else 4]


def error_name(code: int) -> str:
    return error_codes.lookup_error_code(code).name


@pytest.fixture(scope="session")
def kfake_server(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The program of tools/kfake_server."""
    return build_kfake_server(tmp_path_factory.mktemp("kfake"))


@pytest.fixture(scope="module", params=ALL_BROKERS)
def broker(request: pytest.FixtureRequest) -> Iterator[OtherBroker]:
    if request.param == MOCK:
        with LibrdkafkaMock() as mock:
            yield mock
        return
    server: Path = request.getfixturevalue("kfake_server")
    with Kfake(server, OLD_VERSION if request.param == KFAKE_OLD else "") as kfake:
        yield kfake


@pytest.fixture
def topic(broker: OtherBroker) -> str:
    """A new topic with PARTITIONS partitions."""
    name = f"topic-{uuid.uuid4().hex[:12]}"
    broker.create_topic(name, PARTITIONS)
    return name


def skip_without(broker: OtherBroker, capability: Capability) -> None:
    """Skip the test if the broker lacks the capability."""
    if instead := broker.lacks.get(capability):
        pytest.skip(f"{type(broker).__name__} cannot {capability.value}: it {instead}")


def new_producer(broker: OtherBroker, **options: object) -> KafkaProducer:
    return KafkaProducer(bootstrap_servers=broker.bootstrap, linger_ms=0, retry_backoff_ms=10, **options)  # type: ignore[arg-type]


def read_committed(broker: OtherBroker, topic: str) -> list[StoredRecord]:
    return read_topic(broker.bootstrap, topic, config={**QUICK_READS, **broker.reader_config})


def read_values(broker: OtherBroker, topic: str) -> list[int]:
    return sorted(int(record.value or b"") for record in read_committed(broker, topic))


def send_numbers(producer: KafkaProducer, topic: str, numbers: range) -> None:
    for number in numbers:
        producer.send(topic, b"%d" % number, partition=number % PARTITIONS)
    producer.flush()


@pytest.mark.parametrize("codec", [codec.name.lower() for codec in Codec])
def test_librdkafka_reads_records_of_each_codec(broker: OtherBroker, topic: str, codec: str) -> None:
    rows = [
        (
            number % PARTITIONS,
            b"key %d" % number if number % 4 else None,
            b"value %d " % number * (number % 50) if number % 7 else None,
            (("header", b"%d" % number),) if number % 5 == 0 else (),
        )
        for number in range(ROWS)
    ]
    with new_producer(broker, compression_type=codec) as producer:
        futures = [
            producer.send(topic, value, key=key, partition=partition, headers=list(headers))
            for partition, key, value, headers in rows
        ]
        positions = [(future.result().partition, future.result().offset) for future in futures]
    # This check includes the CRC of each batch.
    stored = {(r.partition, r.offset): r for r in read_topic(broker.bootstrap, topic, config=QUICK_READS)}
    assert len(stored) == ROWS
    found = [stored[position] for position in positions]
    assert [(record.partition, record.key, record.value, record.headers) for record in found] == rows


@pytest.mark.parametrize("error", PRODUCE_ERRORS, ids=error_name)
def test_idempotent_producer_retries_rejected_batches_in_order(broker: OtherBroker, topic: str, error: int) -> None:
    check_retries(broker, topic, error)


@pytest.mark.parametrize("error", STORING_ERRORS, ids=error_name)
def test_idempotent_producer_duplicates_no_batch_stored_despite_error(
    broker: OtherBroker, topic: str, error: int
) -> None:
    skip_without(broker, Capability.FAIL_AFTER_APPEND)
    check_retries(broker, topic, error)


def check_retries(broker: OtherBroker, topic: str, error: int) -> None:
    """Check that the producer retries batches that fail with an error, and that each record is stored once, in order.

    The batches are small, so several are in flight: others follow a failed batch before it is retried.
    """
    with new_producer(broker, batch_size=100, max_in_flight_requests_per_connection=broker.max_in_flight) as producer:
        producer.send(topic, b"0", partition=0).result()
        broker.fail_requests(ApiKey.PRODUCE, error, ERRORS)
        offsets = [producer.send(topic, b"%d" % number, partition=0) for number in range(1, ROWS)]
        assert [future.result().offset for future in offsets] == list(range(1, ROWS))
        assert producer.metric("record-retry-total") > 0
    assert [record.value for record in read_committed(broker, topic)] == [b"%d" % number for number in range(ROWS)]


def test_committed_transactions_are_visible(broker: OtherBroker, topic: str) -> None:
    with new_producer(broker, transactional_id=topic) as producer:
        producer.init_transactions()
        for start in (0, 10, 20):
            with producer.transaction():
                send_numbers(producer, topic, range(start, start + 10))
    assert read_values(broker, topic) == list(range(30))


def test_open_and_aborted_transactions_are_hidden(broker: OtherBroker, topic: str) -> None:
    skip_without(broker, Capability.ISOLATE_TRANSACTIONS)
    with new_producer(broker, transactional_id=topic) as producer:
        producer.init_transactions()
        producer.begin_transaction()
        send_numbers(producer, topic, range(10))
        assert read_values(broker, topic) == []
        producer.abort_transaction()
        with producer.transaction():
            send_numbers(producer, topic, range(10, 20))
    assert read_values(broker, topic) == list(range(10, 20))


def test_newer_producer_fences_older_one(broker: OtherBroker, topic: str) -> None:
    skip_without(broker, Capability.FENCE)
    with (
        new_producer(broker, transactional_id=topic) as older,
        new_producer(broker, transactional_id=topic) as newer,
    ):
        older.init_transactions()
        older.begin_transaction()
        send_numbers(older, topic, range(10))
        newer.init_transactions()
        with newer.transaction():
            send_numbers(newer, topic, range(10, 20))
        with pytest.raises(ProducerFencedError):
            older.commit_transaction()
    assert read_values(broker, topic) == list(range(10, 20))


@pytest.mark.parametrize(
    ("api", "error"), TRANSACTION_ERRORS, ids=[f"{api.name}-{error_name(error)}" for api, error in TRANSACTION_ERRORS]
)
def test_transaction_is_committed_after_temporary_error(
    broker: OtherBroker, topic: str, api: ApiKey, error: int
) -> None:
    with new_producer(broker, transactional_id=topic) as producer:
        if api in (ApiKey.FIND_COORDINATOR, ApiKey.INIT_PRODUCER_ID):
            broker.fail_requests(api, error, ERRORS)
            producer.init_transactions()
        else:
            producer.init_transactions()
            broker.fail_requests(api, error, ERRORS)
        with producer.transaction():
            send_numbers(producer, topic, range(10))
    assert read_values(broker, topic) == list(range(10))


def test_transactions_follow_coordinator_to_other_brokers(broker: OtherBroker, topic: str) -> None:
    with new_producer(broker, transactional_id=topic) as producer:
        producer.init_transactions()
        for start in (0, 10, 20, 30):
            with producer.transaction():
                send_numbers(producer, topic, range(start, start + 10))
                broker.move_coordinator(topic)
    assert read_values(broker, topic) == list(range(40))


def test_producer_follows_leader_to_other_brokers(broker: OtherBroker, topic: str) -> None:
    nodes = [*broker.node_ids] * 2
    with new_producer(broker) as producer:
        for number, node_id in enumerate(nodes):
            broker.move_leader(topic, 0, node_id)
            assert producer.send(topic, b"%d" % number, partition=0).result().offset == number
    assert [record.value for record in read_committed(broker, topic)] == [b"%d" % n for n in range(len(nodes))]


def test_producer_writes_to_added_partition(broker: OtherBroker, topic: str) -> None:
    skip_without(broker, Capability.ADD_PARTITIONS)
    with new_producer(broker) as producer:
        producer.send(topic, b"0", partition=0).result()
        broker.add_partitions(topic, PARTITIONS + 1)
        producer.send(topic, b"1", partition=PARTITIONS).result()
        assert len(producer.partitions_for(topic)) == PARTITIONS + 1
    assert {(record.partition, record.value) for record in read_committed(broker, topic)} == {
        (0, b"0"),
        (PARTITIONS, b"1"),
    }


@pytest.mark.needs("go")
def test_kfake_rejects_exactly_once_write_and_doctor_reports_it(
    kfake_server: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """If kfake accepts the request, exactly-once writes can be tested with it."""
    pytest.importorskip("pyspark")
    rejection = "the broker rejected InitProducerId with an expected producer id"
    conf = tmp_path / "options"
    conf.write_text("topic=orders\ndeliveryGuarantee=exactly-once\ntransactionalIdPrefix=orders\n")
    with Kfake(kfake_server) as kfake:
        kfake.create_topic("orders", PARTITIONS)
        config = parse_client_config({"bootstrap.servers": kfake.bootstrap})
        settings = ExactlyOnceSettings(config, "orders", writer_kind=WriterKind.STREAM)
        with Driver(settings) as driver, pytest.raises(PreflightError, match=f"nothing was written: .*{rejection}"):
            driver.begin("a start")
        assert main(["doctor", "--json", "--bootstrap-server", kfake.bootstrap, "--spark-conf", str(conf)]) == 1
    checks = {check["name"]: check for check in json.loads(capsys.readouterr().out)["checks"]}
    assert [name for name, check in checks.items() if check["outcome"] == "failed"] == ["first epoch"]
    assert rejection in checks["first epoch"]["detail"]
    assert "Exactly-once delivery is not possible with this cluster" in checks["first epoch"]["remedy"]
