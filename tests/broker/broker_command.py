"""`pykafka broker` in the test's own process: in the main thread, as signals want it, with the test in another."""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import pytest

from spark_kafka_sink import testing
from spark_kafka_sink.cli import main
from spark_kafka_sink.testing import EmbeddedBroker
from tests.waiting import eventually


def run_broker_command(
    monkeypatch: pytest.MonkeyPatch, arguments: list[str], meanwhile: Callable[[EmbeddedBroker], None]
) -> int:
    """Run the command and return its exit status. When `meanwhile` has returned, the process gets a SIGTERM."""
    failures: list[BaseException] = []
    threads: list[threading.Thread] = []

    def beside(broker: EmbeddedBroker) -> None:
        try:
            meanwhile(broker)
        except BaseException as error:
            failures.append(error)
        finally:
            eventually(lambda: signal.getsignal(signal.SIGTERM) is not signal.SIG_IGN)
            os.kill(os.getpid(), signal.SIGTERM)

    make = testing.embedded_broker

    def making(*given: object, **options: object) -> EmbeddedBroker:
        broker = make(*given, **options)  # type: ignore[arg-type]
        threads.append(threading.Thread(target=beside, args=(broker,)))
        threads[0].start()
        return broker

    monkeypatch.setattr(testing, "embedded_broker", making)
    with _signals_restored():
        status = main(["broker", "--port", "0", *arguments])
    for thread in threads:
        thread.join()
    for failure in failures:
        raise failure
    return status


@contextmanager
def _signals_restored() -> Iterator[None]:
    before = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)}
    # Between the broker's start and its own handlers a signal must not end the tests.
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
