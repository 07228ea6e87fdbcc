"""Questions to coordinators are asked until there is an answer, whatever becomes of coordinators and connections."""

from __future__ import annotations

import sys
from collections.abc import Callable
from functools import partial
from typing import Any

import pytest

from spark_kafka_sink.broker.context import RequestContext
from spark_kafka_sink.broker.handlers import HANDLERS
from spark_kafka_sink.broker.transactions import ProducerIdentity, Transaction, TransactionCoordinator
from spark_kafka_sink.errors import BrokerError, KafkaSinkError, ProducerFencedError
from spark_kafka_sink.exactly_once.log_writer import Held
from spark_kafka_sink.exactly_once.query_transactions import can_write
from spark_kafka_sink.exactly_once.transactions_client import TransactionsClient
from spark_kafka_sink.producer.config import ProducerConfig
from spark_kafka_sink.producer.producer import KafkaProducer
from spark_kafka_sink.producer.record import ProducerRecord
from spark_kafka_sink.producer.topic_partition import TopicPartition
from spark_kafka_sink.producer.transactions.transaction_description import ONGOING
from spark_kafka_sink.producer.transactions.transaction_identity import TransactionIdentity
from spark_kafka_sink.protocol import error_codes
from spark_kafka_sink.protocol.message import ApiKey
from spark_kafka_sink.protocol.messages.describe_transactions import TopicData
from spark_kafka_sink.testing import EmbeddedBroker
from tests.exactly_once.cases import Query, client_of, known_without_an_epoch, open_ids, rows, seen
from tests.exactly_once.cases import broker as broker
from tests.fake_system import FakeSystem
from tests.simulated_cluster import SimulatedCluster
from tests.waiting import PATIENCE_SECONDS


@pytest.fixture
def written(broker: EmbeddedBroker) -> list[TransactionIdentity]:
    """The open transactions of two tasks."""
    query = Query(broker)
    start = query.begin()
    return query.write_both(start, 0)


def ids(written: list[TransactionIdentity]) -> list[str]:
    return [each.transactional_id for each in written]


@pytest.mark.parametrize("commit", [True, False])
def test_transactions_are_ended_together_and_once_more_is_no_refusal(
    broker: EmbeddedBroker, written: list[TransactionIdentity], commit: bool
) -> None:
    with client_of(broker) as client:
        assert client.end(written, commit=commit) == {}
        assert client.end(written, commit=commit) == {}
    assert seen(broker) == (rows(0) if commit else [])


@pytest.mark.parametrize("applied", [True, False])
def test_an_end_whose_answer_is_lost_is_asked_for_again(
    broker: EmbeddedBroker, written: list[TransactionIdentity], applied: bool
) -> None:
    broker.control.when(api=ApiKey.END_TXN).drop(applied=applied)
    with client_of(broker) as client:
        assert client.end(written, commit=True) == {}
    assert seen(broker) == rows(0)


@pytest.mark.parametrize(
    "code",
    [
        error_codes.CONCURRENT_TRANSACTIONS,
        error_codes.COORDINATOR_LOAD_IN_PROGRESS,
        error_codes.COORDINATOR_NOT_AVAILABLE,
        error_codes.NOT_COORDINATOR,
    ],
)
@pytest.mark.parametrize("api", [ApiKey.END_TXN, ApiKey.DESCRIBE_TRANSACTIONS, ApiKey.INIT_PRODUCER_ID])
def test_a_coordinator_that_is_busy_or_has_moved_is_asked_again(
    broker: EmbeddedBroker, written: list[TransactionIdentity], api: ApiKey, code: int
) -> None:
    broker.control.when(api=api, times=3).fail(code)
    with client_of(broker) as client:
        assert sorted(client.describe(ids(written))) == ids(written)
        assert client.end(written, commit=True) == {}
        assert client.init_producer_id(written[0].transactional_id, 60_000).producer_id == written[0].producer_id
    assert seen(broker) == rows(0)


