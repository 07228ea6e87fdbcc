"""The fixture `kafka_broker`, known to every pytest that finds this package installed.

Nothing is imported until a test asks for it: pytest loads this module in all projects of the environment.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from spark_kafka_sink.broker.embedded import EmbeddedBroker


@pytest.fixture
def kafka_broker() -> Iterator[EmbeddedBroker]:
    """An embedded broker of this test's own. Topics are created when they are asked for, with one partition."""
    from spark_kafka_sink.testing import embedded_broker

    with embedded_broker(auto_create_topics=True) as broker:
        yield broker
