"""The Selector with sockets of the operating system."""

from __future__ import annotations

import errno
import os
import socket
import sys
import threading
import time
from collections.abc import Iterator
from unittest.mock import Mock

import pytest

from spark_kafka_sink.errors import DisconnectedError
from spark_kafka_sink.network.channel import ChannelStateKind
from spark_kafka_sink.network.frame import NetworkSend
from spark_kafka_sink.network.selector import Selector
from spark_kafka_sink.network.system import (
    OS_DEFAULT_BUFFER,
    OperatingSystem,
    SocketAddress,
    configure_socket,
    get_peer_address,
)
from tests.leak_check import assert_no_leaks

WAIT_MS = 30_000


@pytest.fixture
def selector() -> Iterator[Selector]:
    selector = Selector(OperatingSystem())
    yield selector
    selector.close()


@pytest.fixture
def listener() -> Iterator[socket.socket]:
    with socket.socket() as server:
        server.bind(("127.0.0.1", 0))
        server.listen()
        yield server


def address(listener: socket.socket) -> SocketAddress:
    return OperatingSystem().resolve("127.0.0.1", listener.getsockname()[1])[0]


def test_round_trip_over_loopback(selector: Selector, listener: socket.socket) -> None:
    selector.connect("client", address(listener))
    while "client" not in selector.connected:
        selector.poll(WAIT_MS)
    accepted, _ = listener.accept()
    configure_socket(accepted, OS_DEFAULT_BUFFER, OS_DEFAULT_BUFFER)
    selector.register("server", accepted, get_peer_address(accepted))
    payload = os.urandom(3_000_000)
    selector.send(NetworkSend("client", [payload[:1], payload[1:]]))
    while not selector.completed_receives:
        selector.poll(WAIT_MS)
    receive = selector.completed_receives[0]
    assert (receive.channel_id, bytes(receive.payload)) == ("server", payload)
    selector.close_channel("client")
    selector.poll(WAIT_MS)
    assert selector.disconnected["server"].kind is ChannelStateKind.READY


def test_reports_refused_connection_without_listener(selector: Selector, listener: socket.socket) -> None:
    server_address = address(listener)
    listener.close()
    selector.connect("a", server_address)
    while not selector.disconnected:
        selector.poll(WAIT_MS)
    assert str(selector.disconnected["a"].error) == f"127.0.0.1:{server_address.port}: Connection refused"


def test_configures_sockets(listener: socket.socket) -> None:
    sock = OperatingSystem().connect(address(listener), 131072, 32768)
    assert isinstance(sock, socket.socket)
    with sock:
        assert not sock.getblocking()
        assert sock.getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY)
        assert sock.getsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE)
        # Linux doubles the requested size, to have room for its own bookkeeping.
        assert sock.getsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF) >= 131072
        assert 32768 <= sock.getsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF) < 131072


def test_wakeup_from_another_thread_ends_wait(selector: Selector) -> None:
    thread = threading.Thread(target=selector.wakeup)
    thread.start()
    selector.poll(WAIT_MS * 10)  # longer than any timeout of the tests
    thread.join()


def test_many_wakeups_do_not_block(selector: Selector) -> None:
    for _ in range(200_000):
        selector.wakeup()
    selector.poll(WAIT_MS)


def test_no_wakeup_is_lost_at_any_point_of_a_poll(selector: Selector) -> None:
    turns, wakeup_count, poll_count = 2000, 0, 0

    def wake_up_repeatedly() -> None:
        nonlocal wakeup_count
        for turn in range(turns):
            wakeup_count = turn + 1
            selector.wakeup()
            while poll_count < wakeup_count:
                time.sleep(0)

    thread = threading.Thread(target=wake_up_repeatedly)
    interval = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)  # so that threads switch at any point of a poll
    try:
        thread.start()
        while poll_count < turns:
            started_s = time.monotonic()
            selector.poll(WAIT_MS * 10)
            assert time.monotonic() - started_s < WAIT_MS / 100, "waited to the end"
            poll_count = wakeup_count
    finally:
        poll_count = turns
        thread.join()
        sys.setswitchinterval(interval)


def test_wakeup_after_close_is_harmless() -> None:
    selector = Selector(OperatingSystem())
    selector.close()
    selector.wakeup()


def test_unresolvable_name_is_a_disconnection_with_the_name(monkeypatch: pytest.MonkeyPatch) -> None:
    def raise_unknown_name(*_: object, **__: object) -> None:
        raise socket.gaierror(socket.EAI_NONAME, "Name or service not known")

    monkeypatch.setattr(socket, "getaddrinfo", raise_unknown_name)
    with pytest.raises(DisconnectedError, match=r"no-such-host:9092: the name cannot be resolved.*not known"):
        OperatingSystem().resolve("no-such-host", 9092)


def test_system_error_in_resolver_is_a_disconnection(monkeypatch: pytest.MonkeyPatch) -> None:
    """Python raises OSError instead of gaierror. A temporary shortage of descriptors must not end a producer."""

    def raise_too_many_files(*_: object, **__: object) -> None:
        raise OSError(errno.EMFILE, "Too many open files")

    monkeypatch.setattr(socket, "getaddrinfo", raise_too_many_files)
    monkeypatch.setattr(socket, "getnameinfo", raise_too_many_files)
    with pytest.raises(DisconnectedError, match=r"broker:9092: the name cannot be resolved.*Too many open files"):
        OperatingSystem().resolve("broker", 9092)
    assert OperatingSystem().find_canonical_name(SocketAddress("b", 1, socket.AF_INET, ("10.0.0.1", 1))) == "10.0.0.1"


def test_full_poller_is_a_disconnection(monkeypatch: pytest.MonkeyPatch) -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        selector = Selector(OperatingSystem())
        failing_register = Mock(side_effect=OSError(errno.ENOSPC, "No space left on device"))
        monkeypatch.setattr(selector._poller, "register", failing_register)
        (address,) = OperatingSystem().resolve("127.0.0.1", server.getsockname()[1])
        with pytest.raises(DisconnectedError, match="No space left on device"):
            selector.connect("a", address)
        monkeypatch.undo()
        selector.close()


@pytest.mark.parametrize("port", [-1, 0, 65536, 70_000])
def test_rejects_port_out_of_range(port: int) -> None:
    """A broker's metadata may contain such a port."""
    with pytest.raises(DisconnectedError, match="the port must be between 1 and 65535"):
        OperatingSystem().resolve("127.0.0.1", port)


def test_name_with_invalid_label_cannot_be_resolved() -> None:
    with pytest.raises(DisconnectedError, match="cannot be resolved"):
        OperatingSystem().resolve("x" * 100 + ".example", 9092)


def test_closed_connections_leak_no_descriptor_or_thread(listener: socket.socket) -> None:
    """Open and close 300 connections. integration/test_network.py opens ten thousand."""
    with assert_no_leaks():
        selector = Selector(OperatingSystem())
        for round_number in range(10):
            ids = [f"{round_number}-{number}" for number in range(30)]
            for channel_id in ids:
                selector.connect(channel_id, address(listener))
            pending_ids = set(ids)
            while pending_ids:
                selector.poll(WAIT_MS)
                pending_ids -= set(selector.connected)
                assert not selector.disconnected
            for channel_id in ids:
                listener.accept()[0].close()
                selector.close_channel(channel_id)
        selector.close()
