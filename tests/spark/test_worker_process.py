"""Process-level tuning that shortens small writes, and its side effects that must not occur."""

from __future__ import annotations

import gc
import os
import pickle
import socket
import sys
import weakref
from collections.abc import Iterator
from contextlib import ExitStack, closing

import pyarrow as pa
import pytest
from pyspark.sql import SparkSession

from spark_kafka_sink.producer.column_plan import ColumnPlan
from spark_kafka_sink.spark import worker_process
from spark_kafka_sink.spark.datasource import KafkaDataSource
from spark_kafka_sink.spark.options.parse import parse_options
from spark_kafka_sink.spark.worker_process import (
    CALLS_PER_ROUND,
    FREEZES_PER_ROUND,
    set_first_quickack,
    update_gc_freeze,
)
from spark_kafka_sink.spark.writer import KafkaBatchWriter

QUICKACK = getattr(socket, "TCP_QUICKACK", 0)
linux = pytest.mark.skipif(not QUICKACK, reason="only Linux has TCP_QUICKACK")


class Node:
    """A reference cycle, which only the garbage collector can free."""

    def __init__(self) -> None:
        self.itself = self


@pytest.fixture
def reused_worker(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setenv("SPARK_REUSE_WORKER", "1")
    worker_process.reset_gc_freeze_round()
    gc.unfreeze()
    gc.collect()
    yield
    gc.unfreeze()
    worker_process.reset_gc_freeze_round()


def test_first_call_hides_existing_objects(reused_worker: None) -> None:
    before = len(gc.get_objects())
    update_gc_freeze()
    assert len(gc.get_objects()) < before / 10


def test_second_call_hides_objects_of_the_first_task(reused_worker: None) -> None:
    update_gc_freeze()
    late = [Node() for _ in range(1_000)]  # like the objects of pandas, which a task imports
    update_gc_freeze()
    assert not any(value is late for value in gc.get_objects())


def test_stops_freezing_after_few_tasks(reused_worker: None) -> None:
    for _ in range(FREEZES_PER_ROUND):
        update_gc_freeze()
    hidden = gc.get_freeze_count()
    more = [Node() for _ in range(1_000)]
    for _ in range(FREEZES_PER_ROUND, CALLS_PER_ROUND - 1):
        update_gc_freeze()
    assert gc.get_freeze_count() <= hidden
    del more


def test_garbage_of_user_code_is_finally_collected(reused_worker: None) -> None:
    left = Node()
    is_alive = weakref.ref(left)
    update_gc_freeze()
    del left
    for _ in range(CALLS_PER_ROUND - 2):
        update_gc_freeze()
        assert is_alive() is not None
    update_gc_freeze()
    gc.collect()
    assert is_alive() is None


def test_freezes_again_after_unfreezing(reused_worker: None) -> None:
    for _ in range(CALLS_PER_ROUND):
        update_gc_freeze()
    assert gc.get_freeze_count() == 0
    update_gc_freeze()
    assert gc.get_freeze_count() > 0


def test_does_not_freeze_in_process_that_spark_does_not_reuse(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("SPARK_REUSE_WORKER", raising=False)
    update_gc_freeze()
    assert gc.get_freeze_count() == 0


def test_every_entry_point_of_spark_freezes_first(reused_worker: None, monkeypatch: pytest.MonkeyPatch) -> None:
    """Entry points: create the source or plan, commit a stream's batch, commit a job, and run a task."""
    writer = KafkaBatchWriter(parse_options({"kafka.bootstrap.servers": "a:1", "topic": "t"}), ColumnPlan(value=0))
    looks: list[bool] = []
    monkeypatch.setattr(worker_process, "FREEZES_PER_ROUND", 4)
    monkeypatch.setattr(gc, "freeze", lambda: looks.append(True))
    source = KafkaDataSource({})
    times = [len(looks)]
    for use in (lambda: pickle.loads(pickle.dumps(source)), lambda: writer.commit([]), lambda: writer.write(iter([]))):
        use()
        times.append(len(looks))
    assert times == [1, 2, 3, 4]


def connected(stack: ExitStack) -> socket.socket:
    """Connect two sockets on this machine whose acknowledgements are delayed. Return one of them."""
    listener = stack.enter_context(socket.create_server(("127.0.0.1", 0)))
    client = stack.enter_context(socket.create_connection(listener.getsockname()))
    stack.enter_context(closing(listener.accept()[0]))
    client.setsockopt(socket.IPPROTO_TCP, QUICKACK, 0)
    return client


def acknowledges_at_once(connection: socket.socket) -> int:
    return connection.getsockopt(socket.IPPROTO_TCP, QUICKACK)


@linux
def test_sets_quickack_on_first_connection_only() -> None:
    with ExitStack() as stack:
        first, other = connected(stack), connected(stack)
        set_first_quickack([first.fileno(), other.fileno()])
        assert [acknowledges_at_once(sock) for sock in (first, other)] == [1, 0]


@linux
def test_skips_descriptors_that_are_no_connections_and_keeps_them_open() -> None:
    with ExitStack() as stack:
        unix, its_peer = socket.socketpair()
        datagrams = socket.socket(type=socket.SOCK_DGRAM)
        listener = socket.create_server(("127.0.0.1", 0))
        pipe = os.pipe()
        for sock in (unix, its_peer, datagrams, listener):
            stack.enter_context(sock)
        for descriptor in pipe:
            stack.callback(os.close, descriptor)
        connection = connected(stack)
        others = [unix.fileno(), datagrams.fileno(), listener.fileno(), *pipe]
        set_first_quickack([9_999_999, *others, connection.fileno()])
        assert acknowledges_at_once(connection) == 1
        assert [os.fstat(descriptor).st_ino > 0 for descriptor in others] == [True] * len(others)
        unix.sendall(b"still open")
        assert its_peer.recv(100) == b"still open"


@linux
def test_task_sets_quickack_on_jvm_connection_only(spark: SparkSession) -> None:
    def look(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        option = (socket.IPPROTO_TCP, socket.TCP_QUICKACK)
        frame = sys._getframe()
        while not (frame.f_code.co_name == "worker" and "sock" in frame.f_locals):
            assert frame.f_back is not None
            frame = frame.f_back
        jvm: socket.socket = frame.f_locals["sock"]
        with (
            socket.create_server(("127.0.0.1", 0)) as listener,
            socket.create_connection(listener.getsockname()) as users,
        ):
            for each in (jvm, users):
                each.setsockopt(*option, 0)
            worker_process.disable_delayed_ack()
            seen = [jvm.getsockopt(*option), users.getsockopt(*option)]
            seen.append(jvm.getblocking())
        for batch in batches:
            yield pa.record_batch({"id": [int(number) for number in seen[: batch.num_rows]]})

    assert [row.id for row in spark.range(0, 3, 1, 1).mapInArrow(look, "id long").collect()] == [1, 0, 1]


@linux
def test_default_timeout_of_user_does_not_affect_pysparks_connection(monkeypatch: pytest.MonkeyPatch) -> None:
    with ExitStack() as stack:
        connection = connected(stack)
        monkeypatch.setattr(os, "listdir", lambda _: [str(connection.fileno())])
        socket.setdefaulttimeout(60)
        stack.callback(socket.setdefaulttimeout, None)
        worker_process.disable_delayed_ack()
        assert os.get_blocking(connection.fileno())


def test_worker_with_unix_socket_searches_no_connection(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PYTHON_UNIX_DOMAIN_ENABLED", "true")
    monkeypatch.setattr(os, "listdir", lambda _: pytest.fail("looked"))
    worker_process.disable_delayed_ack()
