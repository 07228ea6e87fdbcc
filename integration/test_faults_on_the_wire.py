"""A proxy between the producer and a real broker that loses or delays responses, and truncates or swallows requests."""

from __future__ import annotations

import threading

import pytest

from integration.support.kafka_cluster import KafkaCluster
from integration.support.librdkafka import create_topic, read_topic
from integration.support.proxy import Mode, Proxy
from integration.support.scenario import (
    LONG_TIMEOUT_OPTIONS,
    RECORDS,
    RESULT_SECONDS,
    Writer,
    assert_all_stored_once_in_order,
    assert_no_duplicates_and_ordered,
    parse_number,
    run,
)
from spark_kafka_sink import KafkaProducer
from spark_kafka_sink.errors import DeliveryTimeoutError

pytestmark = pytest.mark.needs("kafka")


@pytest.fixture
def topic(proxied: tuple[KafkaCluster, Proxy]) -> str:
    cluster, proxy = proxied
    proxy.mode = Mode.PASS
    proxy.faults = 0
    return create_topic(cluster.bootstrap(), partitions=3)


def _config(proxy: Proxy, **options: object) -> dict[str, object]:
    return LONG_TIMEOUT_OPTIONS | {"bootstrap.servers": proxy.address, **options}


@pytest.mark.parametrize("mode", [Mode.LOSE_RESPONSE, Mode.TRUNCATE_REQUEST])
def test_3_and_4_retries_with_same_sequence_after_lost_response_or_truncated_request(
    proxied: tuple[KafkaCluster, Proxy], topic: str, mode: Mode
) -> None:
    cluster, proxy = proxied

    def inject() -> None:
        proxy.mode = mode

    def inject_again() -> None:
        proxy.wait_for_fault()
        proxy.mode = mode

    results = run(_config(proxy), topic, inject=inject, repair=inject_again)
    assert proxy.faults >= 2
    assert_all_stored_once_in_order(cluster.bootstrap(), topic, results)


def test_5_fails_rows_at_delivery_timeout_of_unresponsive_broker(
    proxied: tuple[KafkaCluster, Proxy], topic: str
) -> None:
    cluster, proxy = proxied
    config = _config(proxy, **{"request.timeout.ms": 1_000, "delivery.timeout.ms": 3_000})
    with KafkaProducer(config) as producer:
        writer = Writer(producer, topic, records=900)
        writer.write_third()
        producer.flush(RESULT_SECONDS)
        proxy.mode = Mode.SWALLOW
        writer.write_third()
        _, timed_out = writer.results()
        assert timed_out.rows_failed == 300
        failure = timed_out.failures[0]
        assert isinstance(failure.error, DeliveryTimeoutError)
        assert topic in str(failure.error)
        proxy.mode = Mode.PASS
        writer.write_until_acknowledged()
    stored = read_topic(cluster.bootstrap(), topic)
    assert_no_duplicates_and_ordered(stored)


def test_6_responses_after_delivery_timeout_duplicate_no_records(
    proxied: tuple[KafkaCluster, Proxy], topic: str
) -> None:
    cluster, proxy = proxied
    config = _config(proxy, **{"request.timeout.ms": 1_500, "delivery.timeout.ms": 2_000, "linger.ms": 0})
    with KafkaProducer(config) as producer:
        writer = Writer(producer, topic, records=RECORDS)
        writer.write_third()
        producer.flush(RESULT_SECONDS)
        proxy.mode = Mode.HOLD_RESPONSES
        writer.write_third()
        producer.flush(RESULT_SECONDS)
        assert any(future.result(0).rows_failed for future in writer.futures)
        proxy.mode = Mode.PASS
        writer.write_rest()
        writer.write_until_acknowledged()
        results = writer.results()
    stored = read_topic(cluster.bootstrap(), topic)
    assert_no_duplicates_and_ordered(stored)
    numbers = {parse_number(record) for record in stored}
    # The topic must contain the acknowledged records. It may contain records that timed out.
    for first, result in zip(writer.starts, results, strict=True):
        if result.rows_failed == 0:
            assert numbers.issuperset(range(first, first + result.rows_written))


def test_20_finds_moved_broker_by_bootstrap_servers(
    tmp_path_factory: pytest.TempPathFactory,
) -> None:
    """The previously advertised address refuses connections, so only the configured address leads to the broker."""
    folder = tmp_path_factory.mktemp("elsewhere") / "cluster"
    with (
        Proxy() as configured,
        Proxy() as first,
        Proxy() as second,
        KafkaCluster(folder, listeners=("PLAINTEXT", "PROXIED"), advertised_ports={1: first.port}) as cluster,
    ):
        for proxy in (configured, first, second):
            proxy.target = ("localhost", cluster.nodes[1].ports["PROXIED"])
        topic = create_topic(cluster.bootstrap(), partitions=3)

        def move() -> None:
            first.mode = Mode.REFUSE
            cluster.restart_elsewhere(1, second.port)

        move_thread = threading.Thread(target=move)
        results = run(_config(configured), topic, inject=move_thread.start, repair=move_thread.join)
        assert first.faults > 0
        assert_all_stored_once_in_order(cluster.bootstrap(), topic, results)
