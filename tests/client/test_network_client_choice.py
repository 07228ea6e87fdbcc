"""Choice of the broker for requests that any broker can handle: the least loaded responsive one."""

from __future__ import annotations

from spark_kafka_sink.client.cluster import Node
from spark_kafka_sink.client.node_choice import UNRESPONSIVE_AFTER_MS
from spark_kafka_sink.protocol.message import ApiKey
from spark_kafka_sink.protocol.messages.produce import ProduceRequest, ProduceResponse
from tests.client.rig import Rig, ready_rig


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
    rig = Rig().bootstrap()
    rig.client.ready(rig.node(2), rig.now)
    assert {rig.client.least_loaded_node(rig.now) for _ in range(20)} == {rig.node(2)}


def test_least_loaded_node_prefers_longest_untried() -> None:
    rig = Rig().bootstrap()
    for node_id in (1, 0, 2):
        rig.make_ready(node_id)
        rig.end_connection(node_id)
        rig.system.advance(1_000)
    assert {rig.client.least_loaded_node(rig.now) for _ in range(20)} == {rig.node(1)}


def test_least_loaded_node_is_random_among_equals() -> None:
    rig = Rig().bootstrap()
    assert {rig.client.least_loaded_node(rig.now) for _ in range(50)} == {rig.node(index) for index in range(3)}


def test_does_not_choose_throttled_node() -> None:
    rig = ready_rig(brokers=1)
    rig.send(message=ProduceRequest(acks=1))
    rig.deliver()
    rig.broker.last_request(ApiKey.PRODUCE).respond(ProduceResponse(throttle_time_ms=5_000))
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
    assert len(rig.system.connects) == 2, "an unresponsive broker is not waited for"


def test_prefers_responsive_brokers_for_metadata() -> None:
    rig = ready_rig()
    rig.broker.on_request = lambda received: True  # accepts connections and requests, and never responds
    request_count = len(rig.broker.find_requests(ApiKey.METADATA))
    rig.send(message=ProduceRequest(acks=1))
    rig.pass_time(UNRESPONSIVE_AFTER_MS)
    rig.metadata.request_update()
    before = rig.metadata.version
    rig.poll_until(lambda: rig.metadata.version > before, limit_ms=2 * UNRESPONSIVE_AFTER_MS)
    assert len(rig.broker.find_requests(ApiKey.METADATA)) == request_count
