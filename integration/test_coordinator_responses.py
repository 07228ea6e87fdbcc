"""The embedded broker's coordinator answers as that of a real Kafka does: the same requests, the same answers."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager

import pytest

from integration.support.coordinator_responses import UNUSED, CoordinatorAnswers
from integration.support.kafka_cluster import KafkaCluster
from integration.support.librdkafka import create_topic
from spark_kafka_sink.client.producer_ids import ProducerIdAndEpoch
from spark_kafka_sink.testing import embedded_broker

pytestmark = pytest.mark.needs("kafka")

Asked = Callable[[CoordinatorAnswers], None]


def an_id_that_does_not_exist(ask: CoordinatorAnswers) -> None:
    first = ask.init(UNUSED)
    ask.init(UNUSED)
    ask.init(first)
    ask.init(UNUSED)
    ask.init()
    ask.init(UNUSED)


def an_id_that_does_not_exist_is_ended(ask: CoordinatorAnswers) -> None:
    ask.end(UNUSED)
    ask.end(UNUSED, commit=False)
    ask.write(UNUSED)


def what_is_expected_is_current_last_or_older(ask: CoordinatorAnswers) -> None:
    first = ask.init()
    second = ask.init(first)
    ask.init(first)
    third = ask.init(second)
    ask.init(first)
    ask.init(second)
    ask.init(third)
    ask.init(ProducerIdAndEpoch(first.producer_id, 77))


def one_that_expects_nothing_ends_what_could_be_repeated(ask: CoordinatorAnswers) -> None:
    first = ask.init()
    second = ask.init(first)
    ask.init()
    ask.init(first)
    ask.init(second)


def of_another_producer(ask: CoordinatorAnswers) -> None:
    first = ask.init()
    ask.init(UNUSED)
    ask.write(first)
    ask.init(UNUSED)
    ask.end(first)
    ask.init(UNUSED)
    ask.end(UNUSED)


def the_current_one_while_a_transaction_is_open(ask: CoordinatorAnswers) -> None:
    first = ask.init()
    ask.write(first)
    ask.init(first)
    ask.init(first)
    ask.init(first)


def an_older_one_while_a_transaction_is_open(ask: CoordinatorAnswers) -> None:
    first = ask.init()
    second = ask.init(first)
    third = ask.init(second)
    ask.write(third)
    ask.init(first)
    ask.init(first)
    ask.init(second)
    ask.init(third)
    ask.end(third)


def one_of_the_future_while_a_transaction_is_open(ask: CoordinatorAnswers) -> None:
    first = ask.init()
    ask.write(first)
    ask.init(ProducerIdAndEpoch(first.producer_id, 77))
    ask.init(ProducerIdAndEpoch(first.producer_id, 77))
    ask.init(first)


def nothing_is_expected_while_a_transaction_is_open(ask: CoordinatorAnswers) -> None:
    first = ask.init()
    ask.write(first)
    ask.init()
    ask.init(first)
    ask.end(first)
    ask.end(first, commit=False)
    ask.init()
    ask.init(first)


def a_committed_transaction(ask: CoordinatorAnswers) -> None:
    first = ask.init()
    ask.write(first)
    ask.end(first)
    ask.end(first)
    ask.end(first, commit=False)
    ask.init(first)
    ask.end(first)


def a_committed_transaction_and_the_identity_after_it(ask: CoordinatorAnswers) -> None:
    first = ask.init()
    ask.write(first)
    second = ask.end(first)
    ask.init(second)
    ask.init(second)
    ask.init(first)
    ask.end(first)
    ask.end(second)


def an_aborted_transaction(ask: CoordinatorAnswers) -> None:
    first = ask.init()
    ask.write(first)
    second = ask.end(first, commit=False)
    ask.end(first, commit=False)
    ask.end(first)
    ask.init(first)
    ask.init(second)
    ask.end(second, commit=False)


def two_transactions_one_after_the_other(ask: CoordinatorAnswers) -> None:
    first = ask.init()
    ask.write(first)
    second = ask.end(first)
    ask.write(second, sequence=0 if second != first else 1)
    ask.end(first)
    ask.end(second)
    ask.init(first)
    ask.init(second)


def an_empty_transaction_is_ended(ask: CoordinatorAnswers) -> None:
    first = ask.init()
    ask.end(first)
    second = ask.end(first, commit=False)
    ask.end(first, commit=False)
    ask.init(second)
    ask.end(second, commit=False)


def a_transaction_that_lasted_too_long(ask: CoordinatorAnswers) -> None:
    first = ask.init(timeout_ms=1_000)
    ask.write(first)
    ask.await_state("CompleteAbort")
    ask.end(first)
    ask.end(first, commit=False)
    ask.init(first)
    ask.init(first)


def a_transaction_that_lasted_too_long_and_one_that_expects_nothing(ask: CoordinatorAnswers) -> None:
    first = ask.init(timeout_ms=1_000)
    ask.write(first)
    ask.await_state("CompleteAbort")
    ask.init()
    ask.init(first)


def a_timeout_that_brokers_refuse(ask: CoordinatorAnswers) -> None:
    ask.init(UNUSED, timeout_ms=900_001)
    first = ask.init()
    ask.write(first)
    ask.init(first, timeout_ms=900_001)


ASKED: tuple[Asked, ...] = (
    an_id_that_does_not_exist,
    an_id_that_does_not_exist_is_ended,
    what_is_expected_is_current_last_or_older,
    one_that_expects_nothing_ends_what_could_be_repeated,
    of_another_producer,
    the_current_one_while_a_transaction_is_open,
    an_older_one_while_a_transaction_is_open,
    one_of_the_future_while_a_transaction_is_open,
    nothing_is_expected_while_a_transaction_is_open,
    a_committed_transaction,
    a_committed_transaction_and_the_identity_after_it,
    an_aborted_transaction,
    two_transactions_one_after_the_other,
    an_empty_transaction_is_ended,
    a_transaction_that_lasted_too_long,
    a_transaction_that_lasted_too_long_and_one_that_expects_nothing,
    a_timeout_that_brokers_refuse,
)


@contextmanager
def embedded(version: int) -> Iterator[str]:
    with embedded_broker(topics={"t": 1}, transaction_version=version) as broker:
        yield broker.bootstrap_servers


@pytest.mark.parametrize("asked", ASKED, ids=lambda each: each.__name__)
@pytest.mark.parametrize("version", [1, 2])
def test_embedded_coordinator_responds_like_kafka(request: pytest.FixtureRequest, version: int, asked: Asked) -> None:
    cluster: KafkaCluster = request.getfixturevalue("kafka_of_version_1" if version == 1 else "kafka")
    topic = create_topic(cluster.bootstrap(), partitions=1)
    with CoordinatorAnswers(cluster.bootstrap(), topic, topic, version) as real:
        asked(real)
    with embedded(version) as bootstrap, CoordinatorAnswers(bootstrap, topic, "t", version) as ours:
        asked(ours)
    assert ours.lines == real.lines
