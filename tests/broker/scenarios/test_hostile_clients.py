"""Hostile clients and internal errors: the broker limits its resources, or shuts down in a visible way."""

from __future__ import annotations

import contextlib
import errno
import socket
import struct
import threading
import time
from collections.abc import Callable
from selectors import SelectorKey
from typing import Any

import pytest

from spark_kafka_sink.broker import acceptor, processor, socket_server
from spark_kafka_sink.broker.acceptor import Acceptor
from spark_kafka_sink.broker.request_purgatory import RequestPurgatory
from spark_kafka_sink.errors import IllegalStateError
from spark_kafka_sink.network.channel_timeouts import ChannelTimeouts
from spark_kafka_sink.network.frame_memory import FrameMemory
from spark_kafka_sink.network.system import HasFileno, OperatingSystem
from spark_kafka_sink.protocol.message import ApiKey
from spark_kafka_sink.protocol.messages.fetch import FetchPartition, FetchRequest, FetchTopic
from spark_kafka_sink.protocol.messages.metadata import MetadataRequest
from spark_kafka_sink.testing import embedded_broker
from tests.broker.loopback_client import LoopbackClient, broker_threads, count_open_descriptors
from tests.broker.wire_client import partition_response, produce_request
from tests.reader.stored_batches import batch
from tests.waiting import eventually

ALL_TOPICS = MetadataRequest(topics=None)


def raise_error(*_: object) -> None:
    raise RuntimeError("an injected error")


@pytest.mark.parametrize(
    ("find_loops", "method"),
    [
        pytest.param(lambda server: server._processors, "run_once", id="the processors"),
        pytest.param(lambda server: [server._purgatory], "take", id="the purgatory thread"),
        pytest.param(lambda server: [server._acceptor], "run_once", id="the acceptor"),
    ],
)
def test_failed_thread_shuts_down_broker_and_close_raises(
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
    find_loops: Callable[[socket_server.SocketServer], list[object]],
    method: str,
) -> None:
    """Break the threads of one broker, because the plugin's broker for the session may be running as well."""
    threads, descriptors = broker_threads(), count_open_descriptors()
    broker = embedded_broker({"t": 1})
    with LoopbackClient(broker.bootstrap_servers) as open_client:
        open_client.request(ALL_TOPICS, 9)
        with monkeypatch.context() as patch:
            for loop in find_loops(broker._server):
                patch.setattr(loop, method, raise_error)
            open_client.send((ALL_TOPICS, 9))
            # A connection wakes the acceptor and a processor.
            with contextlib.suppress(ConnectionError):
                LoopbackClient(broker.bootstrap_servers).socket.close()
            assert eventually(lambda: broker.failure is not None)
        while open_client.receive() is not None:
            """The response may have been sent before the thread failed."""
    assert eventually(lambda: broker_threads() <= threads)
    with pytest.raises(ConnectionRefusedError):
        LoopbackClient(broker.bootstrap_servers)
    with pytest.raises(IllegalStateError, match="The embedded broker failed: RuntimeError: an injected error"):
        broker.close()
    assert [record.levelname for record in caplog.records] == ["CRITICAL"]
    assert count_open_descriptors() == descriptors