@pytest.mark.parametrize("code", [error_codes.COORDINATOR_LOAD_IN_PROGRESS, error_codes.COORDINATOR_NOT_AVAILABLE])
def test_open_transactions_are_listed_by_all_brokers_when_each_has_answered(
    broker: EmbeddedBroker, written: list[TransactionIdentity], code: int
) -> None:
    broker.control.when(api=ApiKey.LIST_TRANSACTIONS, times=3).fail(code)
    broker.control.when(api=ApiKey.FIND_COORDINATOR).fail(error_codes.COORDINATOR_NOT_AVAILABLE)
    assert open_ids(broker) == ids(written)


def test_open_transactions_that_move_to_a_broker_that_has_answered_are_listed(
    broker: EmbeddedBroker, written: list[TransactionIdentity], monkeypatch: pytest.MonkeyPatch
) -> None:
    def move(pause_ms: float) -> None:
        for name in ids(written):
            broker.control.move_coordinator(name, 0)
        pause(pause_ms)

    for name in ids(written):
        broker.control.move_coordinator(name, 1)
    broker.control.when(api=ApiKey.LIST_TRANSACTIONS, node=1).fail(error_codes.COORDINATOR_NOT_AVAILABLE)
    with client_of(broker) as client:
        pause = client.blocking.pause
        monkeypatch.setattr(client.blocking, "pause", move)
        assert client.ids(lambda name: name in ids(written), ONGOING) == ids(written)


def test_coordinators_that_move_between_two_questions_are_found_again(
    broker: EmbeddedBroker, written: list[TransactionIdentity]
) -> None:
    with client_of(broker) as client:
        client.describe(ids(written))
        for node in (0, 1):
            for name in ids(written):
                broker.control.move_coordinator(name, node)
            assert sorted(client.describe(ids(written))) == ids(written)
        assert client.end(written, commit=True) == {}
    assert seen(broker) == rows(0)


def test_a_broker_that_goes_away_is_left_for_another(
    broker: EmbeddedBroker, written: list[TransactionIdentity]
) -> None:
    with client_of(broker) as client:
        client.describe(ids(written))
        for name in ids(written):
            broker.control.move_coordinator(name, 1)
        client.describe(ids(written))
        broker.control.stop_node(1)
        assert client.end(written, commit=True) == {}
    assert seen(broker) == rows(0)


def test_what_has_begun_under_a_newer_epoch_is_left_alone(
    broker: EmbeddedBroker, written: list[TransactionIdentity]
) -> None:
    with client_of(broker) as client:
        newer = client.init_producer_id(written[0].transactional_id, 60_000)
        refused = client.end(written[:1], commit=False)
        assert isinstance(refused[written[0].transactional_id], ProducerFencedError)
        assert client.describe(ids(written))[written[0].transactional_id].id_and_epoch == newer
        with pytest.raises(ProducerFencedError):
            client.init_producer_id(written[0].transactional_id, 60_000, written[0].id_and_epoch)


def test_what_a_coordinator_does_not_know_is_missing(broker: EmbeddedBroker) -> None:
    with client_of(broker) as client:
        assert client.describe(["p-1-0-0"]) == {}


def test_an_id_that_may_not_be_described_is_an_error_and_not_an_unknown_one(broker: EmbeddedBroker) -> None:
    """Of a driver's id it would mean that there is no driver."""
    code = error_codes.TRANSACTIONAL_ID_AUTHORIZATION_FAILED
    broker.control.when(api=ApiKey.DESCRIBE_TRANSACTIONS, times=None).fail(code)
    with client_of(broker) as client, pytest.raises(BrokerError, match=r"transactional id p-driver.*Grant"):
        client.describe(["p-driver"])


def test_a_question_without_an_answer_ends_with_what_is_known_of_why(
    broker: EmbeddedBroker, written: list[TransactionIdentity]
) -> None:
    broker.control.when(api=ApiKey.END_TXN, times=None).drop()
    config = ProducerConfig.parse({"bootstrap.servers": broker.bootstrap_servers}).client_config()
    with (
        TransactionsClient(config, timeout_ms=50) as client,
        pytest.raises(KafkaSinkError, match="nothing within 50 ms"),
    ):
        client.end(written, commit=True)


