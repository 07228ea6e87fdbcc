"""What a person sees of this sink's transactions from outside; and what finish, abort and give up make of them."""

from __future__ import annotations

import pytest

from spark_kafka_sink.errors import CommitLostError, ConfigurationError, ExactlyOnceError
from spark_kafka_sink.exactly_once import operations
from spark_kafka_sink.exactly_once.entries import EntryState
from spark_kafka_sink.testing import EmbeddedBroker
from tests.exactly_once.cases import LOG, PREFIX, Query, client_of, dying, open_ids, rows, seen
from tests.exactly_once.cases import broker as broker


@pytest.fixture
def query(broker: EmbeddedBroker) -> Query:
    return Query(broker)


def options(broker: EmbeddedBroker) -> dict[str, str]:
    return {"bootstrap.servers": broker.bootstrap_servers}


def decided_by_a_driver_that_died(query: Query) -> list[str]:
    start = query.begin()
    written = query.write_both(start, 0)
    with dying("commit"):
        query.commit(start, 0, written)
    return [start.task_id(partition, 0) for partition in range(2)]


def test_a_cluster_without_a_log_has_nothing_to_show(broker: EmbeddedBroker) -> None:
    assert operations.survey(options(broker), LOG) == []
    assert operations.finish(options(broker), PREFIX, LOG) is None
    assert operations.abort(options(broker), PREFIX, LOG) == []


def test_a_survey_shows_what_is_decided_and_what_is_open(query: Query) -> None:
    decided = decided_by_a_driver_that_died(query)
    other = Query(query.broker, prefix="pykafka-job-1", query="query-2", checkpoint="/other")
    other.write(other.begin(), 0, "of a batch that is being written")
    of_other, of_query = sorted(operations.survey(options(query.broker), LOG), key=lambda each: bool(each.decided))
    assert (of_query.prefix, list(of_query.decided), of_query.undecided) == (PREFIX, decided, ())
    assert of_query.entry is not None
    assert str(of_query.entry.batch) == "batch 0 of query query-1"
    assert (of_other.prefix, of_other.decided) == ("pykafka-job-1", ())
    (still_open,) = of_other.undecided
    assert still_open.transactional_id == "pykafka-job-1-1-0-0"
    assert still_open.partitions == (("t", 0),)
    assert still_open.timeout_ms == 900_000
    assert operations.survey(options(query.broker), LOG, PREFIX) == [of_query]


def test_finish_commits_what_is_decided(query: Query) -> None:
    decided = decided_by_a_driver_that_died(query)
    finished = operations.finish(options(query.broker), PREFIX, LOG)
    assert finished is not None
    assert (list(finished.committed), finished.lost) == (decided, {})
    assert seen(query.broker) == rows(0)
    assert operations.finish(options(query.broker), PREFIX, LOG) is None
    assert query.again().begin().is_committed(query.batch(0))


def test_what_is_decided_cannot_be_aborted(query: Query) -> None:
    decided_by_a_driver_that_died(query)
    with pytest.raises(ExactlyOnceError, match=r"batch 0 of query query-1 \(prefix p\) is decided"):
        operations.abort(options(query.broker), PREFIX, LOG)
    query.again().begin()
    assert seen(query.broker) == rows(0)


def test_abort_ends_what_is_not_decided_and_the_batch_cannot_be_committed_any_more(query: Query) -> None:
    start = query.begin()
    written = query.write_both(start, 0)
    aborted = operations.abort(options(query.broker), PREFIX, LOG)
    assert [each.transactional_id for each in aborted] == ["p-1-0-0", "p-1-1-0"]
    assert open_ids(query.broker) == []
    with pytest.raises(ExactlyOnceError, match="or `pykafka transactions` has"):
        query.commit(start, 0, written)
    assert seen(query.broker) == []
    query.run(0)
    assert seen(query.broker) == rows(0)


def test_giving_up_commits_the_rest_and_names_what_is_lost(query: Query) -> None:
    first, second = decided_by_a_driver_that_died(query)
    with client_of(query.broker) as client:
        client.init_producer_id(second, 60_000)
    finished = operations.finish(options(query.broker), PREFIX, LOG)
    assert finished is not None
    assert (finished.committed, list(finished.lost)) == ((first,), [second])
    with pytest.raises(CommitLostError):
        query.again().begin()
    given_up = operations.give_up(options(query.broker), PREFIX, LOG)
    assert given_up is not None
    assert list(given_up.lost) == [second]
    start = query.again().begin()
    assert start.entry.state is EntryState.DONE
    assert start.is_committed(query.batch(0)), "it is not written again by itself"
    query.again().run(1)
    assert seen(query.broker) == ["0/0", *rows(1)]


def test_a_prefix_that_cannot_be_one_is_refused(broker: EmbeddedBroker) -> None:
    with pytest.raises(ConfigurationError, match="is no prefix"):
        operations.finish(options(broker), "a b", LOG)
