"""Whose word the log believes where ids change: epochs are used up, brokers forget an id and give another one."""

from __future__ import annotations

import pytest

from spark_kafka_sink.errors import ExactlyOnceError
from spark_kafka_sink.exactly_once import decision_log
from spark_kafka_sink.exactly_once.entries import Batch, Entry, encoded
from spark_kafka_sink.exactly_once.transactions_client import TransactionsClient
from spark_kafka_sink.testing import EmbeddedBroker
from tests.exactly_once.cases import BOTH_TASKS, PREFIX, Query, client_of, open_ids, rows, seen, transactions, write_as
from tests.exactly_once.cases import broker as broker

EPOCHS_OF_A_BATCH_MAX = 8


@pytest.fixture
def its_own_ids_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    """What `owners` shows with the rights of docs/security.md."""
    owners = TransactionsClient.owners
    monkeypatch.setattr(
        TransactionsClient, "owners", lambda client: {key: name for key, name in owners(client).items() if "p-" in name}
    )


def use_up_epochs(broker: EmbeddedBroker, name: str, left: int = 3) -> None:
    transaction = broker.cluster.coordinator.transactions[name]
    transaction.epoch, transaction.last_epoch = 32_767 - left, 32_766 - left


@pytest.fixture(params=range(1, EPOCHS_OF_A_BATCH_MAX + 1))
def query(broker: EmbeddedBroker, its_own_ids_alone: None, request: pytest.FixtureRequest) -> Query:
    """Its driver has written batch 0, and has few epochs left: they are used up at each step of a batch."""
    query = Query(broker)
    query.run(0)
    use_up_epochs(broker, "p-driver", request.param)
    return query


@pytest.mark.parametrize("left", range(1, EPOCHS_OF_A_BATCH_MAX + 1))
def test_when_its_epochs_are_used_up_a_stranger_whose_are_so_too_is_not_taken_for_the_driver(
    broker: EmbeddedBroker, its_own_ids_alone: None, left: int
) -> None:
    """At each step of a batch. In version 2 the end of the record that says "done" may bring another producer id: the
    record is written again under that."""
    query = Query(broker)
    query.run(0)
    with transactions(broker) as held:
        look = held.look()
        assert look is not None
        old = held.entry(look.id_and_epoch.producer_id)
    driver = broker.cluster.coordinator.transactions["p-driver"]
    producer_id = driver.producer_id
    use_up_epochs(broker, "p-driver", left)
    query.run(1)
    assert (driver.producer_id != producer_id) or left > 1
    assert (driver.producer_id == producer_id) or left < EPOCHS_OF_A_BATCH_MAX, "not each step of a batch is tried"
    write_as(broker, "evil", "p", None)
    use_up_epochs(broker, "evil")
    write_as(broker, "evil", "p", encoded(old))
    decision_log._progress.clear()
    start = query.begin()
    assert start.is_committed(query.batch(1))
    query.run(2)
    query.run(3)
    assert seen(broker) == rows(0, 1, 2, 3)


def test_of_an_id_with_a_claim_only_a_record_by_an_id_that_is_used_up_is_believed_beside_its_own(
    broker: EmbeddedBroker, its_own_ids_alone: None
) -> None:
    query = Query(broker)
    query.run(0)
    query.run(1)
    write_as(broker, "evil", "p", encoded(Entry(PREFIX, generation=1)))
    driver = broker.cluster.coordinator.transactions["p-driver"]
    driver.producer_id = broker.cluster.coordinator.new_producer_id()  # as if its own records were not there
    decision_log._progress.clear()
    with pytest.raises(ExactlyOnceError, match="has nothing of the prefix p"):
        query.again().begin()


def test_a_driver_that_brokers_have_forgotten_goes_on_from_what_it_wrote(
    broker: EmbeddedBroker, caplog: pytest.LogCaptureFixture
) -> None:
    """They forget an id that was not used for a week, and give a new producer id then."""
    query = Query(broker)
    query.run(0)
    del broker.cluster.coordinator.transactions[f"{PREFIX}-driver"]
    again = query.again()
    assert again.begin().is_committed(query.batch(0))
    assert "an earlier producer id of its driver" in caplog.text
    again.run(1)
    assert seen(broker) == rows(0, 1)
    again.again(name="driver-3").begin().check_passed_over(query.batch(1), BOTH_TASKS, tolerant=False)


