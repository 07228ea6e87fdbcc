"""Host names are resolved in separate threads, so a slow resolver delays only one connection."""

from __future__ import annotations

import logging
import threading
from typing import Any

import pytest

from spark_kafka_sink.client.host_lookups import BackgroundLookup, HostLookups
from spark_kafka_sink.errors import DisconnectedError
from spark_kafka_sink.network.system import OperatingSystem, SocketAddress
from tests.client.rig import Rig
from tests.fake_system import FakeSystem


def rig_with_slow_resolver(**options: Any) -> Rig:
    """Build a Rig that has bootstrapped. Later lookups finish only when `finish_lookups` is called."""
    rig = Rig(3, **options).bootstrap()
    rig.system.holds_background = True
    return rig


def finish_lookups(rig: Rig) -> None:
    lookups, rig.system.background = rig.system.background, []
    for run in lookups:
        run()


def test_connects_when_the_lookup_has_finished() -> None:
    rig = rig_with_slow_resolver()
    assert not rig.client.ready(rig.node(1), rig.now)
    rig.pass_time(5_000)
    assert [address.host for _, address in rig.system.connects] == ["b0"]
    finish_lookups(rig)
    rig.make_ready(1)
    assert [address.host for _, address in rig.system.connects] == ["b0", "b1"]


def test_end_of_lookup_ends_the_poll() -> None:
    rig = rig_with_slow_resolver()
    rig.client.ready(rig.node(1), rig.now)
    started = rig.now
    rig.system.after(700, lambda: finish_lookups(rig))
    rig.poll(5_000)
    assert rig.now - started == 700


def test_slow_lookup_delays_no_other_broker() -> None:
    rig = rig_with_slow_resolver()
    rig.client.ready(rig.node(1), rig.now)
    rig.system.holds_background = False
    rig.make_ready(2)
    request = rig.send(2)
    rig.deliver(2)
    rig.brokers[2].requests[-1].respond(request.message, correlation_id=request.correlation_id)
    rig.poll()
    assert rig.client.in_flight_request_count(2) == 0


def test_lookup_without_end_fails_after_connection_setup_timeout(caplog: pytest.LogCaptureFixture) -> None:
    options: dict[str, Any] = {
        "socket_connection_setup_timeout_ms": 1_000,
        "socket_connection_setup_timeout_max_ms": 1_000,
    }
    rig = rig_with_slow_resolver(**options)
    rig.client.ready(rig.node(1), rig.now)
    with caplog.at_level(logging.WARNING):
        rig.poll_until(lambda: rig.client.has_connection_failed(1), limit_ms=1_500)
    (message,) = caplog.messages
    detail = "no address for the name within 1000 ms (socket.connection.setup.timeout.ms)"
    assert message == f"Connection failed: b1:9092: {detail}"
    for _ in range(3):
        rig.pass_time(2_000)
        rig.client.ready(rig.node(1), rig.now)
    assert len(rig.system.background) <= 3, "each name is looked up once at a time"
    finish_lookups(rig)
    rig.make_ready(1)


def test_result_of_lookup_is_dropped_if_no_connection_needs_it() -> None:
    rig = rig_with_slow_resolver(socket_connection_setup_timeout_ms=1_000)
    rig.client.ready(rig.node(1), rig.now)
    rig.poll_until(lambda: rig.client.has_connection_failed(1))
    finish_lookups(rig)
    rig.poll()
    assert [address.host for _, address in rig.system.connects] == ["b0"]
    rig.pass_time(100)
    rig.system.background.clear()
    rig.client.ready(rig.node(1), rig.now)
    assert rig.system.background, "the old result is not used"


def test_failed_lookup_fails_the_connection(caplog: pytest.LogCaptureFixture) -> None:
    rig = rig_with_slow_resolver()
    rig.client.ready(rig.node(1), rig.now)
    rig.system.names["b1"] = []
    finish_lookups(rig)
    with caplog.at_level(logging.WARNING):
        rig.poll()
    assert rig.client.has_connection_failed(1)
    assert caplog.messages == ["Connection failed: b1:9092: the name cannot be resolved: unknown name"]


def test_nodes_with_one_address_share_a_lookup() -> None:
    rig = rig_with_slow_resolver()
    rig.end_connection(-1)
    rig.poll()
    rig.pass_time(100)
    node = rig.node(0)
    rig.client.ready(node, rig.now)
    rig.client.ready(type(node)(-1, node.host, node.port), rig.now)
    assert len(rig.system.background) == 1
    finish_lookups(rig)
    rig.poll()
    assert [address.host for _, address in rig.system.connects[1:]] == ["b0", "b0"]


def test_ip_address_needs_no_lookup() -> None:
    system = FakeSystem()
    system.holds_background = True
    lookups = HostLookups(system, lambda: None)
    for host in ("10.0.0.1", "::1"):
        assert lookups.resolve(host, 9092) == system.resolve(host, 9092)
    assert lookups.resolve("broker", 9092) is None


def test_lookup_that_raises_unexpectedly_finishes() -> None:
    system, finished = FakeSystem(), []
    system.holds_background = True

    def look_up() -> list[SocketAddress]:
        raise MemoryError

    lookup = BackgroundLookup(system, look_up, lambda: finished.append(True))
    with pytest.raises(MemoryError):
        system.background[0]()
    assert finished
    with pytest.raises(DisconnectedError, match="ended unexpectedly"):
        lookup.result()


def test_no_end_of_a_lookup_is_missed() -> None:
    """Each lookup either has finished when its constructor returns, or calls `on_finish` afterwards."""
    system = OperatingSystem()
    for _ in range(300):
        finished = threading.Event()
        lookup = BackgroundLookup(system, lambda: 1, finished.set)
        if not lookup.is_finished:
            assert finished.wait(60)
        assert lookup.result() == 1


def test_runs_lookup_synchronously_if_no_thread_can_be_started(monkeypatch: pytest.MonkeyPatch) -> None:
    start = threading.Thread.start

    def fail_for_lookups(thread: threading.Thread) -> None:
        if thread.name == "pykafka-lookup":
            raise RuntimeError("can't start new thread")
        start(thread)  # other threads of this process may start threads at any time

    monkeypatch.setattr(threading.Thread, "start", fail_for_lookups)
    lookup = BackgroundLookup(OperatingSystem(), threading.current_thread, lambda: None)
    assert lookup.is_finished
    assert lookup.result() is threading.current_thread()
