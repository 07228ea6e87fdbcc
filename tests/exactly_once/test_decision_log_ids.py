"""Trust in log records after brokers have forgotten a transactional id and given it another producer id."""

from __future__ import annotations

import pytest

from spark_kafka_sink.errors import CommitLostError, ExactlyOnceError
from spark_kafka_sink.exactly_once import decision_log, operations
from spark_kafka_sink.exactly_once.entries import Batch, Entry
from spark_kafka_sink.exactly_once.entry_json import encode_entry
from spark_kafka_sink.exactly_once.query_transactions import HAND_OVER_EPOCH
from spark_kafka_sink.requests.transaction_identity import TransactionIdentity
from spark_kafka_sink.testing import EmbeddedBroker
from tests.exactly_once.embedded_query import (
    BOTH_TASKS,
    LOG,
    PREFIX,
    Query,
    client_options,
    open_query_transactions,
    read_values,
    rows,
    use_up_epochs,
    write_entry_as,
)
from tests.exactly_once.embedded_query import broker as broker
from tests.exactly_once.embedded_query import restricted_user as restricted_user
from tests.exactly_once.embedded_query import transactions as transactions


def test_claimed_id_trusts_no_record_of_another_producer_id(broker: EmbeddedBroker, restricted_user: None) -> None:
    query = Query(broker)
    query.run(0)
    query.run(1)
    write_entry_as(broker, "evil", "p", encode_entry(Entry(PREFIX, generation=1)))
    driver = broker.cluster.coordinator.transactions["p-driver"]
    driver.producer_id = broker.cluster.coordinator.allocate_producer_id()  # as if its own records did not exist
    decision_log._partition_cache.clear()
    with pytest.raises(ExactlyOnceError, match="has no entry for the prefix p"):
        query.with_new_driver().begin()


def test_forgotten_driver_continues_from_its_last_entry(
    broker: EmbeddedBroker, caplog: pytest.LogCaptureFixture
) -> None:
    """Brokers forget an id that was not used for a week, and then grant a new producer id."""
    query = Query(broker)
    query.run(0)
    del broker.cluster.coordinator.transactions[f"{PREFIX}-driver"]
    successor = query.with_new_driver()
    assert successor.begin().is_decided(query.batch(0))
    assert "an earlier driver or someone else may have written it" in caplog.text
    successor.run(1)
    assert read_values(broker) == rows(0, 1)
    successor.with_new_driver(name="driver-3").begin().check_skipped_batch(
        query.batch(1), BOTH_TASKS, tolerate_mismatch=False
    )


def test_record_of_forgotten_id_skips_no_batch(broker: EmbeddedBroker, caplog: pytest.LogCaptureFixture) -> None:
    """The record may be of another user, whose ids this user may not describe. A later start does not trust it either,
    although a driver has copied it into its own record.
    """
    query = Query(broker)
    query.run(0)
    del broker.cluster.coordinator.transactions[f"{PREFIX}-driver"]
    for name in ("driver-2", "driver-3"):
        start = query.with_new_driver(name=name).begin()
        with pytest.raises(ExactlyOnceError, match="is not known who wrote this log entry") as error:
            start.check_skipped_batch(query.batch(0), BOTH_TASKS, tolerate_mismatch=False)
        summary = "2 rows with 6 bytes in total (t: 2)"
        assert f"and had {summary}; this run has {summary}." in str(error.value)
    start.check_skipped_batch(query.batch(0), BOTH_TASKS, tolerate_mismatch=True)
    assert "is not known who wrote this log entry" in caplog.text


def test_error_reports_unknown_writer_of_entry(broker: EmbeddedBroker) -> None:
    query = Query(broker)
    query.run(0)
    query.run(1)
    del broker.cluster.coordinator.transactions[f"{PREFIX}-driver"]
    start = query.with_new_driver().begin()
    for batch in (query.batch(0), Batch("another-query", 0)):
        with pytest.raises(ExactlyOnceError, match="is not known who wrote this log entry"):
            start.is_decided(batch)
    with pytest.raises(ExactlyOnceError, match="is not known who wrote this log entry"):
        query.with_new_driver(checkpoint="/elsewhere").begin()


