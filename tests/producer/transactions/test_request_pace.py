"""When the next request about transactions may be sent, and to which node."""

from __future__ import annotations

from random import Random

from spark_kafka_sink.client.backoff import ExponentialBackoff
from spark_kafka_sink.client.cluster import Node
from spark_kafka_sink.producer.transactions.coordinators import KnownCoordinators
from spark_kafka_sink.producer.transactions.request_pace import RequestPace
from spark_kafka_sink.producer.transactions.requests import FindCoordinator, InitProducerId
from spark_kafka_sink.protocol import error_codes as codes

NODE = Node(1, "b1", 9092)
INIT = InitProducerId("x", 60_000)


def pace_of_requests() -> RequestPace:
    return RequestPace(ExponentialBackoff(100, 10_000, Random(1)), KnownCoordinators())


def pause_ms(pace: RequestPace, now: float = 0.0) -> float:
    return pace.pause_left_ms(now)


def test_pauses_grow_with_each_failure_and_begin_anew_after_a_success() -> None:
    pace = pace_of_requests()
    pace.pause(0, codes.COORDINATOR_LOAD_IN_PROGRESS)
    first = pause_ms(pace)
    for _ in range(5):
        pace.pause(0, codes.COORDINATOR_LOAD_IN_PROGRESS)
    assert pause_ms(pace) > 4 * first
    pace.succeeded(INIT)
    pace.pause(0, codes.COORDINATOR_LOAD_IN_PROGRESS)
    assert pause_ms(pace) < 2 * first


def test_a_request_that_was_lost_is_followed_by_a_pause_and_its_coordinator_is_looked_up_again() -> None:
    pace = pace_of_requests()
    pace.known[INIT.coordinator] = NODE
    pace.sent(INIT)
    pace.lost(INIT, 0, "the connection was lost")
    assert pace.pauses(0)
    assert (pace.node(INIT), pace.in_flight) == (None, False)


def test_why_the_last_request_failed_is_known_until_one_succeeds_that_is_more_than_a_lookup() -> None:
    pace = pace_of_requests()
    assert pace.trouble == ""
    pace.pause(0, codes.CONCURRENT_TRANSACTIONS)
    pace.succeeded(FindCoordinator(["x"]))
    assert pace.trouble == "CONCURRENT_TRANSACTIONS"
    pace.lost(INIT, 0, "the connection was lost")
    assert pace.trouble == "the connection was lost"
    pace.succeeded(INIT)
    assert pace.trouble == ""
