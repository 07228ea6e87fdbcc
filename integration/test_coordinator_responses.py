"""The embedded broker's transaction coordinator: it gives the same responses as Kafka's to the same requests."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager

import pytest

from integration.support.coordinator_responses import UNUSED_IDENTITY, CoordinatorTranscript
from integration.support.kafka_cluster import KafkaCluster
from integration.support.librdkafka import create_topic
from spark_kafka_sink.client.producer_ids import ProducerIdAndEpoch
from spark_kafka_sink.testing import embedded_broker

pytestmark = pytest.mark.needs("kafka")

Scenario = Callable[[CoordinatorTranscript], None]
"""Sends a sequence of requests to a coordinator."""


def request_unknown_id(coordinator: CoordinatorTranscript) -> None:
    first = coordinator.init(UNUSED_IDENTITY)
    coordinator.init(UNUSED_IDENTITY)
    coordinator.init(first)
    coordinator.init(UNUSED_IDENTITY)
    coordinator.init()
    coordinator.init(UNUSED_IDENTITY)


def end_unknown_transaction(coordinator: CoordinatorTranscript) -> None:
    coordinator.end(UNUSED_IDENTITY)
    coordinator.end(UNUSED_IDENTITY, commit=False)
    coordinator.write(UNUSED_IDENTITY)


def init_expecting_current_previous_or_older_epoch(coordinator: CoordinatorTranscript) -> None:
    first = coordinator.init()
    second = coordinator.init(first)
    coordinator.init(first)
    third = coordinator.init(second)
    coordinator.init(first)
    coordinator.init(second)
    coordinator.init(third)
    coordinator.init(ProducerIdAndEpoch(first.producer_id, 77))


def init_without_expectation_ends_retries(coordinator: CoordinatorTranscript) -> None:
    first = coordinator.init()
    second = coordinator.init(first)
    coordinator.init()
    coordinator.init(first)
    coordinator.init(second)


def send_as_another_producer(coordinator: CoordinatorTranscript) -> None:
    first = coordinator.init()
    coordinator.init(UNUSED_IDENTITY)
    coordinator.write(first)
    coordinator.init(UNUSED_IDENTITY)
    coordinator.end(first)
    coordinator.init(UNUSED_IDENTITY)
    coordinator.end(UNUSED_IDENTITY)


def init_expecting_current_epoch_in_open_transaction(coordinator: CoordinatorTranscript) -> None:
    first = coordinator.init()
    coordinator.write(first)
    coordinator.init(first)
    coordinator.init(first)
    coordinator.init(first)


def init_expecting_older_epoch_in_open_transaction(coordinator: CoordinatorTranscript) -> None:
    first = coordinator.init()
    second = coordinator.init(first)
    third = coordinator.init(second)
    coordinator.write(third)
    coordinator.init(first)
    coordinator.init(first)
    coordinator.init(second)
    coordinator.init(third)
    coordinator.end(third)


def init_expecting_future_epoch_in_open_transaction(coordinator: CoordinatorTranscript) -> None:
    first = coordinator.init()
    coordinator.write(first)
    coordinator.init(ProducerIdAndEpoch(first.producer_id, 77))
    coordinator.init(ProducerIdAndEpoch(first.producer_id, 77))
    coordinator.init(first)


def init_without_expectation_in_open_transaction(coordinator: CoordinatorTranscript) -> None:
    first = coordinator.init()
    coordinator.write(first)
    coordinator.init()
    coordinator.init(first)
    coordinator.end(first)
    coordinator.end(first, commit=False)
    coordinator.init()
    coordinator.init(first)


def requests_after_commit(coordinator: CoordinatorTranscript) -> None:
    first = coordinator.init()
    coordinator.write(first)
    coordinator.end(first)
    coordinator.end(first)
    coordinator.end(first, commit=False)
    coordinator.init(first)
    coordinator.end(first)


def requests_with_new_identity_after_commit(coordinator: CoordinatorTranscript) -> None:
    first = coordinator.init()
    coordinator.write(first)
    second = coordinator.end(first)
    coordinator.init(second)
    coordinator.init(second)
    coordinator.init(first)
    coordinator.end(first)
    coordinator.end(second)


def requests_after_abort(coordinator: CoordinatorTranscript) -> None:
    first = coordinator.init()
    coordinator.write(first)
    second = coordinator.end(first, commit=False)
    coordinator.end(first, commit=False)
    coordinator.end(first)
    coordinator.init(first)
    coordinator.init(second)
    coordinator.end(second, commit=False)


def two_consecutive_transactions(coordinator: CoordinatorTranscript) -> None:
    first = coordinator.init()
    coordinator.write(first)
    second = coordinator.end(first)
    coordinator.write(second, sequence=0 if second != first else 1)
    coordinator.end(first)
    coordinator.end(second)
    coordinator.init(first)
    coordinator.init(second)


def end_empty_transaction(coordinator: CoordinatorTranscript) -> None:
    first = coordinator.init()
    coordinator.end(first)
    second = coordinator.end(first, commit=False)
    coordinator.end(first, commit=False)
    coordinator.init(second)
    coordinator.end(second, commit=False)


def requests_after_transaction_timeout(coordinator: CoordinatorTranscript) -> None:
    first = coordinator.init(timeout_ms=1_000)
    coordinator.write(first)
    coordinator.await_state("CompleteAbort")
    coordinator.end(first)
    coordinator.end(first, commit=False)
    coordinator.init(first)
    coordinator.init(first)


def init_without_expectation_after_transaction_timeout(coordinator: CoordinatorTranscript) -> None:
    first = coordinator.init(timeout_ms=1_000)
    coordinator.write(first)
    coordinator.await_state("CompleteAbort")
    coordinator.init()
    coordinator.init(first)


def init_with_too_long_timeout(coordinator: CoordinatorTranscript) -> None:
    coordinator.init(UNUSED_IDENTITY, timeout_ms=900_001)
    first = coordinator.init()
    coordinator.write(first)
    coordinator.init(first, timeout_ms=900_001)


SCENARIOS: tuple[Scenario, ...] = (
    request_unknown_id,
    end_unknown_transaction,
    init_expecting_current_previous_or_older_epoch,
    init_without_expectation_ends_retries,
    send_as_another_producer,
    init_expecting_current_epoch_in_open_transaction,
    init_expecting_older_epoch_in_open_transaction,
    init_expecting_future_epoch_in_open_transaction,
    init_without_expectation_in_open_transaction,
    requests_after_commit,
    requests_with_new_identity_after_commit,
    requests_after_abort,
    two_consecutive_transactions,
    end_empty_transaction,
    requests_after_transaction_timeout,
    init_without_expectation_after_transaction_timeout,
    init_with_too_long_timeout,
)


@contextmanager
def embedded_bootstrap(version: int) -> Iterator[str]:
    with embedded_broker(topics={"t": 1}, transaction_version=version) as broker:
        yield broker.bootstrap_servers


@pytest.mark.parametrize("scenario", SCENARIOS, ids=lambda scenario: scenario.__name__)
@pytest.mark.parametrize("version", [1, 2])
def test_embedded_coordinator_responds_like_kafka(
    request: pytest.FixtureRequest, version: int, scenario: Scenario
) -> None:
    cluster: KafkaCluster = request.getfixturevalue("kafka_version_1" if version == 1 else "kafka")
    topic = create_topic(cluster.bootstrap(), partitions=1)
    with CoordinatorTranscript(cluster.bootstrap(), topic, topic, version) as kafka_transcript:
        scenario(kafka_transcript)
    with (
        embedded_bootstrap(version) as bootstrap,
        CoordinatorTranscript(bootstrap, topic, "t", version) as embedded_transcript,
    ):
        scenario(embedded_transcript)
    assert embedded_transcript.lines == kafka_transcript.lines
