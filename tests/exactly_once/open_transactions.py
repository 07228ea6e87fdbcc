"""Two open transactions, one of each task of a batch."""

from __future__ import annotations

import pytest

from spark_kafka_sink.requests.transaction_identity import TransactionIdentity
from spark_kafka_sink.testing import EmbeddedBroker
from tests.exactly_once.embedded_query import Query


@pytest.fixture
def prepared(broker: EmbeddedBroker) -> list[TransactionIdentity]:
    """Prepare the transactions of two tasks, which stay open."""
    query = Query(broker)
    start = query.begin()
    return query.write_tasks(start, 0)


def transactional_ids(prepared: list[TransactionIdentity]) -> list[str]:
    return [identity.transactional_id for identity in prepared]
