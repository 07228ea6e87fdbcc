"""Lost records of the decision log: a driver detects them and does not start as if it were the first."""

from __future__ import annotations

from typing import Any
from unittest.mock import patch

import pytest

from spark_kafka_sink.errors import CommitLostError, ExactlyOnceError
from spark_kafka_sink.exactly_once import decision_log
from spark_kafka_sink.exactly_once.decision_log import DecisionLog
from spark_kafka_sink.exactly_once.entries import Entry
from spark_kafka_sink.exactly_once.log_topic import PARTITION_COUNT, partition_for
from spark_kafka_sink.exactly_once.query_transactions import QueryTransactions
from spark_kafka_sink.requests.transaction_admin import init_producer_id
from spark_kafka_sink.testing import EmbeddedBroker
from tests.exactly_once import rules
from tests.exactly_once.embedded_query import (
    LOG,
    PREFIX,
    Query,
    connect_client,
    decide_and_stop_before_commit,
    fence_driver_id,
    open_query_transactions,
    read_values,
    rows,
)
from tests.exactly_once.embedded_query import broker as broker
from tests.exactly_once.embedded_query import transactions as transactions


@pytest.mark.parametrize("runs", [True, False])
def test_running_query_and_restart_detect_deleted_log(broker: EmbeddedBroker, *, runs: bool) -> None:
    query = Query(broker)
    query.run(0)
    broker.control.delete_topic(LOG)
    for _ in range(2):  # A scheduler may restart it repeatedly.
        with pytest.raises(ExactlyOnceError, match="the topic was deleted or emptied"):
            (query if runs else query.with_new_driver()).begin()
    query.with_new_driver(prefix="another").run(1)
    assert read_values(broker) == rows(0, 1)


def test_error_for_deleted_log_of_partial_commit_permits_only_missing_rows(
    broker: EmbeddedBroker,
) -> None:
    """The driver died during the commit. One transaction timed out before the next driver committed the other one."""
    job = Query(broker)
    _, second_id = decide_and_stop_before_commit(job)
    with connect_client(broker) as client:
        init_producer_id(client, second_id, 60_000)
    with pytest.raises(CommitLostError):
        job.with_new_driver().begin()
    broker.control.delete_topic(LOG)
    with pytest.raises(
        ExactlyOnceError,
        match=r"3\. Write only the missing rows of a job\. A query, or a job whose rows are all missing",
    ):
        job.with_new_driver(name="driver-3").begin()
    assert read_values(broker) == ["0/0"]


def test_deleted_log_causes_duplicate_batch_without_the_claim_mark(
    broker: EmbeddedBroker, monkeypatch: pytest.MonkeyPatch
) -> None:
    query = Query(broker)
    query.run(0)
    broker.control.delete_topic(LOG)
    rules.ignore_claimed_mark(monkeypatch)
    query.with_new_driver().run(0)
    assert read_values(broker) == rows(0, 0)


def delete_log_records(broker: EmbeddedBroker) -> None:
    """Delete the records before an offset, as `kafka-delete-records.sh` does."""
    where = partition_for(PREFIX, PARTITION_COUNT)
    broker.control.delete_records(LOG, where, broker.cluster.log(LOG, where).log_end_offset)


@pytest.mark.parametrize("is_cached", [True, False])
def test_reads_log_from_new_beginning_offset(
    broker: EmbeddedBroker, transactions: QueryTransactions, *, is_cached: bool
) -> None:
    """The process has not read the deleted records, or has read nothing at all."""
    state = transactions.write(fence_driver_id(transactions), Entry(PREFIX, generation=1))
    assert transactions.read_entry().generation == 1
    state = transactions.write(state, Entry(PREFIX, generation=2))
    delete_log_records(broker)
    state = transactions.write(state, Entry(PREFIX, generation=3))
    if not is_cached:
        decision_log._partition_cache.clear()
    with open_query_transactions(broker) as next_start:
        next_start.describe_driver_id()
        for _ in range(2):
            assert next_start.read_entry().generation == 3


