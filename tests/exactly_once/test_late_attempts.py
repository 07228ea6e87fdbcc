"""An attempt that has its transactional id when its batch ends opens no transaction any more: nothing would end it."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from spark_kafka_sink.errors import ExactlyOnceError, ProducerFencedError, TransactionAbortableError
from spark_kafka_sink.exactly_once import operations
from spark_kafka_sink.exactly_once.batch_start import BatchStart
from spark_kafka_sink.exactly_once.late_attempts import refused_if_late
from spark_kafka_sink.producer.record import ProducerRecord
from spark_kafka_sink.testing import EmbeddedBroker
from tests.exactly_once.cases import LOG, PREFIX, Query, open_ids, rows, seen
from tests.exactly_once.cases import broker as broker


def commit(query: Query, start: BatchStart) -> None:
    query.commit(start, 0, query.write_both(start, 0))


def abort(query: Query, start: BatchStart) -> None:
    query.abort(start, 0, query.write_both(start, 0))


def stop(query: Query, start: BatchStart) -> None:
    query.write_both(start, 0)
    query.abort_unreported()


def take_over(query: Query, start: BatchStart) -> None:
    query.write_both(start, 0)
    query.again().begin()


def abort_by_hand(query: Query, start: BatchStart) -> None:
    query.write_both(start, 0)
    aborted = operations.abort(query.delivery.options, PREFIX, LOG)
    assert len(aborted) == 2, "an id without a transaction is fenced, but is none that was aborted"


@pytest.mark.parametrize("end", [commit, abort, stop, take_over, abort_by_hand])
def test_an_attempt_that_has_begun_nothing_when_its_batch_ends_cannot_begin(
    broker: EmbeddedBroker, end: Callable[[Query, BatchStart], None]
) -> None:
    query = Query(broker)
    start = query.begin()
    with refused_if_late(start, query.delivery.options):
        late = query.attempt(start, 1, attempt=1)
    end(query, start)
    late.begin_transaction()
    future = late.send(ProducerRecord("t", "late", partition=1))
    with pytest.raises((ProducerFencedError, TransactionAbortableError)):
        late.prepare_transaction()
    assert future.exception() is not None
    assert open_ids(broker) == []
    assert seen(broker) == (rows(0) if end is commit else [])
    late.close(timeout=0)


@pytest.mark.parametrize("end", [commit, abort, take_over, abort_by_hand])
def test_an_attempt_whose_batch_ends_before_it_has_its_id_writes_nothing(
    broker: EmbeddedBroker, end: Callable[[Query, BatchStart], None]
) -> None:
    """The driver has looked for what is left over, and found nothing of this attempt."""
    query = Query(broker)
    start = query.begin()

    def get_the_id_too_late() -> None:
        with refused_if_late(start, query.delivery.options):
            end(query, start)
            query.attempt(start, 1, attempt=1).close()

    with pytest.raises(ExactlyOnceError, match="This attempt came too late"):
        get_the_id_too_late()
    assert open_ids(broker) == []


def test_an_id_under_which_nothing_has_begun_is_not_shown_as_open(broker: EmbeddedBroker) -> None:
    query = Query(broker)
    query.attempt(query.begin(), 1, attempt=1).close()
    (found,) = operations.survey(query.delivery.options, LOG, PREFIX)
    assert found.open == ()
