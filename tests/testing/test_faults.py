"""Effects of injected faults on a producer."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from spark_kafka_sink import KafkaProducer, ProducerRecord
from spark_kafka_sink.broker.fault_rules import FaultRule
from spark_kafka_sink.errors import BrokerError
from spark_kafka_sink.testing import EmbeddedBroker, Faults, embedded_broker
from tests.waiting import WAIT_TIMEOUT_SECONDS


@pytest.fixture
def broker() -> Iterator[EmbeddedBroker]:
    with embedded_broker({"t": 1, "other": 1}) as broker:
        yield broker


def send(broker: EmbeddedBroker, topic: str = "t", request_timeout_ms: int = 30_000) -> None:
    options = {"retry.backoff.ms": 1, "request.timeout.ms": request_timeout_ms}
    with KafkaProducer(broker.client_options | options) as producer:
        producer.send(ProducerRecord(topic, b"v")).result(WAIT_TIMEOUT_SECONDS)


@pytest.mark.parametrize(
    "add_fault",
    [
        lambda faults: faults.produce_fails_once("NOT_LEADER_OR_FOLLOWER"),
        lambda faults: faults.produce_fails("NOT_ENOUGH_REPLICAS", times=3),
        lambda faults: faults.produce_fails("REQUEST_TIMED_OUT", stored=True),
        lambda faults: faults.drops_connections(),
        lambda faults: faults.loses_responses(times=2),
        lambda faults: faults.garbles_responses(),
        lambda faults: faults.slow(1, 5),
        lambda faults: faults.throttles(1),
    ],
)
def test_writes_record_exactly_once_despite_fault(broker: EmbeddedBroker, add_fault: object) -> None:
    assert callable(add_fault)
    rule: FaultRule = add_fault(broker.faults)
    send(broker)
    assert rule.affected_count >= 1
    assert broker.topic("t").read().num_rows == 1


def test_producer_retries_after_request_timeout_when_broker_never_responds(broker: EmbeddedBroker) -> None:
    rule = broker.faults.never_responds()
    send(broker, request_timeout_ms=200)
    assert rule.affected_count == 1
    assert broker.topic("t").read().num_rows == 1


def test_fatal_error_is_raised_with_its_name(broker: EmbeddedBroker) -> None:
    broker.faults.produce_fails_once("TOPIC_AUTHORIZATION_FAILED")
    with pytest.raises(BrokerError, match="TOPIC_AUTHORIZATION_FAILED"):
        send(broker)


def test_on_selects_requests_of_fault(broker: EmbeddedBroker) -> None:
    other_topic = broker.faults.on(topic="other").loses_responses()
    second = broker.faults.on(nth=2).loses_responses()
    producer_id_rule = broker.faults.on(request="INIT_PRODUCER_ID").drops_connections()
    all_requests = broker.faults.on(request=None).slow(1)
    send(broker)
    assert (other_topic.affected_count, second.affected_count, producer_id_rule.affected_count) == (0, 0, 1)
    assert all_requests.affected_count > 3
    send(broker, "other")
    assert (other_topic.affected_count, second.affected_count) == (1, 1)


def test_fault_ends_with_its_with_block(broker: EmbeddedBroker) -> None:
    with broker.faults.slow(1) as rule:
        send(broker)
    send(broker)
    assert rule.affected_count == 1


def test_clear_removes_all_rules(broker: EmbeddedBroker) -> None:
    rule = broker.faults.produce_fails("NOT_LEADER_OR_FOLLOWER", times=None)
    broker.faults.clear()
    send(broker)
    assert rule.affected_count == 0


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda faults: faults.produce_fails_once("NOT_LEADER"), "The embedded broker has no error named 'NOT_LEADER'"),
        (
            lambda faults: faults.on(request="produce").slow(1),
            "The embedded broker has no request named 'produce'. Did you mean PRODUCE",
        ),
    ],
)
def test_rejects_unknown_error_and_request_names(broker: EmbeddedBroker, call: object, message: str) -> None:
    faults: Faults = broker.faults
    assert callable(call)
    with pytest.raises(ValueError, match=message):
        call(faults)
