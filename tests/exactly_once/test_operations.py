"""Operations of `pykafka transactions`: list, finish, abort and give up."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Mapping
from typing import Any
from unittest.mock import patch

import pytest

from spark_kafka_sink.client.cluster import Node
from spark_kafka_sink.errors import (
    AuthorizationError,
    CommitLostError,
    ConfigurationError,
    ExactlyOnceError,
    NetworkError,
    ProducerFencedError,
)
from spark_kafka_sink.exactly_once import clients, operations
from spark_kafka_sink.exactly_once.batch_start import BatchStart
from spark_kafka_sink.exactly_once.entries import EntryState, build_batch_driver_name
from spark_kafka_sink.exactly_once.log_writer import LogTransaction
from spark_kafka_sink.exactly_once.query_transactions import QueryTransactions
from spark_kafka_sink.producer.producer import KafkaProducer
from spark_kafka_sink.producer.record import ProducerRecord
from spark_kafka_sink.protocol import error_codes
from spark_kafka_sink.protocol.message import ApiKey
from spark_kafka_sink.protocol.messages.find_coordinator import FindCoordinatorResponse
from spark_kafka_sink.requests import transaction_admin
from spark_kafka_sink.requests.blocking import BlockingClient
from spark_kafka_sink.requests.find_coordinator import FindCoordinator
from spark_kafka_sink.requests.transaction_admin import init_producer_id
from spark_kafka_sink.requests.transaction_description import TransactionDescription
from spark_kafka_sink.testing import EmbeddedBroker
from tests.exactly_once.embedded_query import (
    BOTH_TASKS,
    LOG,
    PREFIX,
    TOPIC,
    Crash,
    Query,
    assert_no_new_epoch,
    client_options,
    connect_client,
    death_before,
    decide_and_stop_before_commit,
    list_open_ids,
    read_values,
    rows,
)
from tests.exactly_once.embedded_query import broker as broker


@pytest.fixture
def query(broker: EmbeddedBroker) -> Query:
    return Query(broker)


def test_lists_nothing_without_a_log(broker: EmbeddedBroker) -> None:
    assert operations.list_prefixes(client_options(broker), LOG) == []


@pytest.mark.parametrize("operate", [operations.finish, operations.abort, operations.give_up])
def test_rejects_log_without_entry_of_the_prefix(query: Query, operate: Callable[..., object]) -> None:
    """In the wrong log a decided batch would look undecided, and would be aborted."""
    decide_and_stop_before_commit(query)
    with pytest.raises(ConfigurationError, match=r"pykafka-decisions does not exist.*Nothing was done"):
        operate(client_options(query.broker), PREFIX)
    Query(query.broker, prefix="another").begin()
    query.broker.control.create_topic("other-log", 1, {"cleanup.policy": "compact"})
    with pytest.raises(ConfigurationError, match=r"other-log has no entry for the prefix p.*Nothing was done"):
        operate(client_options(query.broker), PREFIX, "other-log")
    query.with_new_driver().begin()
    assert read_values(query.broker) == rows(0)


def test_lists_prefixes_with_decided_and_open_transactions(query: Query) -> None:
    decided = decide_and_stop_before_commit(query)
    other = Query(query.broker, prefix="pykafka-job-1", query="query-2", checkpoint="/other")
    other.write(other.begin(), 0, "of a batch that is being written")
    other_status, query_status = sorted(
        operations.list_prefixes(client_options(query.broker), LOG), key=lambda each: bool(each.decided_ids)
    )
    assert (query_status.prefix, list(query_status.decided_ids), query_status.undecided_transactions) == (
        PREFIX,
        decided,
        (),
    )
    assert query_status.entry is not None
    assert str(query_status.entry.batch) == "batch 0 of query query-1"
    assert (other_status.prefix, other_status.decided_ids) == ("pykafka-job-1", ())
    (open_transaction,) = other_status.undecided_transactions
    assert open_transaction.transactional_id == "pykafka-job-1-1-0-0"
    assert open_transaction.partitions == (("t", 0),)
    assert open_transaction.timeout_ms == 900_000
    assert operations.list_prefixes(client_options(query.broker), LOG, PREFIX) == [query_status]


def test_omits_transaction_that_ended_after_it_was_listed(query: Query, monkeypatch: pytest.MonkeyPatch) -> None:
    start = query.begin()
    query.write(start, 0, "row")
    original = transaction_admin.list_transactional_ids

    def list_and_end(client: BlockingClient, *states: str) -> list[str]:
        ids = original(client, *states)
        init_producer_id(client, start.build_task_id(0, 0), 60_000)
        return ids

    monkeypatch.setattr(operations, "list_transactional_ids", list_and_end)
    (status,) = operations.list_prefixes(client_options(query.broker), LOG, PREFIX)
    assert status.open_transactions == ()


def test_lists_only_prefixes_that_this_user_may_describe(
    query: Query, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    query.run(0)
    query.with_new_driver(prefix="of-others").run(1)
    query.with_new_driver(prefix="forgotten").run(2)
    del query.broker.cluster.coordinator.transactions["forgotten-driver"]
    # as brokers respond to a user who has rights on `p` only
    parse_coordinators = FindCoordinator.parse_coordinators
    fetch_ids_by_producer = transaction_admin.fetch_ids_by_producer

    def reject_other_ids(request: FindCoordinator, response: FindCoordinatorResponse) -> dict[str, Node]:
        for row in response.coordinators:
            if row.key.startswith("of-others"):
                row.error_code = error_codes.TRANSACTIONAL_ID_AUTHORIZATION_FAILED
        return parse_coordinators(request, response)

    def hide_other_ids(client: BlockingClient) -> dict[int, str]:
        ids_by_producer = fetch_ids_by_producer(client)
        return {number: name for number, name in ids_by_producer.items() if not name.startswith("of-others")}

    monkeypatch.setattr(FindCoordinator, "parse_coordinators", reject_other_ids)
    monkeypatch.setattr(operations, "fetch_ids_by_producer", hide_other_ids)
    for prefix in (PREFIX, None):
        clients.IDLE_DRIVER_CLIENTS.close()
        (mine,) = operations.list_prefixes(client_options(query.broker), LOG, prefix)
        assert (mine.prefix, mine.entry and mine.entry.batch) == (PREFIX, query.batch(0))
    (warned,) = [record for record in caplog.records if record.levelno >= logging.WARNING]
    assert "or the brokers have forgotten them: " in warned.getMessage()
    assert (
        "Only 1 of 3 prefixes are shown. This user may not describe the driver ids of the others" in warned.getMessage()
    )
    with pytest.raises(AuthorizationError, match="of-others-driver"):
        operations.list_prefixes(client_options(query.broker), LOG, "of-others")


def test_lists_producer_ids_once_for_many_forgotten_prefixes(query: Query, monkeypatch: pytest.MonkeyPatch) -> None:
    original, clients_used = transaction_admin.fetch_ids_by_producer, list[BlockingClient]()

    def count_call(client: BlockingClient) -> dict[int, str]:
        clients_used.append(client)
        return dict(original(client))

    for prefix in ("a", "b", "c"):
        query.with_new_driver(prefix=prefix, name=prefix).run(0)
        del query.broker.cluster.coordinator.transactions[f"{prefix}-driver"]
    monkeypatch.setattr(operations, "fetch_ids_by_producer", count_call)
    found = operations.list_prefixes(client_options(query.broker), LOG)
    assert [status.prefix for status in found] == ["a", "b", "c"]
    assert len(clients_used) == 1


def test_describes_driver_ids_of_all_prefixes_in_one_request(query: Query, monkeypatch: pytest.MonkeyPatch) -> None:
    described: list[list[str]] = []

    def describe(client: BlockingClient, names: Iterable[str]) -> dict[str, TransactionDescription]:
        described.append(list(names))
        return transaction_admin.describe_transactions(client, described[-1])

    for prefix in ("a", "b"):
        query.with_new_driver(prefix=prefix, name=prefix).run(0)
    monkeypatch.setattr(operations, "describe_transactions", describe)
    assert len(operations.list_prefixes(client_options(query.broker), LOG)) == 2
    (names,) = filter(None, described)
    assert sorted(names) == ["a-driver", "b-driver"]


def test_finish_commits_decided_transactions(query: Query) -> None:
    decided = decide_and_stop_before_commit(query)
    finished = operations.finish(client_options(query.broker), PREFIX, LOG)
    assert finished is not None
    assert (list(finished.committed_ids), finished.lost_transaction_errors) == (decided, {})
    assert read_values(query.broker) == rows(0)
    assert operations.finish(client_options(query.broker), PREFIX, LOG) is None
    assert query.with_new_driver().begin().is_decided(query.batch(0))


@pytest.mark.parametrize("operate", [operations.finish, operations.give_up])
def test_finished_batch_leaves_no_transaction_of_superseded_attempt_open(
    query: Query, operate: Callable[..., object]
) -> None:
    """A job with its own prefix may have no later run that would abort it, and read_committed readers wait for it."""
    decide_and_stop_before_commit(query, has_superseded_attempt=True)
    assert operate(client_options(query.broker), PREFIX, LOG) is not None
    assert list_open_ids(query.broker) == []
    assert read_values(query.broker) == rows(0)


@pytest.mark.parametrize("operate", [operations.finish, operations.give_up])
def test_error_after_claim_of_finish_names_abort_command(query: Query, operate: Callable[..., object]) -> None:
    """The batch is recorded as done by then, so that the same action finds nothing to do."""
    decide_and_stop_before_commit(query, has_superseded_attempt=True)
    error = NetworkError("the coordinator did not respond.")
    action = "give-up" if operate is operations.give_up else "finish"
    with (
        patch.object(QueryTransactions, "abort_task_transactions", side_effect=error),
        pytest.raises(
            ExactlyOnceError, match=rf"transactions {action}` again.*, end .* with `pykafka transactions abort`"
        ),
    ):
        operate(client_options(query.broker), PREFIX, LOG)
    assert operate(client_options(query.broker), PREFIX, LOG) is None
    assert len(operations.abort(client_options(query.broker), PREFIX, LOG).aborted_ids) == 1
    assert list_open_ids(query.broker) == []
    assert read_values(query.broker) == rows(0)


def test_finish_without_decision_affects_no_driver(query: Query) -> None:
    start = query.begin()
    prepared = query.write_tasks(start, 0)
    with assert_no_new_epoch(query.broker):
        assert operations.finish(client_options(query.broker), PREFIX, LOG) is None
    query.commit(start, 0, prepared)
    assert read_values(query.broker) == rows(0)


def test_decision_made_while_abort_begins_is_not_aborted(query: Query) -> None:
    """The driver decides and dies between the read of the log and the fence."""
    start = query.begin()
    prepared = query.write_tasks(start, 0)
    original = QueryTransactions.fence

    def fence(transactions: QueryTransactions, *arguments: Any) -> Any:
        with death_before("commit"):
            query.commit(start, 0, prepared)
        return original(transactions, *arguments)

    with patch.object(QueryTransactions, "fence", fence), pytest.raises(ExactlyOnceError, match="is decided"):
        operations.abort(client_options(query.broker), PREFIX, LOG)
    query.with_new_driver().begin()
    assert read_values(query.broker) == rows(0)


def test_commit_during_manual_abort_is_not_reported_as_newer_driver(query: Query) -> None:
    start = query.begin()
    prepared = query.write_tasks(start, 0)
    check_unchanged = QueryTransactions.check_unchanged

    def commit(transactions: QueryTransactions, found: TransactionDescription | None) -> None:
        with patch.object(QueryTransactions, "check_unchanged", check_unchanged):
            if not read_values(query.broker):
                query.commit(start, 0, prepared)
        check_unchanged(transactions, found)

    with patch.object(QueryTransactions, "check_unchanged", commit):
        aborted = operations.abort(client_options(query.broker), PREFIX, LOG)
    assert aborted == operations.AbortResult(done_batch=query.batch(0))
    assert read_values(query.broker) == rows(0)


def test_lists_open_transactions_of_prefix_without_entry(query: Query) -> None:
    query.write_tasks(query.begin(), 0)
    (status,) = operations.list_prefixes(client_options(query.broker), "other-log", PREFIX)
    assert [transaction.transactional_id for transaction in status.open_transactions] == list_open_ids(query.broker)
    assert not status.log_exists


def test_does_not_list_transactions_of_other_programs(query: Query) -> None:
    query.begin()
    with KafkaProducer({**client_options(query.broker), "transactional.id": "of another program"}) as producer:
        producer.init_transactions()
        producer.begin_transaction()
        producer.send(ProducerRecord(TOPIC, "x")).result(10)
        (status,) = operations.list_prefixes(client_options(query.broker), LOG)
        (unknown_status,) = operations.list_prefixes(client_options(query.broker), LOG, "not known")
        producer.abort_transaction()
    assert (status.prefix, status.open_transactions, status.decided_ids) == (PREFIX, (), ())
    assert (unknown_status.entry, unknown_status.open_transactions, unknown_status.decided_ids) == (None, (), ())


def test_rejects_abort_of_decided_batch(query: Query) -> None:
    decide_and_stop_before_commit(query)
    with pytest.raises(ExactlyOnceError, match=r"batch 0 of query query-1 \(prefix p\) is decided"):
        operations.abort(client_options(query.broker), PREFIX, LOG)
    query.with_new_driver().begin()
    assert read_values(query.broker) == rows(0)


def test_abort_ends_undecided_batch_and_prevents_its_commit(query: Query) -> None:
    start = query.begin()
    prepared = query.write_tasks(start, 0)
    aborted = operations.abort(client_options(query.broker), PREFIX, LOG)
    assert aborted == operations.AbortResult(("p-1-0-0", "p-1-1-0"))
    assert list_open_ids(query.broker) == []
    with pytest.raises(ExactlyOnceError, match="or `pykafka transactions` has"):
        query.commit(start, 0, prepared)
    assert read_values(query.broker) == []
    query.with_new_driver().run(0)
    assert read_values(query.broker) == rows(0)


@pytest.mark.parametrize("operation", [operations.abort, operations.finish, operations.give_up])
def test_query_without_register_continues_after_operation(
    query: Query, operation: Callable[[Mapping[str, str], str, str], object]
) -> None:
    """All of its starts in a Spark application have the same start name."""
    first = query.with_new_driver(name=build_batch_driver_name("application", "1"))
    if operation is operations.abort:
        first.write_tasks(first.begin(), 0)
    else:
        decide_and_stop_before_commit(first)
    for _ in range(2):  # the second one finds the name of the first one
        operation(client_options(query.broker), PREFIX, LOG)
        operations.abort(client_options(query.broker), PREFIX, LOG)
    start = query.with_new_driver(name=build_batch_driver_name("application", "2")).begin()
    assert start.is_decided(query.batch(0)) == (operation is not operations.abort)


def test_operation_reports_take_over_by_newer_driver(query: Query) -> None:
    query.begin()
    query.with_new_driver().begin()
    operations.abort(client_options(query.broker), PREFIX, LOG)
    with pytest.raises(ExactlyOnceError, match=r"A newer driver has taken over .*: driver-2\. This driver, driver-1, "):
        query.begin()
    query.with_new_driver().begin()


def test_give_up_commits_the_rest_and_names_lost_transactions(query: Query) -> None:
    first, second = decide_and_stop_before_commit(query)
    with connect_client(query.broker) as client:
        init_producer_id(client, second, 60_000)
    finished = operations.finish(client_options(query.broker), PREFIX, LOG)
    assert finished is not None
    assert (finished.committed_ids, list(finished.lost_transaction_errors)) == ((first,), [second])
    with pytest.raises(CommitLostError):
        query.with_new_driver().begin()
    given_up = operations.give_up(client_options(query.broker), PREFIX, LOG)
    assert given_up is not None
    assert list(given_up.lost_transaction_errors) == [second]
    start = query.with_new_driver().begin()
    assert start.entry.state is EntryState.DONE
    assert start.is_decided(query.batch(0)), "it is not written again by itself"
    query.with_new_driver().run(1)
    assert read_values(query.broker) == ["0/0", *rows(1)]


def test_skips_given_up_batch_of_forgotten_driver(query: Query) -> None:
    decide_and_stop_before_commit(query)
    query.broker.cluster.coordinator.transactions.clear()
    with pytest.raises(ExactlyOnceError, match="give-up"):
        query.with_new_driver().begin()
    assert operations.give_up(client_options(query.broker), PREFIX, LOG) is not None
    start = query.with_new_driver().begin()
    assert start.is_decided(query.batch(0))
    start.check_skipped_batch(query.batch(0), BOTH_TASKS, tolerate_mismatch=False)
    query.with_new_driver().run(1)


def test_rejects_invalid_prefix(broker: EmbeddedBroker) -> None:
    with pytest.raises(ConfigurationError, match="is not a valid prefix"):
        operations.finish(client_options(broker), "a b", LOG)


@pytest.mark.parametrize("code", [error_codes.TRANSACTIONAL_ID_AUTHORIZATION_FAILED, error_codes.POLICY_VIOLATION])
def test_rejects_give_up_while_a_transaction_can_be_committed(query: Query, code: int) -> None:
    """A revoked permission does not mean that the transaction is lost: it is still open."""
    first, second = decide_and_stop_before_commit(query)
    query.broker.control.when(api=ApiKey.END_TXN, times=None).fail(code)
    with pytest.raises(ExactlyOnceError, match=r"(?s)2 of its 2 transactions could not be committed yet.*is lost"):
        operations.give_up(client_options(query.broker), PREFIX, LOG)
    with pytest.raises(ExactlyOnceError, match="could not be committed yet") as error:
        query.with_new_driver().begin()
    assert not isinstance(error.value, CommitLostError)
    query.broker.control.clear()
    given_up = operations.give_up(client_options(query.broker), PREFIX, LOG)
    assert given_up is not None
    assert (list(given_up.committed_ids), given_up.lost_transaction_errors) == ([first, second], {})
    assert read_values(query.broker) == rows(0)


@pytest.mark.parametrize("operation", [operations.abort, operations.finish, operations.give_up])
def test_reports_newer_driver_during_manual_operation(query: Query, operation: Callable[..., object]) -> None:
    if operation is operations.abort:
        query.write_tasks(query.begin(), 0)
    else:
        decide_and_stop_before_commit(query)
    fenced = ProducerFencedError("fenced", code=error_codes.PRODUCER_FENCED, name="PRODUCER_FENCED")
    with (
        patch.object(QueryTransactions, "claim", side_effect=fenced),
        pytest.raises(
            ExactlyOnceError, match=r"newer driver .* in the meantime, .* Nothing that belongs to a newer driver was"
        ),
    ):
        operation(client_options(query.broker), PREFIX, LOG)


def test_manual_abort_ends_open_decision_of_dead_driver(query: Query) -> None:
    """The operator's request for an epoch makes brokers abort the open decision, and is rejected itself."""
    start = query.begin()
    prepared = query.write_tasks(start, 0)
    with patch.object(LogTransaction, "commit", side_effect=Crash), pytest.raises(Crash):
        query.commit(start, 0, prepared)
    aborted = operations.abort(client_options(query.broker), PREFIX, LOG)
    assert aborted == operations.AbortResult(tuple(transaction.transactional_id for transaction in prepared))
    assert list_open_ids(query.broker) == []