def test_unsendable_response_closes_only_its_own_connection(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    with embedded_broker({"t": 1}) as broker, LoopbackClient(broker.bootstrap_servers) as other_client:
        with monkeypatch.context() as patch, LoopbackClient(broker.bootstrap_servers) as client:
            patch.setattr(processor, "NetworkSend", raise_error)
            assert client.request(ALL_TOPICS, 9) is None
        assert other_client.request(ALL_TOPICS, 9) is not None
    assert "Could not send a response" in caplog.text


class UnacceptingSocket:
    """A listening socket that is always readable but cannot accept, like one without free file descriptors."""

    def __init__(self, *_: object) -> None:
        self.attempts = 0

    def accept(self) -> None:
        self.attempts += 1
        raise OSError(errno.EMFILE, "Too many open files")

    def getsockname(self) -> tuple[str, int]:
        return "127.0.0.1", 1

    def fileno(self) -> int:
        return -2

    def setblocking(self, flag: bool) -> None:
        assert not flag

    def close(self) -> None:
        """Nothing to close."""


class RecordingSystem(OperatingSystem):
    """A system whose poller records its timeouts and never waits: everything but the waker is always ready."""

    def __init__(self) -> None:
        self.timeouts: list[float | None] = []
        self.registered: dict[int, SelectorKey] = {}

    def create_poller(self) -> Any:
        return self

    def register(self, fileobj: HasFileno, events: int, data: Any = None) -> None:
        self.registered[id(fileobj)] = SelectorKey(fileobj, fileobj.fileno(), events, data)

    def unregister(self, fileobj: HasFileno) -> None:
        del self.registered[id(fileobj)]

    def select(self, timeout: float | None = None) -> list[tuple[SelectorKey, int]]:
        self.timeouts.append(timeout)
        return [(key, key.events) for key in self.registered.values() if key.data is not None]

    def close(self) -> None:
        """Nothing to close."""


def test_acceptor_pauses_without_file_descriptors(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    listeners = [UnacceptingSocket(), UnacceptingSocket()]
    unbound = iter(listeners)
    monkeypatch.setattr(socket, "create_server", lambda *_, **__: next(unbound))
    system = RecordingSystem()
    paused_acceptor = Acceptor(system, "127.0.0.1", raise_error, raise_error)
    for node in range(2):
        paused_acceptor.bind(node, 0)
    for _ in range(5):
        paused_acceptor.run_once()
    assert sum(listener.attempts for listener in listeners) == 3
    assert system.timeouts == [acceptor.MAX_POLL_SECONDS, acceptor.PAUSE_SECONDS] * 2 + [acceptor.MAX_POLL_SECONDS]
    assert caplog.text.count("Too many open files") == 1, (
        "the warning must not be repeated while descriptors are missing"
    )
    stop_thread = threading.Thread(target=paused_acceptor.stop_listening, args=(0,), daemon=True)
    stop_thread.start()
    while stop_thread.is_alive():
        paused_acceptor.run_once()
    paused_acceptor.close()
    assert [key for key in system.registered.values() if key.data is not None] == []


def test_failed_task_of_acceptor_releases_waiting_thread(monkeypatch: pytest.MonkeyPatch) -> None:
    errors: list[BaseException] = []
    failing_acceptor = Acceptor(RecordingSystem(), "127.0.0.1", raise_error, errors.append)
    monkeypatch.setattr(failing_acceptor, "_remove_listener", raise_error)
    failing_acceptor.start()
    begun_at = time.monotonic()
    failing_acceptor.stop_listening(0)
    assert time.monotonic() - begun_at < acceptor.MAX_TASK_WAIT_SECONDS / 2
    failing_acceptor.close()
    assert [str(error) for error in errors] == ["an injected error"]


def test_rejects_connections_beyond_limit_until_others_close(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(socket_server, "MAX_CONNECTIONS", 2)
    with embedded_broker({"t": 1}) as broker:
        first, second = (LoopbackClient(broker.bootstrap_servers) for _ in range(2))
        assert first.request(ALL_TOPICS, 9) is not None
        assert second.request(ALL_TOPICS, 9) is not None
        with LoopbackClient(broker.bootstrap_servers) as third:
            assert third.receive() is None
        first.socket.close()

        def can_connect() -> bool:
            with LoopbackClient(broker.bootstrap_servers) as client:
                try:
                    return client.request(ALL_TOPICS, 9) is not None
                except BrokenPipeError:
                    return False

        assert eventually(can_connect)
        second.socket.close()
    assert "the limit is 2 connections" in caplog.text


def test_responds_immediately_to_requests_beyond_purgatory_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    purgatories: list[RequestPurgatory] = []

    class RecordedPurgatory(RequestPurgatory):
        def __init__(self, *args: Any, **kwargs: Any) -> None:
            super().__init__(*args, **kwargs)
            purgatories.append(self)

    monkeypatch.setattr(socket_server, "RequestPurgatory", RecordedPurgatory)
    monkeypatch.setattr(socket_server, "MAX_DELAYED_REQUESTS", 3)
    partition = FetchPartition(partition=0, partition_max_bytes=1000)
    poll = FetchRequest(max_wait_ms=2**31 - 1, min_bytes=1, topics=[FetchTopic(topic="t", partitions=[partition])])
    with embedded_broker({"t": 1}) as broker:
        for _ in range(3):
            with LoopbackClient(broker.bootstrap_servers) as disconnected_client:
                disconnected_client.send((poll, 12))
        assert eventually(lambda: purgatories[0].count == 3)
        with LoopbackClient(broker.bootstrap_servers) as client:
            assert client.request(poll, 12).responses[0].partitions[0].error_code == 0


class RecordedMemory(FrameMemory[Any]):
    max_reserved_bytes = 0
    wait_count = 0

    def try_reserve(self, owner: Any, size: int) -> bool:
        granted = super().try_reserve(owner, size)
        RecordedMemory.wait_count += not granted
        return granted

    def __setattr__(self, name: str, value: Any) -> None:
        if name == "available_bytes":
            RecordedMemory.max_reserved_bytes = max(RecordedMemory.max_reserved_bytes, self.max_bytes - value)
        super().__setattr__(name, value)


def test_reads_concurrent_long_frames_within_memory_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(processor, "FrameMemory", RecordedMemory)
    monkeypatch.setattr(processor, "MAX_FRAME_MEMORY_BYTES", 100_000)
    request = produce_request(batch(0, bytes(40_000)))
    with embedded_broker({"t": 1}) as broker:
        broker.control.when(api=ApiKey.PRODUCE, times=None).delay(1, 5, execute_first=False)
        clients = [LoopbackClient(broker.bootstrap_servers) for _ in range(20)]
        for client in clients:
            client.send((request, 9))
        codes = []
        for client in clients:
            codes.append(partition_response(client.receive_response(request, 9)).error_code)
            client.socket.close()
    assert codes == [0] * 20
    assert 80_000 < RecordedMemory.max_reserved_bytes <= 100_000
    assert RecordedMemory.wait_count > 0


def test_closes_connections_with_incomplete_frame_or_login(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(processor, "TIMEOUTS", ChannelTimeouts(idle_ms=-1, setup_ms=1, frame_ms=1))
    with embedded_broker({"t": 1}) as broker:
        incomplete_client = LoopbackClient(broker.bootstrap_servers)
        incomplete_client.socket.sendall(struct.pack(">i", 1000) + b"half")
        incomplete_client.socket.setblocking(False)

        def is_closed() -> bool:
            for _ in range(2):  # both processors must check their deadlines
                with LoopbackClient(broker.bootstrap_servers):
                    """Each connection wakes one processor."""
            try:
                return incomplete_client.socket.recv(1) == b""
            except BlockingIOError:
                return False
            except ConnectionResetError:
                return True

        assert eventually(is_closed)
        incomplete_client.socket.close()