def test_cached_records_are_dropped_after_later_records_were_deleted(
    broker: EmbeddedBroker, transactions: QueryTransactions
) -> None:
    """A cached record may be a decision whose batch was completed long ago."""
    state = transactions.write(fence_driver_id(transactions), Entry(PREFIX, generation=1))
    assert transactions.read_entry().generation == 1
    state = transactions.write(state, Entry(PREFIX, generation=2))
    delete_log_records(broker)
    with open_query_transactions(broker) as next_start:
        next_start.describe_driver_id()
        assert next_start.read_entry() == Entry(PREFIX)


def test_records_deleted_between_two_reads_of_a_start_are_an_error(
    broker: EmbeddedBroker, transactions: QueryTransactions
) -> None:
    """If the driver combined its first read with the empty log, it would begin like the first driver of the query."""
    state = transactions.write(fence_driver_id(transactions), Entry(PREFIX, generation=1))
    assert transactions.read_entry().generation == 1
    state = transactions.write(state, Entry(PREFIX, generation=2))
    delete_log_records(broker)
    with pytest.raises(ExactlyOnceError, match=r"records in partition \d+ were deleted while a driver.*Start again"):
        transactions.read_entry()


def test_reads_shortened_log_from_its_beginning(broker: EmbeddedBroker, transactions: QueryTransactions) -> None:
    """A replica without all records has become the leader."""
    state = transactions.write(fence_driver_id(transactions), Entry(PREFIX, generation=1))
    state = transactions.write(state, Entry(PREFIX, generation=2))
    assert transactions.read_entry().generation == 2
    truncate_after_first_record(broker)
    assert transactions.read_entry().generation == 1


def truncate_after_first_record(broker: EmbeddedBroker) -> None:
    """Keep only the first record and its marker."""
    log = broker.cluster.log(LOG, partition_for(PREFIX, PARTITION_COUNT))
    log._batches, log._base_offsets, log.log_end_offset = log._batches[:2], log._base_offsets[:2], 2


def test_reads_log_again_after_records_were_deleted_during_the_read(
    broker: EmbeddedBroker, transactions: QueryTransactions, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The records are deleted after the driver has looked up the start and end offset, and before it fetches."""
    state = transactions.write(fence_driver_id(transactions), Entry(PREFIX, generation=1))
    create_state = DecisionLog._create_state

    def create_state_and_delete_records(log: DecisionLog, partition: int) -> Any:
        monkeypatch.setattr(DecisionLog, "_create_state", create_state)
        partition_state = create_state(log, partition)
        delete_log_records(broker)
        transactions.write(state, Entry(PREFIX, generation=2))
        return partition_state

    monkeypatch.setattr(DecisionLog, "_create_state", create_state_and_delete_records)
    with open_query_transactions(broker) as next_start:
        next_start.describe_driver_id()
        assert next_start.read_entry().generation == 2


@pytest.mark.parametrize("runs", [True, False])
def test_deletion_of_all_records_is_an_error_with_remedy(broker: EmbeddedBroker, *, runs: bool) -> None:
    query = Query(broker)
    query.run(0)
    delete_log_records(broker)
    with pytest.raises(ExactlyOnceError, match=r"(?s)the topic was deleted or emptied.*another transactionalIdPrefix"):
        (query if runs else query.with_new_driver()).begin()
    query.with_new_driver(prefix="another").run(1)
    assert read_values(broker) == rows(0, 1)


def test_death_of_first_start_before_its_claim_is_not_a_lost_log(broker: EmbeddedBroker) -> None:
    for attempt in range(5):
        with patch.object(QueryTransactions, "claim", side_effect=KeyboardInterrupt), pytest.raises(KeyboardInterrupt):
            Query(broker, name=f"driver-{attempt}").begin()
    Query(broker).run(0)
    assert read_values(broker) == rows(0)
