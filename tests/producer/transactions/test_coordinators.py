"""Which brokers coordinate, and when the next of them may be asked."""

from __future__ import annotations

from random import Random

from spark_kafka_sink.client.backoff import ExponentialBackoff
from spark_kafka_sink.client.cluster import Node
from spark_kafka_sink.producer.transactions.coordinators import KNOWN_MAX, Coordinators, KnownCoordinators
from spark_kafka_sink.producer.transactions.requests import FindCoordinator, InitProducerId
from spark_kafka_sink.producer.transactions.transaction_request import TRANSACTION, CoordinatorKey
from spark_kafka_sink.protocol import error_codes as codes

NODE = Node(1, "b1", 9092)
INIT = InitProducerId("x", 60_000)


def coordinators() -> Coordinators:
    return Coordinators(ExponentialBackoff(100, 10_000, Random(1)))


def pause_ms(asked: Coordinators, now: float = 0.0) -> float:
    return asked.pause_left_ms(now)


def test_the_last_ones_are_known_and_the_oldest_are_forgotten() -> None:
    known = KnownCoordinators()
    keys = [CoordinatorKey(TRANSACTION, str(number)) for number in range(KNOWN_MAX + 5)]
    for key in keys:
        known[key] = NODE
    known[keys[-1]] = NODE
    assert list(known) == keys[5:]


def test_pauses_grow_with_each_failure_and_begin_anew_after_a_success() -> None:
    asked = coordinators()
    asked.pause(0, codes.COORDINATOR_LOAD_IN_PROGRESS)
    first = pause_ms(asked)
    for _ in range(5):
        asked.pause(0, codes.COORDINATOR_LOAD_IN_PROGRESS)
    assert pause_ms(asked) > 4 * first
    asked.succeeded(INIT)
    asked.pause(0, codes.COORDINATOR_LOAD_IN_PROGRESS)
    assert pause_ms(asked) < 2 * first


def test_a_request_that_was_lost_is_followed_by_a_pause_and_its_coordinator_is_looked_up_again() -> None:
    asked = coordinators()
    asked.known[INIT.coordinator] = NODE
    asked.sent(INIT)
    asked.lost(INIT, 0, "the connection was lost")
    assert asked.pauses(0)
    assert (asked.node(INIT), asked.in_flight) == (None, False)


def test_why_the_last_request_failed_is_known_until_one_succeeds_that_is_more_than_a_lookup() -> None:
    asked = coordinators()
    assert asked.trouble == ""
    asked.pause(0, codes.CONCURRENT_TRANSACTIONS)
    asked.succeeded(FindCoordinator(["x"]))
    assert asked.trouble == "CONCURRENT_TRANSACTIONS"
    asked.lost(INIT, 0, "the connection was lost")
    assert asked.trouble == "the connection was lost"
    asked.succeeded(INIT)
    assert asked.trouble == ""
