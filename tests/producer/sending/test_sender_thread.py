"""SenderThread with real sockets against the embedded broker: behaviour that virtual time cannot show."""

from __future__ import annotations

import gc
import os
import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType
from typing import Any, cast
from unittest.mock import Mock

import pyarrow as pa
import pytest

from spark_kafka_sink import KafkaProducer, ProducerRecord, RecordColumns
from spark_kafka_sink.errors import ConfigurationError, IllegalStateError
from spark_kafka_sink.network.system import OperatingSystem
from spark_kafka_sink.producer.one_time_event import OneTimeEvent
from spark_kafka_sink.producer.sending import sender_thread
from spark_kafka_sink.producer.sending.sender import Sender
from spark_kafka_sink.producer.sending.sender_thread import SenderThread
from spark_kafka_sink.testing import embedded_broker
from tests.leak_check import assert_no_leaks
from tests.waiting import WAIT_TIMEOUT_SECONDS


def senders() -> set[threading.Thread]:
    """Return the sender threads of all producers in this process, including those of earlier tests."""
    return {thread for thread in threading.enumerate() if "kafka-producer" in thread.name}


def test_leaves_no_thread_or_descriptor_after_100_000_rows() -> None:
    before = senders()
    with assert_no_leaks(), embedded_broker(topics={"t": 3}) as broker:
        with KafkaProducer({"bootstrap.servers": broker.bootstrap_servers}) as producer:
            single = producer.send(ProducerRecord("t", b"first"))
            columns = producer.send_columns("t", RecordColumns(pa.array([b"v"] * 100_000)))
            assert single.result(WAIT_TIMEOUT_SECONDS).offset >= 0
            assert columns.result(WAIT_TIMEOUT_SECONDS).rows_written == 100_000
        assert senders() <= before
        # Leaks are checked after the broker has ended, because it also runs here and may close its sockets late.


def test_unreferenced_producer_ends_its_thread() -> None:
    before = senders()
    with embedded_broker(topics={"t": 1}) as broker:
        producer = KafkaProducer({"bootstrap.servers": broker.bootstrap_servers})
        producer.send(ProducerRecord("t", b"v")).result(WAIT_TIMEOUT_SECONDS)
        (sender,) = senders() - before
        del producer
        gc.collect()
        sender.join(WAIT_TIMEOUT_SECONDS)
        assert not sender.is_alive()


def test_close_in_callback_ends_the_thread() -> None:
    before = senders()
    with embedded_broker(topics={"t": 1}) as broker:
        producer = KafkaProducer({"bootstrap.servers": broker.bootstrap_servers})
        (sender,) = senders() - before
        producer.send(ProducerRecord("t", b"v"), lambda metadata, error: producer.close()).result(WAIT_TIMEOUT_SECONDS)
        sender.join(WAIT_TIMEOUT_SECONDS)
        assert not sender.is_alive()


def test_27_send_in_child_process_fails_and_names_the_fork() -> None:
    with (
        embedded_broker(topics={"t": 1}) as broker,
        KafkaProducer({"bootstrap.servers": broker.bootstrap_servers}) as producer,
    ):
        child = os.fork()
        if not child:
            try:
                producer.send(ProducerRecord("t", b"v"))
            except IllegalStateError as error:
                os._exit(0 if "fork" in str(error) else 1)
            os._exit(2)
        assert os.waitpid(child, 0)[1] == 0


@pytest.mark.parametrize("leaves_with_error", [False, True])
def test_27_transaction_block_in_child_process_fails_and_names_the_fork(leaves_with_error: bool) -> None:
    """The child has no sender thread, so it would wait for max.block.ms, and the transaction belongs to the parent."""
    with (
        embedded_broker(topics={"t": 1}) as broker,
        KafkaProducer({"bootstrap.servers": broker.bootstrap_servers, "transactional.id": "x"}) as producer,
    ):
        producer.init_transactions()
        child = -1
        try:
            with producer.transaction():
                producer.send(ProducerRecord("t", b"v"))
                child = os.fork()
                if not child:
                    producer._transactions.abort = lambda: os._exit(3)  # type: ignore[union-attr, method-assign]
                    if leaves_with_error:
                        raise KeyError("in the child")
        except BaseException as error:
            if child:
                raise
            os._exit(0 if ("child" if leaves_with_error else "fork") in str(error) else 1)
        if not child:
            os._exit(2)
        assert os.waitpid(child, 0)[1] == 0


class WaitingSender:
    """A sender that runs until a test ends it."""

    def __init__(self) -> None:
        self.ended = threading.Event()

    def run(self) -> None:
        self.ended.wait(WAIT_TIMEOUT_SECONDS)


