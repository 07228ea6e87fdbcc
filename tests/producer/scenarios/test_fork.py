"""Producers of a forked child work, whichever locks the parent's threads held at the fork.

A forked child has one thread. A lock that another thread of the parent held at the fork stays locked in the child
forever unless it is recreated. So no module of the package may have a lock that all producers share.
"""

from __future__ import annotations

import importlib
import logging
import os
import pkgutil
import select
import signal
import threading
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import ModuleType
from typing import Any

import numpy as np
import pytest

import spark_kafka_sink
from spark_kafka_sink.exactly_once import clients
from spark_kafka_sink.exactly_once.clients import create_client
from spark_kafka_sink.network.security import client_mechanisms
from spark_kafka_sink.network.security.oidc import OidcConfig, TokenSource
from spark_kafka_sink.producer.calls import StoredRange
from spark_kafka_sink.producer.config import ProducerConfig
from spark_kafka_sink.producer.futures import RecordFutures, SendFuture
from spark_kafka_sink.producer.producer import KafkaProducer
from spark_kafka_sink.producer.record import ProducerRecord
from spark_kafka_sink.spark import distribution
from spark_kafka_sink.spark.pool import PRODUCER_POOL, lease_producer
from spark_kafka_sink.testing import embedded_broker
from tests.fake_system import FakeSystem
from tests.producer.virtual_time import create_simulated_producer, wait_for_result
from tests.simulated_cluster import SimulatedCluster
from tests.waiting import WAIT_TIMEOUT_SECONDS

LOCKS = (type(threading.Lock()), type(threading.RLock()), threading.Condition, threading.Semaphore, threading.Event)
FORKS = 30


def modules() -> list[ModuleType]:
    names = [module.name for module in pkgutil.walk_packages(spark_kafka_sink.__path__, "spark_kafka_sink.")]
    return [importlib.import_module(name) for name in names]


def shared_locks() -> Iterator[tuple[str, object]]:
    """Find the locks that exist once per process: in modules, and in the objects that modules hold."""
    for module in modules():
        for name, value in vars(module).items():
            if isinstance(value, LOCKS):
                yield f"{module.__name__}.{name}", value
            elif isinstance(value, logging.Handler):
                pass  # logging recreates the locks of its handlers
            elif type(value).__module__.startswith("spark_kafka_sink"):
                for attribute, part in getattr(value, "__dict__", {}).items():
                    if isinstance(part, LOCKS):
                        yield f"{module.__name__}.{name}.{attribute}", part


def in_child(work: Callable[[], bool]) -> bool:
    """Fork, and return whether `work` returned true in the child. A child that hangs is killed."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # Python 3.12+ warns about forks beside threads
        child = os.fork()
    if child == 0:
        code = 1
        try:
            code = 0 if work() else 1
        finally:
            os._exit(code)
    ended = os.pidfd_open(child)
    if not select.select([ended], [], [], WAIT_TIMEOUT_SECONDS)[0]:
        os.kill(child, signal.SIGKILL)
    os.close(ended)
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0


@contextmanager
def lock_held_by_thread(lock: threading.Condition | threading.Lock) -> Iterator[None]:
    """Hold the lock in another thread while the block runs."""
    acquired, release = threading.Event(), threading.Event()

    def hold() -> None:
        with lock:
            acquired.set()
            release.wait()

    thread = threading.Thread(target=hold)
    thread.start()
    acquired.wait()
    try:
        yield
    finally:
        release.set()
        thread.join()


def write_in_virtual_time() -> bool:
    cluster = SimulatedCluster(FakeSystem(latency_ms=1), topics={"t": 1})
    producer = create_simulated_producer(cluster)
    stored = wait_for_result(producer, producer.send(ProducerRecord("t", b"v"))).offset == 0
    producer.close()
    return stored


RECREATED_LOCKS = (".PRODUCER_POOL.", ".IDLE_DRIVER_CLIENTS.", "._idle_clients.")
"""Parts of the names of locks that a child recreates; see the tests below."""


def test_all_module_locks_are_recreated_in_forked_child() -> None:
    assert [name for name, _ in shared_locks() if not any(part in name for part in RECREATED_LOCKS)] == []


@pytest.mark.parametrize("idle_clients", [clients.IDLE_DRIVER_CLIENTS, distribution._idle_clients])
def test_forked_child_has_own_clients_while_thread_of_parent_was_sending_requests(idle_clients: Any) -> None:
    config = ProducerConfig.parse({"bootstrap.servers": "127.0.0.1:9"}).client_config()

    def lease_client() -> bool:
        with idle_clients.lease("a key", lambda: create_client(config), 60) as client:
            return client is not None

    with lock_held_by_thread(idle_clients._condition):
        assert in_child(lease_client)


def test_forked_child_has_empty_pool_although_parents_pool_was_locked() -> None:
    def lease_client() -> bool:
        assert len(PRODUCER_POOL) == 0
        with lease_producer(PRODUCER_POOL, {"bootstrap.servers": "127.0.0.1:9"}, idle_seconds=60):
            pass
        return len(PRODUCER_POOL) == 1

    with lease_producer(PRODUCER_POOL, {"bootstrap.servers": "127.0.0.1:9"}, idle_seconds=60):
        pass
    try:
        with lock_held_by_thread(PRODUCER_POOL._condition):
            assert in_child(lease_client)
        assert len(PRODUCER_POOL) == 1
    finally:
        PRODUCER_POOL.close()


def test_forked_child_requests_own_tokens_while_thread_of_parent_was_requesting() -> None:
    """A token source's lock is held while a thread waits for the identity provider."""
    client_mechanisms.clear_token_sources()  # left by earlier tests
    client_mechanisms._token_sources["endpoint"] = TokenSource(OidcConfig("https://localhost/token", "id", "secret"))
    try:
        assert in_child(lambda: not client_mechanisms._token_sources)
        assert len(client_mechanisms._token_sources) == 1
    finally:
        client_mechanisms.clear_token_sources()


def test_producer_of_forked_child_writes_over_the_network() -> None:
    with embedded_broker(topics={"t": 1}) as broker:
        options = {"bootstrap.servers": broker.bootstrap_servers}

        def write() -> bool:
            with KafkaProducer(options) as producer:
                return producer.send(ProducerRecord("t", b"child")).result(WAIT_TIMEOUT_SECONDS).offset >= 0

        with KafkaProducer(options) as parents:
            assert parents.send(ProducerRecord("t", b"parent")).result(WAIT_TIMEOUT_SECONDS).offset == 0
            assert in_child(write)
            assert parents.send(ProducerRecord("t", b"parent")).result(WAIT_TIMEOUT_SECONDS).offset == 2


def test_forked_child_completes_futures_while_threads_of_parent_complete_theirs() -> None:
    """When all futures shared one lock, a fifth of the children hung."""
    stop = threading.Event()

    def complete_futures() -> bool:
        call = RecordFutures("t")
        call.set_record_fields(np.zeros(1, np.int64), np.zeros(1, np.int32), np.zeros(1, np.int32))
        future = SendFuture(call, 0)
        call.complete_rows(np.zeros(1, np.int64), [StoredRange(0, 1, 0, 0, -1)], 1)
        return future.result(0).offset == 0

    def be_busy() -> None:
        while not stop.is_set():
            complete_futures()

    thread = threading.Thread(target=be_busy)
    thread.start()
    try:
        assert in_child(write_in_virtual_time)
        assert all(in_child(complete_futures) for _ in range(FORKS))
    finally:
        stop.set()
        thread.join()
