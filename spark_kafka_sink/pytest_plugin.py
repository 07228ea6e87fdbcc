"""Pytest fixtures for tests against an embedded broker. pytest loads them wherever this package is installed.

    kafka_broker           a broker for one test
    session_kafka_broker   a broker for the whole session
    kafka_topic            a topic for one test on the session's broker, with three partitions
    new_kafka_topic        a function that creates more such topics: new_kafka_topic(partitions=12)

Each fixture imports the broker only when a test requests the fixture, because pytest loads this module in every project
that uses this environment.
"""

from __future__ import annotations

import contextlib
import itertools
import re
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Protocol

import pytest

if TYPE_CHECKING:
    from spark_kafka_sink.testing import EmbeddedBroker, KafkaTopic

_DEFAULT_PARTITIONS = 3
_MAX_PREFIX_CHARACTERS = 200
"""Maximum length of the test's name within a topic name. The whole topic name may have 249 characters."""


class NewKafkaTopic(Protocol):
    """Signature of the function that `new_kafka_topic` provides."""

    def __call__(
        self, partitions: int = _DEFAULT_PARTITIONS, config: Mapping[str, str] | None = None
    ) -> KafkaTopic: ...


@pytest.fixture
def kafka_broker() -> Iterator[EmbeddedBroker]:
    """An embedded broker for one test. It creates missing topics with one partition when clients request them."""
    from spark_kafka_sink.testing import embedded_broker

    with embedded_broker(auto_create_topics=True) as broker:
        yield broker


@pytest.fixture(scope="session")
def session_kafka_broker() -> Iterator[EmbeddedBroker]:
    """An embedded broker for the whole session. Like `kafka_broker`, it creates missing topics."""
    from spark_kafka_sink.testing import embedded_broker

    with embedded_broker(auto_create_topics=True) as broker:
        yield broker


@pytest.fixture
def new_kafka_topic(session_kafka_broker: EmbeddedBroker, request: pytest.FixtureRequest) -> Iterator[NewKafkaTopic]:
    """A function that creates topics on the session's broker, named after the test. They are deleted after the test."""
    topic_numbers = itertools.count(1)
    prefix = re.sub(r"[^A-Za-z0-9._-]", "_", request.node.name)[:_MAX_PREFIX_CHARACTERS]
    topics: list[KafkaTopic] = []

    def create_topic(partitions: int = _DEFAULT_PARTITIONS, config: Mapping[str, str] | None = None) -> KafkaTopic:
        topics.append(session_kafka_broker.create_topic(f"{prefix}-{next(topic_numbers)}", partitions, config))
        return topics[-1]

    yield create_topic
    for topic in topics:
        with contextlib.suppress(KeyError):  # the test has deleted the topic
            session_kafka_broker.control.delete_topic(topic.name)


@pytest.fixture
def kafka_topic(new_kafka_topic: NewKafkaTopic) -> KafkaTopic:
    """A topic for one test on the session's broker, with three partitions."""
    return new_kafka_topic()