def test_operation_retries_first_read_if_driver_id_changes_during_it(query: Query) -> None:
    prepared = query.write_tasks(query.begin(), 0)
    original = QueryTransactions.read_current_entry
    errors = [ProducerFencedError("fenced", code=error_codes.PRODUCER_FENCED, name="PRODUCER_FENCED")]

    def read(transactions: QueryTransactions, description: TransactionDescription | None) -> Any:
        if errors:
            raise errors.pop()
        return original(transactions, description)

    with patch.object(QueryTransactions, "read_current_entry", read):
        aborted = operations.abort(client_options(query.broker), PREFIX, LOG)
    assert aborted == operations.AbortResult(tuple(transaction.transactional_id for transaction in prepared))


def test_operation_does_not_fence_driver_that_claims_concurrently(query: Query) -> None:
    query.write_tasks(query.begin(), 0)
    check_unchanged = QueryTransactions.check_unchanged
    newer = list[BatchStart]()

    def begin(transactions: QueryTransactions, found: TransactionDescription | None) -> None:
        if not newer:
            with patch.object(QueryTransactions, "check_unchanged", check_unchanged):
                newer.append(query.with_new_driver(name="newer").begin())
        check_unchanged(transactions, found)

    with (
        patch.object(QueryTransactions, "check_unchanged", begin),
        pytest.raises(
            ExactlyOnceError, match=r"newer driver .* in the meantime, .* Nothing that belongs to a newer driver was"
        ),
    ):
        operations.abort(client_options(query.broker), PREFIX, LOG)
    successor = query.with_new_driver(name="newer")
    successor.commit(newer[0], 0, successor.write_tasks(newer[0], 0))
    assert read_values(query.broker) == rows(0)
