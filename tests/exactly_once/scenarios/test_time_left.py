"""A driver decides only with enough of the transactions' timeout left: what it decided later would be lost."""

from __future__ import annotations

import pytest

from spark_kafka_sink.errors import ExactlyOnceError
from spark_kafka_sink.testing import EmbeddedBroker
from tests.exactly_once.cases import Query, open_ids, rows, seen
from tests.exactly_once.cases import broker as broker


@pytest.fixture
def query(broker: EmbeddedBroker) -> Query:
    return Query(broker)


def test_a_batch_is_not_decided_when_too_little_of_its_timeout_is_left(query: Query) -> None:
    """Decided with a tenth of a second left, a part of it would be lost for good."""
    query.timeout_ms = 60_000
    start = query.begin()
    written = query.write_both(start, 0)
    transaction = query.broker.cluster.coordinator.transactions[start.task_id(1, 0)]
    transaction.start_wall_ms -= 51_000
    with pytest.raises(ExactlyOnceError, match=r"of the 60 s .* (8\.\d|9\.0) s were left for p-1-1-0"):
        query.commit(start, 0, written)
    assert query.abort(start, 0)
    assert (seen(query.broker), open_ids(query.broker)) == ([], [])
    start = query.begin()
    written = query.write_both(start, 0)
    query.broker.cluster.coordinator.transactions[start.task_id(1, 0)].start_wall_ms -= 30_000
    query.commit(start, 0, written)
    assert seen(query.broker) == rows(0)


def test_of_a_short_timeout_a_quarter_must_be_left(query: Query) -> None:
    query.timeout_ms = 8_000
    start = query.begin()
    written = query.write_both(start, 0)
    query.broker.cluster.coordinator.transactions[start.task_id(0, 0)].start_wall_ms -= 6_500
    with pytest.raises(ExactlyOnceError, match="Make batches smaller, or let transactions last longer"):
        query.commit(start, 0, written)
