"""Which broker is asked what any of them can answer: the least loaded one that shows signs of life."""

from __future__ import annotations

import math
from typing import Any

from spark_kafka_sink.client.cluster import Node
from spark_kafka_sink.client.node_choice import UNRESPONSIVE_AFTER_MS
from spark_kafka_sink.protocol.message import ApiKey
from spark_kafka_sink.protocol.messages.init_producer_id import InitProducerIdResponse
from spark_kafka_sink.protocol.messages.produce import ProduceRequest, ProduceResponse
from tests.client.answers import metadata_answer
from tests.client.rig import Rig, ready_rig, rig_with_requests
from tests.client.scripted_broker import Received


def test_least_loaded_node_prefers_ready_and_idle() -> None:
    rig = ready_rig()
    rig.make_ready(1)
    rig.send(0)
    rig.deliver(0)
    assert {rig.client.least_loaded_node(rig.now) for _ in range(20)} == {rig.node(1)}
    for _ in range(2):
        rig.send(1)
        rig.deliver(1)
    assert {rig.client.least_loaded_node(rig.now) for _ in range(20)} == {rig.node(0)}


def test_least_loaded_node_prefers_connecting_to_untried() -> None:
    rig = Rig().bootstrapped()
    rig.client.ready(rig.node(2), rig.now)
    assert {rig.client.least_loaded_node(rig.now) for _ in range(20)} == {rig.node(2)}


def test_least_loaded_node_prefers_longest_untried() -> None:
    rig = Rig().bootstrapped()
    for node_id in (1, 0, 2):
        rig.make_ready(node_id)
        rig.end_connection(node_id)
        rig.system.advance(1_000)
    assert {rig.client.least_loaded_node(rig.now) for _ in range(20)} == {rig.node(1)}


def test_least_loaded_node_is_random_among_equals() -> None:
    rig = Rig().bootstrapped()
    assert {rig.client.least_loaded_node(rig.now) for _ in range(50)} == {rig.node(index) for index in range(3)}


def test_does_not_choose_throttled_node() -> None:
    rig = ready_rig(brokers=1)
    rig.send(message=ProduceRequest(acks=1))
    rig.deliver()
    rig.broker.last(ApiKey.PRODUCE).answer(ProduceResponse(throttle_time_ms=5_000))
    rig.poll_until(lambda: bool(rig.responses))
    assert rig.client.least_loaded_node(rig.now) is None
    rig.system.advance(5_000)
    assert rig.client.least_loaded_node(rig.now) == rig.node(0)


def test_waits_for_connecting_node_before_trying_another() -> None:
    rig = Rig(bootstrap=tuple(Node(-1 - index, f"b{index}", 9092) for index in range(3)))
    for index in range(3):
        rig.system.swallow(f"b{index}", 9092)
    rig.pass_time(UNRESPONSIVE_AFTER_MS - 1)
    assert len(rig.system.connects) == 1
    rig.pass_time(2)
    assert len(rig.system.connects) == 2, "one that says nothing for so long is not waited for"


def test_prefers_responsive_brokers_for_metadata() -> None:
    rig = ready_rig()
    rig.broker.on_request = lambda received: True  # it takes connections and requests, and says nothing
    asked = len(rig.broker.of(ApiKey.METADATA))
    rig.send(message=ProduceRequest(acks=1))
    rig.pass_time(UNRESPONSIVE_AFTER_MS)
    rig.metadata.request_update()
    before = rig.metadata.version
    rig.poll_until(lambda: rig.metadata.version > before, limit_ms=2 * UNRESPONSIVE_AFTER_MS)
    assert len(rig.broker.of(ApiKey.METADATA)) == asked


# --- a broker that stands still when it was asked


def rig_that_asked(*, after_ms: float, **options: Any) -> Rig:
    """Node 0 has been asked for metadata, and answers after that time; the others at once."""
    rig = ready_rig(**options)
    holding(rig, 0, after_ms)
    rig.metadata.request_update()
    rig.poll_until(lambda: asked(rig) == [2, 0, 0], step_ms=1)
    return rig


def holding(rig: Rig, node_id: int, after_ms: float) -> None:
    """From now on the broker answers requests for metadata so late, and all others at once."""

    def hold(received: Received) -> bool:
        if received.api_key is not ApiKey.METADATA:
            return False
        if after_ms < math.inf:
            received.answer(rig.brokers[node_id].metadata, after_ms=after_ms)
        return True

    rig.brokers[node_id].on_request = hold


def asked(rig: Rig) -> list[int]:
    """How often each broker was asked for metadata."""
    return [len(broker.of(ApiKey.METADATA)) for broker in rig.brokers]


