"""Fixtures, known to every pytest that finds this package installed.

    kafka_broker           a broker of the test's own
    session_kafka_broker   one for the whole run
    kafka_topic            a topic of the test's own on that one, with three partitions
    new_kafka_topic        makes more of them: new_kafka_topic(partitions=12)

Nothing is imported until a test asks for it: pytest loads this module in all projects of the environment.
"""

from __future__ import annotations

import itertools
import re
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Protocol

import pytest

if TYPE_CHECKING:
    from spark_kafka_sink.testing import EmbeddedBroker, KafkaTopic

_PARTITIONS = 3
_NAME_CHARACTERS_MAX = 200


class NewKafkaTopic(Protocol):
    def __call__(self, partitions: int = _PARTITIONS, config: Mapping[str, str] | None = None) -> KafkaTopic: ...


@pytest.fixture
def kafka_broker() -> Iterator[EmbeddedBroker]:
    """An embedded broker of this test's own. Topics are created when they are asked for, with one partition."""
    from spark_kafka_sink.testing import embedded_broker

    with embedded_broker(auto_create_topics=True) as broker:
        yield broker


@pytest.fixture(scope="session")
def session_kafka_broker() -> Iterator[EmbeddedBroker]:
    """One embedded broker for the whole run. Topics are created when they are asked for, with one partition."""
    from spark_kafka_sink.testing import embedded_broker

    with embedded_broker(auto_create_topics=True) as broker:
        yield broker


@pytest.fixture
def new_kafka_topic(session_kafka_broker: EmbeddedBroker, request: pytest.FixtureRequest) -> Iterator[NewKafkaTopic]:
    """Makes topics on the broker of the run, named after the test, that are gone when the test ends."""
    numbers = itertools.count(1)
    begin = re.sub(r"[^A-Za-z0-9._-]", "_", request.node.name)[:_NAME_CHARACTERS_MAX]
    made: list[KafkaTopic] = []

    def new(partitions: int = _PARTITIONS, config: Mapping[str, str] | None = None) -> KafkaTopic:
        made.append(session_kafka_broker.create_topic(f"{begin}-{next(numbers)}", partitions, config))
        return made[-1]

    yield new
    for topic in made:
        session_kafka_broker.control.delete_topic(topic.name)


@pytest.fixture
def kafka_topic(new_kafka_topic: NewKafkaTopic) -> KafkaTopic:
    """A topic of this test's own on the broker of the run, with three partitions."""
    return new_kafka_topic()
