"""Which broker is asked what any of them can answer: the least loaded one that shows signs of life."""

from __future__ import annotations

from spark_kafka_sink.client.cluster import Node
from spark_kafka_sink.client.connections import SUSPICIOUS_MS
from spark_kafka_sink.protocol.message import ApiKey
from spark_kafka_sink.protocol.messages.produce import ProduceRequest, ProduceResponse
from tests.client.rig import Rig, ready_rig


def test_the_least_loaded_node_is_ready_and_idle_before_all_others() -> None:
    rig = ready_rig()
    rig.make_ready(1)
    rig.send(0)
    rig.deliver(0)
    assert {rig.client.least_loaded_node(rig.now) for _ in range(20)} == {rig.node(1)}
    for _ in range(2):
        rig.send(1)
        rig.deliver(1)
    assert {rig.client.least_loaded_node(rig.now) for _ in range(20)} == {rig.node(0)}


def test_a_node_on_its_way_is_preferred_to_one_that_was_never_tried() -> None:
    rig = Rig().bootstrapped()
    rig.client.ready(rig.node(2), rig.now)
    assert {rig.client.least_loaded_node(rig.now) for _ in range(20)} == {rig.node(2)}


def test_of_nodes_without_a_connection_the_one_tried_longest_ago_is_chosen() -> None:
    rig = Rig().bootstrapped()
    for node_id in (1, 0, 2):
        rig.make_ready(node_id)
        rig.end_connection(node_id)
        rig.system.advance(1_000)
    assert {rig.client.least_loaded_node(rig.now) for _ in range(20)} == {rig.node(1)}


def test_equals_are_chosen_at_random() -> None:
    rig = Rig().bootstrapped()
    assert {rig.client.least_loaded_node(rig.now) for _ in range(50)} == {rig.node(index) for index in range(3)}


def test_a_throttled_node_is_not_asked_for_metadata() -> None:
    rig = ready_rig(brokers=1)
    rig.send(message=ProduceRequest(acks=1))
    rig.deliver()
    rig.broker.last(ApiKey.PRODUCE).answer(ProduceResponse(throttle_time_ms=5_000))
    rig.poll_until(lambda: bool(rig.responses))
    assert rig.client.least_loaded_node(rig.now) is None
    rig.system.advance(5_000)
    assert rig.client.least_loaded_node(rig.now) == rig.node(0)


def test_while_one_connection_is_being_made_metadata_begins_no_other() -> None:
    rig = Rig(bootstrap=tuple(Node(-1 - index, f"b{index}", 9092) for index in range(3)))
    for index in range(3):
        rig.system.swallow(f"b{index}", 9092)
    rig.pass_time(SUSPICIOUS_MS - 1)
    assert len(rig.system.connects) == 1
    rig.pass_time(2)
    assert len(rig.system.connects) == 2, "one that says nothing for so long is not waited for"


def test_a_broker_that_stands_still_is_asked_for_metadata_after_all_others() -> None:
    rig = ready_rig()
    rig.broker.on_request = lambda received: True  # it takes connections and requests, and says nothing
    asked = len(rig.broker.of(ApiKey.METADATA))
    rig.send(message=ProduceRequest(acks=1))
    rig.pass_time(SUSPICIOUS_MS)
    rig.metadata.request_update()
    before = rig.metadata.version
    rig.poll_until(lambda: rig.metadata.version > before, limit_ms=2 * SUSPICIOUS_MS)
    assert len(rig.broker.of(ApiKey.METADATA)) == asked