def answered_within(rig: Rig, limit_ms: float) -> None:
    before = rig.metadata.version
    rig.poll_until(lambda: rig.metadata.version > before, limit_ms=limit_ms)


def test_asks_another_broker_when_first_does_not_respond() -> None:
    rig = rig_that_asked(after_ms=math.inf)
    assert asked(rig) == [2, 0, 0]
    answered_within(rig, 1.5 * UNRESPONSIVE_AFTER_MS)
    assert sorted(asked(rig)[1:]) == [0, 1]
    assert rig.client.in_flight_request_count(0) == 1, "its answer is owed, until request.timeout.ms is over"


def test_ignores_late_response_of_first_broker() -> None:
    rig = rig_that_asked(after_ms=3 * UNRESPONSIVE_AFTER_MS)
    rig.broker.metadata = metadata_answer(nodes=1)
    answered_within(rig, 1.5 * UNRESPONSIVE_AFTER_MS)
    version = rig.metadata.version
    rig.pass_time(3 * UNRESPONSIVE_AFTER_MS)
    assert rig.client.in_flight_request_count(0) == 0
    assert (rig.metadata.version, len(rig.metadata.snapshot.nodes)) == (version, 3)


def test_accepts_slow_response_of_first_broker() -> None:
    rig = rig_that_asked(after_ms=1.5 * UNRESPONSIVE_AFTER_MS)
    for node_id in (1, 2):
        holding(rig, node_id, math.inf)
    answered_within(rig, 2 * UNRESPONSIVE_AFTER_MS)


def test_waits_for_broker_that_answers_earlier_requests() -> None:
    rig = rig_with_requests(6, max_in_flight_requests_per_connection=10)
    holding(rig, 0, math.inf)
    rig.metadata.request_update()
    rig.poll_until(lambda: asked(rig) == [2, 0, 0], step_ms=1)
    for received in rig.broker.of(ApiKey.INIT_PRODUCER_ID):
        rig.pass_time(UNRESPONSIVE_AFTER_MS / 2)
        received.answer(InitProducerIdResponse())
    assert asked(rig) == [2, 0, 0]
    rig.pass_time(1.1 * UNRESPONSIVE_AFTER_MS)
    assert sum(asked(rig)) == 3


def test_asks_each_unresponsive_broker_once() -> None:
    rig = rig_that_asked(after_ms=math.inf)
    for node_id in (1, 2):
        holding(rig, node_id, math.inf)
    rig.pass_time(2.9 * UNRESPONSIVE_AFTER_MS)
    assert sum(asked(rig)) == 3
    rig.pass_time(0.2 * UNRESPONSIVE_AFTER_MS)
    assert asked(rig) == [2, 1, 1]
    rig.pass_time(20 * UNRESPONSIVE_AFTER_MS)
    assert asked(rig) == [2, 1, 1]


def test_slow_cluster_gets_one_request_per_query() -> None:
    rig = rig_that_asked(after_ms=1.5 * UNRESPONSIVE_AFTER_MS)
    for node_id in (1, 2):
        holding(rig, node_id, 1.5 * UNRESPONSIVE_AFTER_MS)
    counts = []
    for _ in range(4):
        answered_within(rig, 2 * UNRESPONSIVE_AFTER_MS)
        rig.pass_time(3 * UNRESPONSIVE_AFTER_MS)
        counts.append(sum(asked(rig)))
        rig.metadata.request_update()
    assert counts == [3, 4, 5, 6], "one of them twice, and then each question once"


def test_detects_unresponsive_broker_quickly_after_recovery() -> None:
    rig = rig_that_asked(after_ms=math.inf)
    answered_within(rig, 1.5 * UNRESPONSIVE_AFTER_MS)
    rig.pass_time(40 * UNRESPONSIVE_AFTER_MS)
    for node_id in range(3):
        holding(rig, node_id, 0)
    rig.metadata.request_update()
    answered_within(rig, UNRESPONSIVE_AFTER_MS)
    for node_id in range(3):
        rig.make_ready(node_id)
        holding(rig, node_id, math.inf)
    before = sum(asked(rig))
    rig.metadata.request_update()
    rig.poll_until(lambda: sum(asked(rig)) == before + 1, step_ms=1)
    rig.pass_time(1.1 * UNRESPONSIVE_AFTER_MS)
    assert sum(asked(rig)) == before + 2


def test_query_continues_when_one_connection_is_lost() -> None:
    rig = rig_that_asked(after_ms=math.inf)
    for node_id in (1, 2):
        holding(rig, node_id, UNRESPONSIVE_AFTER_MS / 2)
    rig.poll_until(lambda: sum(asked(rig)) == 3, step_ms=1)
    rig.end_connection(0)
    answered_within(rig, UNRESPONSIVE_AFTER_MS)
    assert sum(asked(rig)) == 3
