"""Rebootstrapping: when no known broker is reachable, when none responds, or when a broker demands it."""

from __future__ import annotations

from spark_kafka_sink.client.cluster import Node
from spark_kafka_sink.protocol import error_codes
from spark_kafka_sink.protocol.message import ApiKey
from spark_kafka_sink.protocol.messages.metadata import MetadataResponse, MetadataResponseBroker
from tests.client.metadata_responses import metadata_response
from tests.client.rig import Rig, all_failed_in_order, ready_rig
from tests.client.scripted_broker import ScriptedBroker


def test_rebootstraps_when_no_known_broker_can_be_tried() -> None:
    rig = Rig(2, bootstrap=(Node(-1, "boot", 9092),))
    rig.system.listen("boot", 9092, rig.broker)
    rig.bootstrap()
    rig.make_ready()
    moved = MetadataResponse(brokers=[MetadataResponseBroker(node_id=7, host="fresh", port=9092)])
    rig.system.listen("boot", 9092, ScriptedBroker(moved))
    rig.system.listen("fresh", 9092, ScriptedBroker(moved))
    for index in range(2):
        rig.system.refuse(f"b{index}", 9092)
    for connection in rig.system.connections:
        connection.reset()
    rig.poll_until(lambda: 7 in rig.metadata.snapshot.nodes, limit_ms=10_000)
    rig.make_ready(7)


def test_tries_bootstrap_addresses_one_after_another() -> None:
    rig = Rig(1, bootstrap=tuple(Node(-1 - index, f"gone{index}", 9092) for index in range(50)))
    rig.pass_time(2_000)
    assert 2 <= len(rig.system.connects) <= 8


def test_keeps_known_brokers_without_recovery_strategy() -> None:
    rig = ready_rig(brokers=1, metadata_recovery_strategy="none")
    rig.system.refuse("b0", 9092)
    rig.system.connections[-1].reset()
    for connection in rig.system.connections:
        connection.reset()
    rig.pass_time(400_000)
    assert not rig.metadata.snapshot.is_bootstrap
    assert list(rig.metadata.snapshot.nodes) == [0]


def test_rebootstraps_when_brokers_do_not_respond_until_trigger() -> None:
    rig = ready_rig(brokers=2, metadata_recovery_rebootstrap_trigger_ms=100_000, request_timeout_ms=5_000)
    silent = True
    for broker in rig.brokers:
        broker.on_request = lambda received: silent and received.api_key is ApiKey.METADATA
    rig.metadata.request_update()
    rig.pass_time(95_000)
    assert not rig.metadata.snapshot.is_bootstrap
    rig.poll_until(lambda: rig.metadata.snapshot.is_bootstrap, limit_ms=20_000)
    silent = False
    rig.bootstrap()


def test_keeps_brokers_that_respond_after_long_wait() -> None:
    rig = ready_rig(brokers=2, metadata_recovery_rebootstrap_trigger_ms=100_000)
    rig.pass_time(150_000)
    rig.metadata.request_update()
    rig.pass_time(10_000)
    assert not rig.metadata.snapshot.is_bootstrap
    assert rig.brokers[0].closed == 0


def test_metadata_response_can_require_rebootstrap() -> None:
    rig = ready_rig(brokers=2)
    rig.send()
    rig.deliver()
    before = len(rig.system.connects)
    rebootstrap_required = metadata_response()
    rebootstrap_required.error_code = error_codes.REBOOTSTRAP_REQUIRED
    good = rig.broker.metadata
    for broker in rig.brokers:
        broker.metadata = rebootstrap_required
    rig.metadata.request_update()
    rig.poll_until(lambda: rig.metadata.snapshot.is_bootstrap, limit_ms=1_000)
    assert all_failed_in_order(rig, 1), "all connections are closed"
    for broker in rig.brokers:
        broker.metadata = good
    rig.bootstrap()
    assert len(rig.system.connects) > before
