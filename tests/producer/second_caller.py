"""A second thread that sends records through the producer of a `TransactionalWriter`, one step at a time.

`send()` may take long, because it waits for metadata, memory or a user's serializer. Here the serializer of the second
caller's record pauses, so that anything may happen before the record is accepted or rejected. The thread runs only
while `step` waits for it, so a seed always replays the same run.
"""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable

from spark_kafka_sink.errors import KafkaSinkError
from spark_kafka_sink.producer.serializers import serialize_plain


class PausedValue:
    """A value whose serializer pauses before it calls `finish`, which returns the bytes or raises."""

    def __init__(self, pause: Callable[[], None], finish: Callable[[], bytes]) -> None:
        self._pause = pause
        self._finish = finish

    def serialize(self) -> bytes:
        self._pause()
        return self._finish()


def serialize_paused(topic: str, value: object) -> bytes | None:
    """Serialize a value for a producer that has a second caller."""
    return value.serialize() if isinstance(value, PausedValue) else serialize_plain(topic, value)


class SecondCaller:
    """Runs `send(value)` in a thread. The first step ends when the serializer pauses, the second with the call."""

    def __init__(self, send: Callable[[PausedValue], None], finish: Callable[[], bytes]) -> None:
        self._is_running = False
        self._ended = threading.Event()
        self._value = PausedValue(self._pause, finish)
        self._send = send
        self._error: BaseException | None = None
        self._may_run = threading.Semaphore(0)
        self._stopped = threading.Semaphore(0)
        self._thread = threading.Thread(target=self._run, name="second caller", daemon=True)
        self._thread.start()

    def is_done(self) -> bool:
        return self._ended.is_set()

    def step(self) -> None:
        """Let the thread run until it pauses or ends. Raise its exception, except for errors of the producer.

        Do nothing if the thread is running: its send() may be waiting for metadata while other writers act.
        """
        if self.is_done() or self._is_running:
            return
        self._is_running = True
        self._may_run.release()
        self._stopped.acquire()
        self._is_running = False
        if self.is_done():
            self._thread.join()
        if self._error is not None:
            raise self._error

    def _pause(self) -> None:
        self._stopped.release()
        self._may_run.acquire()

    def _run(self) -> None:
        self._may_run.acquire()
        try:
            with contextlib.suppress(KafkaSinkError):
                self._send(self._value)
        except BaseException as error:
            self._error = error
        finally:
            self._ended.set()
            self._stopped.release()
