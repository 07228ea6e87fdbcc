"""A proxy between the producer and a real broker loses answers, cuts requests, delays and swallows."""

from __future__ import annotations

import threading

import pytest

from integration.support.kafka_cluster import KafkaCluster
from integration.support.librdkafka import create_topic, read_topic
from integration.support.proxy import Mode, Proxy
from integration.support.scenario import (
    PATIENT,
    RECORDS,
    RESULT_SECONDS,
    Writer,
    assert_all_stored_once_in_order,
    assert_nothing_doubled_and_ordered,
    number_of,
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


def _config(proxy: Proxy, **more: object) -> dict[str, object]:
    return PATIENT | {"bootstrap.servers": proxy.address, **more}


@pytest.mark.parametrize("mode", [Mode.LOSE_ANSWER, Mode.CUT_REQUEST])
def test_3_and_4_a_lost_answer_and_a_cut_request_are_sent_again_with_the_same_sequence(
    proxied: tuple[KafkaCluster, Proxy], topic: str, mode: Mode
) -> None:
    cluster, proxy = proxied

    def strike() -> None:
        proxy.mode = mode

    def strike_again() -> None:
        proxy.wait_for_fault()
        proxy.mode = mode

    results = run(_config(proxy), topic, fault=strike, heal=strike_again)
    assert proxy.faults >= 2
    assert_all_stored_once_in_order(cluster.bootstrap(), topic, results)


def test_5_a_silent_broker_is_an_error_within_the_delivery_timeout(
    proxied: tuple[KafkaCluster, Proxy], topic: str
) -> None:
    cluster, proxy = proxied
    config = _config(proxy, **{"request.timeout.ms": 1_000, "delivery.timeout.ms": 3_000})
    with KafkaProducer(config) as producer:
        writer = Writer(producer, topic, records=900)
        writer.third()
        producer.flush(RESULT_SECONDS)
        proxy.mode = Mode.SWALLOW
        writer.third()
        _, silent = writer.results()
        assert silent.rows_failed == 300
        failure = silent.failures[0]
        assert isinstance(failure.error, DeliveryTimeoutError)
        assert topic in str(failure.error)
        proxy.mode = Mode.PASS
        writer.write_until_taken()
    stored = read_topic(cluster.bootstrap(), topic)
    assert_nothing_doubled_and_ordered(stored)


def test_6_answers_that_come_after_the_expiry_double_nothing_and_mix_no_bytes(
    proxied: tuple[KafkaCluster, Proxy], topic: str
) -> None:
    cluster, proxy = proxied
    config = _config(proxy, **{"request.timeout.ms": 1_500, "delivery.timeout.ms": 2_000, "linger.ms": 0})
    with KafkaProducer(config) as producer:
        writer = Writer(producer, topic, records=RECORDS)
        writer.third()
        producer.flush(RESULT_SECONDS)
        proxy.mode = Mode.HOLD_ANSWERS
        writer.third()
        producer.flush(RESULT_SECONDS)
        assert any(future.result(0).rows_failed for future in writer.futures)
        proxy.mode = Mode.PASS
        writer.rest()
        writer.write_until_taken()
        results = writer.results()
    stored = read_topic(cluster.bootstrap(), topic)
    assert_nothing_doubled_and_ordered(stored)
    numbers = {number_of(record) for record in stored}
    # A record whose fate was unknown may be there or not. One that was acknowledged must be.
    for first, result in zip(writer.starts, results, strict=True):
        if result.rows_failed == 0:
            assert numbers.issuperset(range(first, first + result.rows_written))


def test_20_a_broker_that_comes_back_at_another_address_is_found_by_bootstrap_servers(
    tmp_path_factory: pytest.TempPathFactory,
) -> None:
    """Only the configured address leads to it: the address that it advertised before refuses connections by then."""
    folder = tmp_path_factory.mktemp("elsewhere") / "cluster"
    with (
        Proxy() as configured,
        Proxy() as first,
        Proxy() as second,
        KafkaCluster(folder, advertised_ports={1: first.port}) as cluster,
    ):
        for proxy in (configured, first, second):
            proxy.target = ("localhost", cluster.nodes[1].ports["PROXIED"])
        topic = create_topic(cluster.bootstrap(), partitions=3)

        def move() -> None:
            first.mode = Mode.REFUSE
            cluster.restart_elsewhere(1, second.port)

        moving = threading.Thread(target=move)
        results = run(_config(configured), topic, fault=moving.start, heal=moving.join)
        assert first.faults > 0
        assert_all_stored_once_in_order(cluster.bootstrap(), topic, results)
