"""Ownership of the memory of a send (CVE-2026-35554: a buffer was reused while its request was still being written).

These tests resize a bytearray to detect references to its memory, because Python prevents that while there are any.
"""

from __future__ import annotations

import errno
import ssl
from collections.abc import Callable
from pathlib import Path

import pytest

from integration.support.certificates import write_certificates
from spark_kafka_sink.network.channel import ChannelBuilder
from spark_kafka_sink.network.channel_builders import build_plaintext_channel
from spark_kafka_sink.network.frame import NetworkSend
from spark_kafka_sink.network.selector import Selector
from tests.fake_system import FakeConnection, FakeSystem
from tests.network.peers import UnresponsivePeer, connect
from tests.network.test_tls import TlsPair, build_client_ssl_context, server_context


def is_referenced(memory: bytearray) -> bool:
    try:
        memory.append(0)
    except BufferError:
        return True
    del memory[-1]
    return False


def begin_send(channels: ChannelBuilder = build_plaintext_channel) -> tuple[Selector, FakeConnection, bytearray]:
    """Begin a send, of which the peer accepts only the first 1,000 bytes."""
    system = FakeSystem(window_bytes=1000)
    system.listen("broker", 9092, UnresponsivePeer())
    selector = Selector(system, channel_builder=channels)
    connection = connect(system, selector)
    connection.stall()
    memory = bytearray(b"x" * 5000)
    selector.send(NetworkSend("a", [memoryview(memory)[:2500], memoryview(memory)[2500:]]))
    selector.poll(0)
    assert connection.socket.unread_bytes == 1000
    return selector, connection, memory


def test_references_send_memory_until_last_byte_is_written() -> None:
    selector, connection, memory = begin_send()
    for _ in range(3):
        selector.poll(10)
        assert is_referenced(memory)
    connection.resume()
    while not selector.completed_sends:
        assert is_referenced(memory)
        selector.poll(10)
    selector.poll(0)  # clears the results of the previous poll, which reference the send
    assert not is_referenced(memory)


def _close_channel(selector: Selector, connection: FakeConnection) -> None:
    selector.close_channel("a")


def _close_selector(selector: Selector, connection: FakeConnection) -> None:
    selector.close()


def _reset_by_peer(selector: Selector, connection: FakeConnection) -> None:
    connection.reset()
    while not selector.disconnected:
        selector.poll(10)


@pytest.mark.parametrize("end", [_close_channel, _close_selector, _reset_by_peer])
def test_closed_channel_does_not_reference_its_send(
    end: Callable[[Selector, FakeConnection], None],
) -> None:
    selector, connection, memory = begin_send()
    channel = selector.channel("a")  # a remaining reference to the channel must not matter
    assert is_referenced(memory)
    end(selector, connection)
    assert not is_referenced(memory), channel


def test_error_does_not_reference_memory_of_failed_send(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def broken(segments: list[memoryview]) -> int:
        raise BrokenPipeError(errno.EPIPE, "Broken pipe")

    selector, connection, memory = begin_send()
    monkeypatch.setattr(connection.socket, "sendmsg", broken)
    connection.resume()
    while not selector.disconnected:
        selector.poll(10)
    error = selector.disconnected["a"].error
    assert "Broken pipe" in str(error)
    assert not is_referenced(memory)


def test_tls_references_send_memory_until_encrypted(tmp_path: Path) -> None:
    write_certificates(tmp_path)
    client: ssl.SSLContext = build_client_ssl_context(tmp_path)
    pair = TlsPair(client, server_context(tmp_path))
    pair.complete_handshake()
    memory = bytearray(b"x" * 1_000_000)
    pair.client.send(NetworkSend("a", [memory]))
    pair.client.poll(0)
    assert is_referenced(memory)
    pair.client.close_channel("a")
    assert not is_referenced(memory)
    pair.client.close()
    pair.server.close()