def test_what_is_aborted_cannot_be_written_to_any_more(
    broker: EmbeddedBroker, written: list[TransactionIdentity]
) -> None:
    """A task that lost may be alive still. In version 1 the end of its transaction alone would not stop it."""
    alive = KafkaProducer({"bootstrap.servers": broker.bootstrap_servers, "transactional.id": "alive", "linger.ms": 0})
    alive.init_transactions()
    alive.begin_transaction()
    alive.send(ProducerRecord("t", b"1", partition=0)).result(PATIENCE_SECONDS)
    with client_of(broker) as client:
        client.abort([*client.describe(["alive", *(each.transactional_id for each in written)]).values()])
        with pytest.raises(KafkaSinkError):
            alive.send(ProducerRecord("t", b"2", partition=1)).result(PATIENCE_SECONDS)
        assert [each.is_open for each in client.describe(["alive", *ids(written)]).values()] == [False] * 3
        assert client.end(written, commit=True).keys() == set(ids(written))
    alive.close(timeout=0)
    assert seen(broker) == []


def test_what_is_aborted_is_not_written_to_where_leaders_ask_no_coordinator(
    broker: EmbeddedBroker, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Before Kafka 3.6 a task that still lives wrote on into a partition that it had, and readers waited for ever."""
    monkeypatch.setattr(TransactionCoordinator, "verify", lambda *arguments: error_codes.NONE)
    alive = KafkaProducer({"bootstrap.servers": broker.bootstrap_servers, "transactional.id": "alive", "linger.ms": 0})
    alive.init_transactions()
    alive.begin_transaction()
    alive.send(ProducerRecord("t", b"1", partition=0)).result(PATIENCE_SECONDS)
    with client_of(broker) as client:
        client.abort([*client.describe(["alive"]).values()])
        with pytest.raises(KafkaSinkError):
            alive.send(ProducerRecord("t", b"2", partition=0)).result(PATIENCE_SECONDS)
        assert not client.describe(["alive"])["alive"].is_open
    alive.close(timeout=0)
    with KafkaProducer({"bootstrap.servers": broker.bootstrap_servers}) as other:
        other.send(ProducerRecord("t", b"3", partition=0)).result(PATIENCE_SECONDS)
    assert seen(broker) == ["3"]


@pytest.mark.parametrize("step", ["before the end", "between end and fence"])
def test_a_partition_that_an_attempt_adds_while_it_is_aborted_takes_nothing_of_it_any_more(
    broker: EmbeddedBroker, monkeypatch: pytest.MonkeyPatch, step: str
) -> None:
    """Before Kafka 3.6: what a leader took then was seen with the next transaction of the id."""
    monkeypatch.setattr(TransactionCoordinator, "verify", lambda *arguments: error_codes.NONE)
    alive = KafkaProducer({"bootstrap.servers": broker.bootstrap_servers, "transactional.id": "alive", "linger.ms": 0})

    def send(partition: int) -> None:
        alive.send(ProducerRecord("t", b"late", partition=partition)).result(PATIENCE_SECONDS)

    alive.init_transactions()
    alive.begin_transaction()
    send(0)
    with client_of(broker) as client:
        listed = [*client.describe(["alive"]).values()]
        if step == "before the end":
            send(1)
        looks, describe = iter([False, step == "between end and fence", False]), client.describe

        def look(*arguments: Any, **options: Any) -> Any:
            found = describe(*arguments, **options)
            if next(looks):
                send(1)
            return found

        monkeypatch.setattr(client, "describe", look)
        client.abort(listed)
        with pytest.raises(KafkaSinkError):
            send(1 if step == "before the end" else 0)
    alive.close(timeout=0)
    with KafkaProducer({"bootstrap.servers": broker.bootstrap_servers, "transactional.id": "alive"}) as another:
        another.init_transactions()
        another.begin_transaction()
        for partition in (0, 1):
            another.send(ProducerRecord("t", b"its own", partition=partition))
        another.commit_transaction()
    assert seen(broker) == ["its own"] * 2


def test_an_attempt_that_has_just_begun_is_aborted_though_its_first_request_is_being_written(
    broker: EmbeddedBroker,
) -> None:
    """Brokers answer "concurrent" then as well, and abort nothing."""
    alive = KafkaProducer({"bootstrap.servers": broker.bootstrap_servers, "transactional.id": "alive", "linger.ms": 0})
    alive.init_transactions()
    with client_of(broker) as client:
        listed = [*client.describe(["alive"]).values()]
        for api in (ApiKey.END_TXN, ApiKey.INIT_PRODUCER_ID):
            broker.control.when(api=api).fail(error_codes.CONCURRENT_TRANSACTIONS)
        alive.begin_transaction()
        alive.send(ProducerRecord("t", b"1", partition=0)).result(PATIENCE_SECONDS)
        client.abort(listed)
        assert not client.describe(["alive"])["alive"].is_open
    alive.close(timeout=0)
    assert seen(broker) == []


def test_what_was_aborted_is_fenced_at_the_leaders_that_are_left_though_one_of_its_topics_was_deleted(
    broker: EmbeddedBroker, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Brokers refuse the other partitions with that of a topic which they do not know, however often they are asked."""
    monkeypatch.setattr(TransactionCoordinator, "verify", lambda *arguments: error_codes.NONE)
    broker.control.create_topic("gone", 1)
    alive = KafkaProducer({"bootstrap.servers": broker.bootstrap_servers, "transactional.id": "alive", "linger.ms": 0})
    alive.init_transactions()
    alive.begin_transaction()
    for topic in ("t", "gone"):
        alive.send(ProducerRecord(topic, b"1", partition=0)).result(PATIENCE_SECONDS)
    broker.control.delete_topic("gone")
    with client_of(broker, timeout_ms=5_000) as client:
        client.abort([*client.describe(["alive"]).values()])
        with pytest.raises(KafkaSinkError):
            alive.send(ProducerRecord("t", b"2", partition=0)).result(PATIENCE_SECONDS)
    alive.close(timeout=0)
    assert seen(broker) == []


def test_a_fence_that_brokers_refuse_is_a_warning(
    broker: EmbeddedBroker, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """The transaction has ended by then; what is left is that its attempt may begin another one."""
    monkeypatch.setattr(TransactionsClient, "transaction_version", 1)
    with client_of(broker) as client:
        client.init_producer_id("attempt", 60_000)
        broker.cluster.coordinator.timeout_ms_max = 500
        client.abort([*client.describe(["attempt"]).values()])
    assert "an attempt that may come late could not be fenced" in caplog.text
    assert "INVALID_TRANSACTION_TIMEOUT" in caplog.text


def test_an_abort_that_brokers_refuse_is_a_warning(
    broker: EmbeddedBroker, written: list[TransactionIdentity], caplog: pytest.LogCaptureFixture
) -> None:
    with client_of(broker) as client:
        listed = [*client.describe(ids(written)).values()]
        broker.control.when(api=ApiKey.END_TXN).fail(error_codes.TRANSACTIONAL_ID_AUTHORIZATION_FAILED)
        client.abort(listed)
        again = client.describe(ids(written)).values()
    assert sum(each.is_open for each in again) == 1
    assert "a transaction could not be aborted" in caplog.text
    assert "TRANSACTIONAL_ID_AUTHORIZATION_FAILED" in caplog.text


def test_an_id_whose_first_record_was_never_written_is_fenced(broker: EmbeddedBroker) -> None:
    known_without_an_epoch(broker, "attempt")
    with client_of(broker) as client:
        client.abort([*client.describe(["attempt"]).values()])
        assert client.describe(["attempt"])["attempt"].id_and_epoch.epoch >= 0


def test_an_attempt_that_has_begun_nothing_is_fenced_so_that_it_never_begins(broker: EmbeddedBroker) -> None:
    with client_of(broker) as client:
        attempt = client.init_producer_id("attempt", 60_000)
        client.abort([*client.describe(["attempt"]).values()])
        assert not [each for each in client.describe(["attempt"]).values() if can_write(each)]
        with pytest.raises(ProducerFencedError):
            client.start_write("attempt", Held(attempt), TopicPartition("t", 0), [(b"k", b"late")]).wait()


def test_of_an_id_that_was_listed_when_nothing_had_begun_a_newer_transaction_is_left_alone(
    broker: EmbeddedBroker,
) -> None:
    """Ids are used again. Kafka would abort what is open now for the one who asks under the old epoch for the next."""
    with client_of(broker) as client:
        client.init_producer_id("again", 60_000)
        listed = [*client.describe(["again"]).values()]
        newer = client.init_producer_id("again", 60_000)
        writing = client.start_write("again", Held(newer), TopicPartition("t", 0), [(b"k", b"newer")])
        writing.wait()
        client.abort(listed)
        writing.commit()
    assert seen(broker) == ["newer"]


@pytest.mark.parametrize("version", [1, 2])
def test_what_is_aborted_is_fenced_though_its_markers_are_written_later(version: int) -> None:
    """In version 1 a request for the next epoch is refused until then, and has fenced nothing."""
    system = FakeSystem()
    cluster = SimulatedCluster(system, topics={"t": 1}, transaction_version=version)

    def later(transaction: Transaction) -> bool:
        system.after(50, lambda: cluster.complete(transaction))
        return True

    cluster.core.coordinator.completes_later = later
    config = ProducerConfig.parse({"bootstrap.servers": cluster.bootstrap_servers}).client_config()
    with TransactionsClient(config, system=system) as client:
        client.blocking.topic("t")
        held = client.init_producer_id("x", 60_000)
        coordinator, identity = cluster.core.coordinator, ProducerIdentity(*held)
        assert coordinator.add_partitions("x", identity, [("t", 0)], 0, 0) == 0
        client.abort([*client.describe(["x"]).values()])
        assert coordinator.add_partitions("x", identity, [("t", 0)], 0, 0) == error_codes.PRODUCER_FENCED


def test_a_state_and_topics_that_a_broker_names_are_shown_on_one_line(
    broker: EmbeddedBroker, written: list[TransactionIdentity], monkeypatch: pytest.MonkeyPatch
) -> None:
    handle = HANDLERS[ApiKey.DESCRIBE_TRANSACTIONS]

    def poisoned(context: RequestContext, request: Any) -> Any:
        answer: Any = handle(context, request)
        for row in answer.transaction_states:
            row.transaction_state += "\nforged"
            for topic in row.topics:
                topic.topic += "\x1b[31m"
        return answer

    monkeypatch.setitem(HANDLERS, ApiKey.DESCRIBE_TRANSACTIONS, poisoned)
    with client_of(broker) as client:
        shown = str(client.describe(each.transactional_id for each in written))
    assert "forged" in shown
    assert "\\n" not in shown
    assert "\\x1b" not in shown


def test_what_a_description_costs_grows_with_the_transactions_and_not_with_their_square(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """One answer is about all ids of a coordinator, each with all partitions that its task has written to."""
    partitions = 50
    handle = HANDLERS[ApiKey.DESCRIBE_TRANSACTIONS]

    def of_many_partitions(context: RequestContext, request: Any) -> Any:
        answer: Any = handle(context, request)
        for row in answer.transaction_states:
            row.error_code, row.topics = 0, [TopicData(topic=f"t{number}") for number in range(partitions)]
        return answer

    monkeypatch.setitem(HANDLERS, ApiKey.DESCRIBE_TRANSACTIONS, of_many_partitions)
    system = FakeSystem()
    cluster = SimulatedCluster(system, topics={"t": 1})
    config = ProducerConfig.parse({"bootstrap.servers": cluster.bootstrap_servers}).client_config()
    with TransactionsClient(config, system=system) as client:
        client.blocking.topic("t")
        client.describe(["warm"])
        ids = [f"id-{number}" for number in range(80)]
        calls = [calls_of(partial(client.describe, some)) for some in (ids[:20], ids)]
    assert calls[1] < 5 * calls[0]


def calls_of(work: Callable[[], object]) -> int:
    """How many functions in Python are called."""
    calls = 0

    def count(frame: object, event: str, argument: object) -> None:
        nonlocal calls
        calls += event == "call"

    sys.setprofile(count)
    try:
        work()
    finally:
        sys.setprofile(None)
    return calls