@contextmanager
def interrupt_function(name: str) -> Iterator[None]:
    """Raise KeyboardInterrupt when the calling thread is in a function with this name."""
    caller, is_over = threading.get_ident(), threading.Event()

    def interrupt(number: int, frame: FrameType | None) -> None:
        while frame is not None and frame.f_code.co_name != name:
            frame = frame.f_back
        if frame is not None and not is_over.is_set():
            is_over.set()
            raise KeyboardInterrupt

    def send_signals() -> None:
        while not is_over.wait(0.001):
            signal.pthread_kill(caller, signal.SIGUSR1)

    previous = signal.signal(signal.SIGUSR1, interrupt)
    signals = threading.Thread(target=send_signals)
    signals.start()
    try:
        yield
    finally:
        is_over.set()
        signals.join()
        signal.signal(signal.SIGUSR1, previous)


def test_join_waits_for_the_sender_after_an_interrupted_join() -> None:
    thread, sender = SenderThread(OperatingSystem(), 0), WaitingSender()
    thread.start(cast(Sender, sender), "kafka-producer-test")
    try:
        with pytest.raises(KeyboardInterrupt), interrupt_function("join"):
            thread.join(None)
        assert not thread.join(0)
    finally:
        sender.ended.set()
    assert thread.join(WAIT_TIMEOUT_SECONDS * 1000)
    assert thread.join(0)


def test_threads_that_join_concurrently_see_the_end() -> None:
    thread, sender = SenderThread(OperatingSystem(), 0), WaitingSender()
    thread.start(cast(Sender, sender), "kafka-producer-test")
    results: list[Any] = []
    callers = [threading.Thread(target=lambda: results.append(thread.join(None))) for _ in range(2)]
    for caller in callers:
        caller.start()
    sender.ended.set()
    for caller in callers:
        caller.join(WAIT_TIMEOUT_SECONDS)
    assert results == [True, True]


# --- interpreter exit


class SenderAtExit(WaitingSender):
    """A sender with incomplete records, which ends at `abandon` unless it is stalled, and at `initiate_close`."""

    def __init__(self, *, is_stalled: bool = False) -> None:
        super().__init__()
        self.has_incomplete_rows = True
        self.calls: list[tuple[str, bool]] = []
        self._is_stalled = is_stalled

    def abandon(self, *, force: bool) -> None:
        self.calls.append(("abandon", force))
        if not self._is_stalled:
            self.ended.set()

    def initiate_close(self, *, force: bool) -> None:
        self.calls.append(("initiate_close", force))
        self.ended.set()


def start_thread(sender: WaitingSender, flush_at_exit: float) -> SenderThread:
    thread = SenderThread(OperatingSystem(), flush_at_exit)
    thread.start(cast(Sender, sender), "kafka-producer-test")
    return thread


def test_exit_waits_until_records_are_delivered() -> None:
    sender = SenderAtExit()
    thread = start_thread(sender, WAIT_TIMEOUT_SECONDS)
    sender_thread._deliver_at_exit()
    assert sender.calls == [("abandon", False)]
    assert thread.join(0)


def test_exit_fails_records_after_flush_at_exit() -> None:
    sender = SenderAtExit(is_stalled=True)
    thread = start_thread(sender, 0.001)
    sender_thread._deliver_at_exit()
    assert sender.calls == [("abandon", False), ("initiate_close", True)]
    assert thread.join(0)


def test_exit_drops_records_if_flush_at_exit_is_zero() -> None:
    sender = SenderAtExit()
    start_thread(sender, 0)
    sender_thread._deliver_at_exit()
    assert sender.calls[0] == ("abandon", True)


def test_exit_ignores_producers_without_incomplete_records_and_those_that_have_ended() -> None:
    idle_sender, ended_sender = SenderAtExit(), SenderAtExit()
    idle_sender.has_incomplete_rows = False
    start_thread(idle_sender, WAIT_TIMEOUT_SECONDS)
    ended_thread = start_thread(ended_sender, WAIT_TIMEOUT_SECONDS)
    ended_sender.ended.set()
    assert ended_thread.join(WAIT_TIMEOUT_SECONDS * 1000)
    sender_thread._deliver_at_exit()
    assert idle_sender.calls == ended_sender.calls == []
    idle_sender.ended.set()


def test_has_no_work_before_start_and_in_forked_child(monkeypatch: pytest.MonkeyPatch) -> None:
    not_started = SenderThread(OperatingSystem(), 0)
    assert not not_started.has_work
    assert not not_started.is_current()
    sender = SenderAtExit()
    thread = start_thread(sender, 0)
    has_work = [thread.has_work]
    monkeypatch.setattr(os, "getpid", lambda: -1)
    has_work.append(thread.has_work)
    assert has_work == [True, False]
    sender.ended.set()


@pytest.mark.parametrize("flush_at_exit", [-1, float("nan"), "5"])
def test_rejects_flush_at_exit_that_is_no_duration(flush_at_exit: Any) -> None:
    with pytest.raises(ConfigurationError, match="flush_at_exit must be"):
        SenderThread(OperatingSystem(), flush_at_exit)


def test_waits_for_event_and_metadata() -> None:
    thread, event, metadata = SenderThread(OperatingSystem(), 0), OneTimeEvent(), Mock()
    assert not thread.wait(event, 0)
    event.set()
    assert thread.wait(event, None)
    thread.await_metadata(metadata, 3, 100.0)
    metadata.await_update.assert_called_once_with(3, 100.0)
