"""Epochs and claims of drivers that act concurrently."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from spark_kafka_sink.client.producer_ids import ProducerIdAndEpoch
from spark_kafka_sink.errors import BrokerError, ProducerFencedError
from spark_kafka_sink.exactly_once import log_writer, precommit_errors, query_transactions
from spark_kafka_sink.exactly_once.batch_summary import BatchSummary
from spark_kafka_sink.exactly_once.driver_ids import has_claimed
from spark_kafka_sink.exactly_once.entries import Batch, Entry
from spark_kafka_sink.exactly_once.log_writer import WriterState
from spark_kafka_sink.exactly_once.query_transactions import HAND_OVER_EPOCH, MAX_ATTEMPTS, QueryTransactions
from spark_kafka_sink.protocol import error_codes
from spark_kafka_sink.protocol.message import ApiKey
from spark_kafka_sink.requests.transaction_admin import describe_transactions
from spark_kafka_sink.testing import EmbeddedBroker
from tests.exactly_once.embedded_query import (
    LOG,
    PREFIX,
    Query,
    connect_client,
    list_open_ids,
    open_query_transactions,
    use_up_epochs,
)
from tests.exactly_once.embedded_query import broker as broker

GRANTED_MS = 60_000


@pytest.fixture
def two_drivers(broker: EmbeddedBroker) -> Iterator[tuple[QueryTransactions, QueryTransactions]]:
    with open_query_transactions(broker) as one, open_query_transactions(broker) as other:
        one.decision_log.create_if_missing()
        yield one, other


def is_current(query: QueryTransactions, driver: ProducerIdAndEpoch) -> bool:
    known = query.describe_driver_id()
    return known is not None and known.id_and_epoch == driver


def claim_entry(name: str) -> Entry:
    return Entry(PREFIX).with_claim(name, "", GRANTED_MS)


def test_aborting_nothing_sends_no_request(
    two_drivers: tuple[QueryTransactions, QueryTransactions], monkeypatch: pytest.MonkeyPatch
) -> None:
    one, _ = two_drivers
    monkeypatch.setattr(query_transactions, "abort_transactions", lambda *_: pytest.fail("it asks"))
    one.abort_task_transactions([])


def test_missing_permission_is_not_reported_as_rejected_timeout(
    broker: EmbeddedBroker, two_drivers: tuple[QueryTransactions, QueryTransactions]
) -> None:
    broker.control.when(api=ApiKey.INIT_PRODUCER_ID).fail(error_codes.TRANSACTIONAL_ID_AUTHORIZATION_FAILED)
    with pytest.raises(BrokerError, match="TRANSACTIONAL_ID_AUTHORIZATION_FAILED"):
        two_drivers[0].fence(None)


def test_one_of_two_first_drivers_gets_the_id(two_drivers: tuple[QueryTransactions, QueryTransactions]) -> None:
    one, other = two_drivers
    assert one.describe_driver_id() is None
    assert other.describe_driver_id() is None
    one.fence(None)
    with pytest.raises(ProducerFencedError):
        other.fence(None)


def test_rejects_fence_with_stale_description(
    two_drivers: tuple[QueryTransactions, QueryTransactions],
) -> None:
    """A driver that was suspended during its start does not fence a newer driver."""
    one, other = two_drivers
    one.fence(None)
    description = other.describe_driver_id()
    driver = one.claim(one.fence(one.describe_driver_id()), Entry(PREFIX), claim_entry("one"))
    with pytest.raises(ProducerFencedError):
        other.fence(description)
    assert is_current(one, driver)


def test_one_of_two_drivers_with_one_epoch_claims(two_drivers: tuple[QueryTransactions, QueryTransactions]) -> None:
    """Kafka takes the second request for the next epoch for a retry of the first."""
    one, other = two_drivers
    one.fence(None)
    description = one.describe_driver_id()
    first, second = one.fence(description), other.fence(description)
    assert first == second, "both hold it"
    driver = one.claim(first, Entry(PREFIX), claim_entry("one"))
    with pytest.raises(ProducerFencedError):
        other.claim(second, Entry(PREFIX), claim_entry("other"))
    assert one.read_entry() == claim_entry("one")
    assert is_current(one, driver)


def test_driver_is_fenced_if_its_transaction_ends_under_the_same_epoch(
    two_drivers: tuple[QueryTransactions, QueryTransactions], monkeypatch: pytest.MonkeyPatch
) -> None:
    """In version 1 leaders then respond that the transaction is no longer open, instead of a fencing error."""
    one, other = two_drivers
    one.fence(None)
    driver = one.fence(one.describe_driver_id())
    original = log_writer.LogTransaction

    def open_write(*arguments: Any) -> Any:
        monkeypatch.undo()  # The partition of the other driver is added.
        one.write(WriterState(driver), claim_entry("one"))
        return original(*arguments)

    monkeypatch.setattr(log_writer, "LogTransaction", open_write)
    with pytest.raises(ProducerFencedError):
        other.claim(driver, Entry(PREFIX), claim_entry("other"))


@pytest.mark.parametrize("claims_first", [True, False])
def test_rejects_second_of_claim_and_decision_under_one_epoch(
    two_drivers: tuple[QueryTransactions, QueryTransactions], *, claims_first: bool
) -> None:
    one, other = two_drivers
    one.fence(None)
    description = one.describe_driver_id()
    first, second = one.fence(description), other.fence(description)
    decision = claim_entry("before").with_decision(Batch("q", 1), BatchSummary.from_row_counts({"t": 1}, 1), ())

    def claim() -> None:
        one.claim(first, Entry(PREFIX), claim_entry("one"))

    def decide() -> None:
        other.write(WriterState(second), decision)

    steps = (claim, decide) if claims_first else (decide, claim)
    steps[0]()
    with pytest.raises(ProducerFencedError):
        steps[1]()
    known = one.describe_driver_id()
    assert known is not None
    assert one.read_entry() == (claim_entry("one") if claims_first else decision)


def test_gives_up_after_max_tries_fenced_writes(
    two_drivers: tuple[QueryTransactions, QueryTransactions],
) -> None:
    one, _ = two_drivers
    driver = one.claim(one.fence(None), Entry(PREFIX), claim_entry("one"))
    before, tried = one.read_entry(), list[WriterState]()

    def reject_write(state: WriterState, entry: Entry) -> WriterState:
        tried.append(state)
        assert len(tried) <= MAX_ATTEMPTS, "it does not give up"
        raise precommit_errors.build_other_driver_error(one.driver_id)

    with pytest.raises(ProducerFencedError):
        one.write_next_entry(
            WriterState(driver),
            before,
            before.with_decision(Batch("q", 0), BatchSummary.from_row_counts({}, 0), ()),
            reject_write,
        )
    assert len(tried) == MAX_ATTEMPTS
    assert len({state.id_and_epoch for state in tried}) == MAX_ATTEMPTS, "each turn has an epoch of its own"


def test_rejects_claim_after_newer_claim(two_drivers: tuple[QueryTransactions, QueryTransactions]) -> None:
    one, other = two_drivers
    driver = one.fence(None)
    newer = other.claim(other.fence(other.describe_driver_id()), Entry(PREFIX), claim_entry("other"))
    with pytest.raises(ProducerFencedError):
        one.claim(driver, Entry(PREFIX), claim_entry("one"))
    with pytest.raises(ProducerFencedError):
        one.bump_epoch(driver, GRANTED_MS)
    assert is_current(other, newer)


def test_longest_timeout_is_found_without_change_of_the_driver_id(
    two_drivers: tuple[QueryTransactions, QueryTransactions],
) -> None:
    one, _ = two_drivers
    one.fence(None)
    description = one.describe_driver_id()
    assert one.find_longest_timeout_ms((10**9, 900_001, 900_000, 5_000)) == 900_000
    assert one.describe_driver_id() == description


def test_requests_no_shorter_timeout_after_another_error(
    two_drivers: tuple[QueryTransactions, QueryTransactions], broker: EmbeddedBroker
) -> None:
    one, _ = two_drivers
    one.fence(None)
    broker.control.when(api=ApiKey.INIT_PRODUCER_ID).fail(error_codes.TRANSACTIONAL_ID_AUTHORIZATION_FAILED)
    with pytest.raises(BrokerError) as raised:
        one.find_longest_timeout_ms((900_000, 5_000))
    assert raised.value.code == error_codes.TRANSACTIONAL_ID_AUTHORIZATION_FAILED


def test_accepts_granted_timeout_below_a_minute(broker: EmbeddedBroker) -> None:
    broker.cluster.coordinator.max_timeout_ms = 12_000
    query = Query(broker)
    assert query.begin().entry.timeout_ms == 10_000
    query.run(0)
    query.with_new_driver().run(1)


def test_fenced_driver_id_is_not_marked_as_claimed(
    two_drivers: tuple[QueryTransactions, QueryTransactions],
) -> None:
    one, _ = two_drivers
    driver = one.fence(None)
    description = one.describe_driver_id()
    assert description is not None
    assert not has_claimed(description)
    one.claim(driver, Entry(PREFIX), Entry(PREFIX).with_claim("one", "", GRANTED_MS))
    description = one.describe_driver_id()
    assert description is not None
    assert has_claimed(description)


def test_aborts_listed_transactions_only_without_newer_driver(broker: EmbeddedBroker) -> None:
    """The driver is suspended between its listing and its claim. Another one takes over, and its tasks write."""
    newer = Query(broker, name="driver-2")
    with QueryTransactions(newer.client, PREFIX, LOG) as transactions:
        transactions.decision_log.create_if_missing()
        driver = transactions.fence(None)
        newer_start = newer.begin()
        prepared = newer.write_tasks(newer_start, 0)
        with pytest.raises(ProducerFencedError):
            transactions.take_over(driver, Entry(PREFIX), claim_entry("one"))
    assert len(list_open_ids(broker)) == 2
    newer.commit(newer_start, 0, prepared)


def test_abort_keeps_transactions_begun_after_the_list(broker: EmbeddedBroker) -> None:
    """The driver is suspended between the description and EndTxn. Meanwhile another task gets the id."""
    query = Query(broker)
    start = query.begin()
    query.write_tasks(start, 0)
    with QueryTransactions(query.client, PREFIX, LOG) as transactions:
        descriptions = transactions.list_task_transactions()
        for partition in range(2):
            query.write(start, partition, "of another")
        before = list_open_ids(broker)
        transactions.abort_task_transactions(descriptions)
    assert list_open_ids(broker) == before


def test_fences_id_without_transaction_only_once(broker: EmbeddedBroker) -> None:
    query = Query(broker)
    start = query.begin()
    query.attempt(start, 1, attempt=0).close()
    with QueryTransactions(query.client, PREFIX, LOG) as transactions:
        (found,) = transactions.list_task_transactions()
        transactions.abort_task_transactions([found])
        assert transactions.list_task_transactions() == []
    with connect_client(broker) as client:
        (after,) = describe_transactions(client, [start.build_task_id(1, 0)]).values()
    assert after.id_and_epoch != found.id_and_epoch


# --- limits and checks of single steps


def test_change_of_the_driver_id_since_its_description_is_fencing(
    two_drivers: tuple[QueryTransactions, QueryTransactions],
) -> None:
    one, other = two_drivers
    description = one.describe_driver_id()
    one.check_unchanged(description)
    other.fence(None)
    with pytest.raises(ProducerFencedError):
        one.check_unchanged(description)
    one.check_unchanged(one.describe_driver_id())


def test_gives_up_if_each_entry_names_another_driver_id(
    two_drivers: tuple[QueryTransactions, QueryTransactions], monkeypatch: pytest.MonkeyPatch
) -> None:
    one, _ = two_drivers
    numbers = iter(range(2, 1_000))
    monkeypatch.setattr(one, "_read_newest_entry", lambda: Entry(PREFIX, driver_number=next(numbers)))
    with pytest.raises(ProducerFencedError):
        one.read_current_entry(None)
    assert next(numbers) == MAX_ATTEMPTS + 2


def test_gives_up_after_max_tries_of_a_fenced_action(
    two_drivers: tuple[QueryTransactions, QueryTransactions], monkeypatch: pytest.MonkeyPatch
) -> None:
    one, _ = two_drivers
    monkeypatch.setattr(one, "wait_and_describe_driver_id", lambda: None)
    monkeypatch.setattr(one, "read_current_entry", lambda description: (description, Entry(PREFIX)))
    tries: list[int] = []

    def act(description: object, entry: Entry) -> None:
        assert len(tries) < 10 * MAX_ATTEMPTS
        tries.append(1)
        raise precommit_errors.build_other_driver_error("p-driver")

    with pytest.raises(ProducerFencedError):
        one.retry_when_fenced(act, None)
    assert len(tries) == MAX_ATTEMPTS


def test_fencing_restores_the_mark_of_a_claimed_driver_id(
    two_drivers: tuple[QueryTransactions, QueryTransactions],
) -> None:
    one, other = two_drivers
    one.claim(one.fence(one.describe_driver_id()), Entry(PREFIX), claim_entry("one"))
    identity = other.fence(other.describe_driver_id())
    description = other.describe_driver_id()
    assert description is not None
    assert has_claimed(description)
    assert description.id_and_epoch == identity


def test_driver_id_without_epochs_hands_over(
    broker: EmbeddedBroker, two_drivers: tuple[QueryTransactions, QueryTransactions]
) -> None:
    one, other = two_drivers
    one.claim(one.fence(one.describe_driver_id()), Entry(PREFIX), claim_entry("one"))
    use_up_epochs(broker, "p-driver", 32_767 - HAND_OVER_EPOCH)
    description = other.describe_driver_id()
    with pytest.raises(ProducerFencedError, match="p-driver has no epochs left; p-driver-2 is the next one"):
        other.fence(description)
    with pytest.raises(ProducerFencedError, match="p-driver has no epochs left; p-driver-2 is the next one"):
        one.read_entry()
    with open_query_transactions(broker) as later:
        assert later.driver_id == "p-driver-2", "the process remembers the number"


def test_claim_that_has_missed_a_record_is_fenced(two_drivers: tuple[QueryTransactions, QueryTransactions]) -> None:
    one, _ = two_drivers
    state = one.write(WriterState(one.fence(one.describe_driver_id())), Entry(PREFIX, generation=1))
    identity = one.bump_epoch(state.id_and_epoch, GRANTED_MS)
    with pytest.raises(ProducerFencedError):
        one.claim(identity, Entry(PREFIX), claim_entry("one"))
    assert one.read_entry().generation == 1


def test_record_that_the_leader_rejects_is_not_committed(
    broker: EmbeddedBroker, two_drivers: tuple[QueryTransactions, QueryTransactions]
) -> None:
    one, _ = two_drivers
    identity = one.fence(one.describe_driver_id())
    broker.control.when(api=ApiKey.PRODUCE, topic=LOG).fail(error_codes.MESSAGE_TOO_LARGE)
    with pytest.raises(BrokerError, match="MESSAGE_TOO_LARGE"):
        one.write(WriterState(identity), Entry(PREFIX, generation=1))
