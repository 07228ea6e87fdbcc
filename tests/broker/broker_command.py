"""The command `pykafka broker`, executed in the test's process."""

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
    monkeypatch: pytest.MonkeyPatch, arguments: list[str], use_broker: Callable[[EmbeddedBroker], None]
) -> int:
    """Run the command until `use_broker` has returned, and return its exit status.

    The command runs in the main thread, which handles signals; `use_broker` runs in another thread. The command ends by
    SIGTERM. Errors of `use_broker` are raised.
    """
    failures: list[BaseException] = []
    threads: list[threading.Thread] = []

    def use_and_terminate(broker: EmbeddedBroker) -> None:
        try:
            use_broker(broker)
        except BaseException as error:
            failures.append(error)
        finally:
            eventually(lambda: signal.getsignal(signal.SIGTERM) is not signal.SIG_IGN)
            os.kill(os.getpid(), signal.SIGTERM)

    embedded_broker = testing.embedded_broker

    def start_broker(*args: object, **kwargs: object) -> EmbeddedBroker:
        broker = embedded_broker(*args, **kwargs)  # type: ignore[arg-type]
        threads.append(threading.Thread(target=use_and_terminate, args=(broker,)))
        threads[0].start()
        return broker

    monkeypatch.setattr(testing, "embedded_broker", start_broker)
    with _restore_signal_handlers():
        status = main(["broker", "--port", "0", *arguments])
    for thread in threads:
        thread.join()
    for failure in failures:
        raise failure
    return status


@contextmanager
def _restore_signal_handlers() -> Iterator[None]:
    previous_handlers = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)}
    # A signal must not end the tests before the command has installed its own handlers.
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    try:
        yield
    finally:
        for number, handler in previous_handlers.items():
            signal.signal(number, handler)