def test_nothing_is_passed_over_because_of_what_a_forgotten_id_has_written(
    broker: EmbeddedBroker, caplog: pytest.LogCaptureFixture
) -> None:
    """It may as well be a stranger's, whose ids this user may not see. A later start does not believe it either, though
    a driver has written it again in its own name."""
    query = Query(broker)
    query.run(0)
    del broker.cluster.coordinator.transactions[f"{PREFIX}-driver"]
    for name in ("driver-2", "driver-3"):
        start = query.again(name=name).begin()
        with pytest.raises(ExactlyOnceError, match="it cannot be seen who has written that") as error:
            start.check_passed_over(query.batch(0), BOTH_TASKS, tolerant=False)
        assert "with 2 rows of 6 bytes (t: 2); this time there are 2 rows of 6 bytes (t: 2)." in str(error.value)
    start.check_passed_over(query.batch(0), BOTH_TASKS, tolerant=True)
    assert "it cannot be seen who has written that" in caplog.text


def test_what_a_forgotten_id_has_decided_is_said_to_be_so_where_it_stops_a_batch(broker: EmbeddedBroker) -> None:
    query = Query(broker)
    query.run(0)
    query.run(1)
    del broker.cluster.coordinator.transactions[f"{PREFIX}-driver"]
    start = query.again().begin()
    for batch in (query.batch(0), Batch("another-query", 0)):
        with pytest.raises(ExactlyOnceError, match="cannot be seen who has written that"):
            start.is_committed(batch)
    with pytest.raises(ExactlyOnceError, match="cannot be seen who has written that"):
        query.again(checkpoint="/elsewhere").begin()


def test_wherever_its_epochs_are_used_up_a_driver_is_known_as_who_has_decided(
    broker: EmbeddedBroker, query: Query
) -> None:
    query.run(1)
    for name in ("driver-1", "driver-1", "driver-2"):  # starts that decide nothing, as of empty batches
        decision_log._progress.clear()
        query.again(name=name).begin().check_passed_over(query.batch(1), BOTH_TASKS, tolerant=False)


def test_wherever_its_epochs_are_used_up_a_driver_holds_the_newest_one_when_it_has_begun(
    broker: EmbeddedBroker, query: Query
) -> None:
    """Else its tasks would take themselves for late ones."""
    for name in ("driver-1", "driver-2", "driver-3"):
        start = query.again(name=name).begin()
        with client_of(broker) as client:
            assert start.awaits_tasks(client.describe(["p-driver"])["p-driver"])


def test_wherever_its_epochs_are_used_up_a_driver_can_abort(broker: EmbeddedBroker, query: Query) -> None:
    for name in ("driver-2", "driver-3"):
        newer = query.again(name=name)
        start = newer.begin()
        newer.write_both(start, 1)
        decision_log._progress.clear()
        assert newer.abort(start, 1)
        assert not open_ids(broker)
    query.again(name="driver-4").run(1)
    assert seen(broker) == rows(0, 1)


def test_wherever_its_epochs_are_used_up_a_stranger_whose_are_so_too_decides_nothing(
    broker: EmbeddedBroker, query: Query
) -> None:
    """What tasks of a driver that died have open would be committed, and the batch written again."""
    query.run(1)
    written = query.write_both(query.begin(), 2)  # dies here
    write_as(broker, "evil", "p", None)
    use_up_epochs(broker, "evil")
    forged = Entry(PREFIX, generation=9).decided(Batch(query.query, 0), BOTH_TASKS, tuple(written))
    write_as(broker, "evil", "p", encoded(forged))
    decision_log._progress.clear()
    query.again().run(2)
    assert seen(broker) == rows(0, 1, 2)


def test_a_record_of_a_producer_id_that_is_used_up_too_is_unproven(
    broker: EmbeddedBroker, its_own_ids_alone: None
) -> None:
    query = Query(broker)
    query.run(0)
    use_up_epochs(broker, "p-driver")
    write_as(broker, "evil", "p", None)
    use_up_epochs(broker, "evil")
    write_as(broker, "evil", "p", encoded(Entry(PREFIX, generation=9).decided(query.batch(1), BOTH_TASKS, ()).done()))
    driver = broker.cluster.coordinator.transactions["p-driver"]
    driver.producer_id = (
        broker.cluster.coordinator.new_producer_id()
    )  # as if it had died before it wrote under this one
    decision_log._progress.clear()
    start = query.again().begin()
    with pytest.raises(ExactlyOnceError, match="cannot be seen who has written that"):
        start.check_passed_over(query.batch(1), BOTH_TASKS, tolerant=False)


def test_a_driver_whose_epochs_are_used_up_goes_on_under_its_next_producer_id(broker: EmbeddedBroker) -> None:
    query = Query(broker)
    query.run(0)
    broker.cluster.coordinator.transactions[f"{PREFIX}-driver"].epoch = 32_760
    for number in range(1, 9):
        query.run(number)
    assert seen(broker) == rows(*range(9))
    assert query.again().begin().is_committed(query.batch(8))