def write_foreign_entry(broker: EmbeddedBroker, entry: Entry) -> Query:
    """Write another user's entry under the prefix of a query that has not begun, and return the query."""
    with open_query_transactions(broker) as transactions:
        transactions.decision_log.create_if_missing()
    write_entry_as(broker, "evil", PREFIX, encode_entry(entry))
    return Query(broker)


def test_lost_commit_of_unproven_decision_reports_unknown_writer(broker: EmbeddedBroker, restricted_user: None) -> None:
    """Giving the batch up would trust the record."""
    nothing = TransactionIdentity(f"{PREFIX}-1-0-0", 4711, 3, 1)
    decision = Entry(PREFIX, generation=1, timeout_ms=60_000).with_decision(Batch("query-1", 0), BOTH_TASKS, (nothing,))
    query = write_foreign_entry(broker, decision)
    with pytest.raises(CommitLostError, match=r"(?s)give-up.*is not known who wrote this log entry"):
        query.begin()
    with pytest.raises(ExactlyOnceError, match="is not known who wrote this log entry"):
        operations.abort(client_options(broker), PREFIX, LOG)


def test_claim_of_unknown_writer_is_not_a_newer_driver(broker: EmbeddedBroker, restricted_user: None) -> None:
    with open_query_transactions(broker) as transactions:
        transactions.decision_log.create_if_missing()
        # The first start died before its claim.
        dead_driver = transactions.fence(transactions.describe_driver_id())
    query = write_foreign_entry(
        broker, Entry(PREFIX, generation=1, driver_names=("x",), claim_identity=dead_driver._replace(epoch=30_000))
    )
    query.run(0)
    assert read_values(broker) == rows(0)


def test_manual_abort_succeeds_with_any_timeout_of_unknown_writer(
    broker: EmbeddedBroker, restricted_user: None
) -> None:
    for timeout_ms in (0, 2**31 - 1):
        write_foreign_entry(broker, Entry(PREFIX, generation=1, driver_names=("x",), timeout_ms=timeout_ms))
        assert operations.abort(client_options(broker), PREFIX, LOG) == operations.AbortResult()


def test_abort_does_not_call_batch_of_unknown_writer_committed(broker: EmbeddedBroker, restricted_user: None) -> None:
    decision = Entry(PREFIX, generation=1, driver_names=("x",)).with_decision(Batch("query-1", 0), BOTH_TASKS, ())
    write_foreign_entry(broker, decision.as_done())
    assert operations.abort(client_options(broker), PREFIX, LOG).done_batch is None


def test_listing_omits_invalid_records(broker: EmbeddedBroker) -> None:
    Query(broker).run(0)
    write_entry_as(broker, "evil", "q", encode_entry(Entry("q", generation=1, driver_names=("x",))))
    assert [status.prefix for status in operations.list_prefixes(client_options(broker), LOG)] == [PREFIX]
    driver = broker.cluster.coordinator.transactions["p-driver"]
    driver.producer_id = broker.cluster.coordinator.allocate_producer_id()  # with a claim
    for prefix in (None, PREFIX):
        assert [
            status.entry
            for status in operations.list_prefixes(client_options(broker), LOG, prefix)
            if status.entry is not None
        ] == []


def test_listing_shows_the_newest_entry_after_a_hand_over(broker: EmbeddedBroker) -> None:
    query = Query(broker)
    query.run(0)
    use_up_epochs(broker, "p-driver", 32_767 - HAND_OVER_EPOCH)
    query.with_new_driver().run(1)
    for prefix in (None, PREFIX):
        (status,) = operations.list_prefixes(client_options(broker), LOG, prefix)
        assert status.entry is not None
        assert (status.entry.driver_number, status.entry.batch) == (2, query.batch(1))
