"""The timeout of an id says that its driver has claimed, or that a driver has fenced it; and brokers can use it."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from spark_kafka_sink.exactly_once.timeout_marks import (
    claimed_timeout_ms,
    fenced_timeout_ms,
    is_marked_claimed,
    is_marked_fenced,
    unmarked_timeout_ms,
)
from spark_kafka_sink.exactly_once.transaction_aborts import abort_transactions, can_write
from spark_kafka_sink.exactly_once.transaction_names import TaskAttempt, task_id
from spark_kafka_sink.requests.blocking import BlockingClient
from spark_kafka_sink.requests.transaction_admin import describe_transactions, init_producer_id
from spark_kafka_sink.testing import EmbeddedBroker
from tests.exactly_once import rules
from tests.exactly_once.cases import PREFIX, Query, client_of, transactions
from tests.exactly_once.cases import broker as broker

GRANTED_MS = [1_000, 1_997, 5_000, 10_500, 60_000, 900_000, 86_400_000]


@pytest.mark.parametrize("granted_ms", GRANTED_MS)
def test_a_mark_is_read_as_what_it_says_and_nothing_else(granted_ms: int) -> None:
    assert is_marked_claimed(claimed_timeout_ms(granted_ms))
    assert not is_marked_fenced(claimed_timeout_ms(granted_ms))
    assert is_marked_fenced(fenced_timeout_ms(granted_ms))
    assert not is_marked_claimed(fenced_timeout_ms(granted_ms))


@pytest.mark.parametrize("mark", [claimed_timeout_ms, fenced_timeout_ms])
@pytest.mark.parametrize("granted_ms", GRANTED_MS)
def test_a_marked_timeout_is_granted_and_lasts_as_long_as_brokers_need_to_write_their_log(
    mark: Callable[[int], int], granted_ms: int
) -> None:
    """A coordinator waits for its replicas as long as the id's timeout: with 1 ms an id was blocked for minutes."""
    assert 998 <= mark(granted_ms) <= granted_ms


@pytest.mark.parametrize("granted_ms", [1, 500])
def test_an_id_with_less_than_a_second_is_marked_as_fenced_too(granted_ms: int) -> None:
    """Else it would be fenced with each batch, and blocked each time."""
    assert fenced_timeout_ms(granted_ms) == 998
    assert claimed_timeout_ms(granted_ms) == granted_ms


@pytest.mark.parametrize("timeout_ms", [1, 500, 998, 999, 59_998, 59_999, 60_000])
def test_a_timeout_that_a_user_has_chosen_says_nothing(timeout_ms: int) -> None:
    unmarked = unmarked_timeout_ms(timeout_ms)
    assert timeout_ms - 2 <= unmarked <= timeout_ms
    assert not is_marked_claimed(unmarked)
    assert not is_marked_fenced(unmarked)


def test_ids_of_a_user_who_has_chosen_a_timeout_that_would_say_something_say_nothing(broker: EmbeddedBroker) -> None:
    """Else its attempts would count as fenced, and a driver that dies in its start as one whose log is lost."""
    query = Query(broker)
    query.timeout_ms = 59_998
    start = query.begin()
    attempt = query.attempt(start, 0, 0)
    with client_of(broker) as client:
        (described,) = describe_transactions(client, [start.task_id(0, 0)]).values()
    assert can_write(described)
    attempt.close(timeout=0)


def test_an_id_that_was_fenced_in_version_1_has_time_for_what_brokers_write_of_it(
    broker: EmbeddedBroker, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(BlockingClient, "transaction_version", 1)
    with client_of(broker) as client:
        init_producer_id(client, "attempt", 60_000)
        abort_transactions(client, [*describe_transactions(client, ["attempt"]).values()])
        (described,) = describe_transactions(client, ["attempt"]).values()
    assert not can_write(described)
    assert described.timeout_ms == fenced_timeout_ms(60_000)


def test_without_the_mark_each_batch_fences_the_ids_of_version_1_again(
    broker: EmbeddedBroker, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of a job of 300 tasks each micro-batch would begin with 300 requests."""
    monkeypatch.setattr(BlockingClient, "transaction_version", 1)
    with client_of(broker) as client, transactions(broker) as next_start:
        for partition in range(3):
            init_producer_id(client, task_id(PREFIX, TaskAttempt(1, partition, 0)), 60_000)
        abort_transactions(client, next_start.list_task_transactions())
        assert next_start.list_task_transactions() == []
        rules.an_id_shows_that_it_was_fenced(monkeypatch)
        assert len(next_start.list_task_transactions()) == 3
