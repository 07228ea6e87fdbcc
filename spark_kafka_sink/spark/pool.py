"""Producers that outlive a task.

A Python worker of Spark runs one task after the other, micro-batch after micro-batch. To connect, to authenticate and
to fetch metadata for each of them would cost more than a small task's data. So a producer is lent to a task, and goes
back when the task has ended well: the next task with the same options finds it warm. The rules:

- one task at a time: a producer that is lent is not in the pool, a second task gets one of its own;
- a producer whose task failed, was killed or interrupted is closed at once and never lent again;
- one that was not used for `idle_seconds` is closed by a thread that lives only while something is idle;
- the end of a worker waits for no producer: a task that has ended well has no record left, and those of others are not
  wanted;
- a forked child begins with an empty pool and a lock of its own: threads and sockets of its parent's producers are not
  the child's, and another thread of the parent may have held the lock just then.
"""

from __future__ import annotations

import contextlib
import os
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from typing import TypeAlias

import pyarrow as pa

from spark_kafka_sink.producer.producer import KafkaProducer

_CLOSE_SECONDS = 5.0

_new_producer = partial(KafkaProducer, flush_at_exit=0)
_Key: TypeAlias = tuple[tuple[str, str], ...]


@dataclass(frozen=True)
class _Idle:
    producer: KafkaProducer
    key: _Key
    until: float


class ProducerPool:
    """`_idle` is guarded by `_changed`; a producer is in it or lent, never both."""

    def __init__(
        self,
        make: Callable[[Mapping[str, str]], KafkaProducer] = _new_producer,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._make = make
        self._clock = clock
        self.begin_anew()

    def begin_anew(self) -> None:
        """Forget what is idle, without a look at the lock; for a forked child, which has one thread."""
        self._changed = threading.Condition()
        self._idle: list[_Idle] = []
        self._evictor: threading.Thread | None = None

    def __len__(self) -> int:
        """How many producers are idle."""
        with self._changed:
            return len(self._idle)

    @contextlib.contextmanager
    def lease(self, options: Mapping[str, str], idle_seconds: float) -> Iterator[KafkaProducer]:
        """A producer for one task. It returns to the pool only if the block ends without any exception."""
        key = tuple(sorted(options.items()))
        producer = self._take(key) or self._make(options)
        try:
            yield producer
        except BaseException:
            # GeneratorExit and KeyboardInterrupt too: a task that was killed. What it had not sent is not wanted.
            producer.close(timeout=0)
            raise
        self._put_back(_Idle(producer, key, self._clock() + idle_seconds))

    def evict(self, now: float) -> None:
        """Close the producers whose time is up."""
        with self._changed:
            expired = [idle for idle in self._idle if idle.until <= now]
            self._idle = [idle for idle in self._idle if idle.until > now]
        for idle in expired:
            idle.producer.close(timeout=_CLOSE_SECONDS)

    def close(self) -> None:
        """Close all that is idle."""
        self.evict(float("inf"))

    def _take(self, key: _Key) -> KafkaProducer | None:
        with self._changed:
            # The one used last is the one whose connections are most likely still open.
            for position in reversed(range(len(self._idle))):
                if self._idle[position].key == key:
                    return self._idle.pop(position).producer
        return None

    def _put_back(self, idle: _Idle) -> None:
        # Arrow keeps freed memory for the thread that had it; a worker without a task has no use for it.
        pa.default_memory_pool().release_unused()
        with self._changed:
            self._idle.append(idle)
            if self._evictor is None or not self._evictor.is_alive():
                self._evictor = threading.Thread(target=self._evict_until_empty, name="pykafka-pool", daemon=True)
                self._evictor.start()
            self._changed.notify()

    def _evict_until_empty(self) -> None:
        while True:
            self.evict(self._clock())
            with self._changed:
                if not self._idle:
                    # Under the lock, so that the next thread that puts one back sees that a new thread is needed.
                    self._evictor = None
                    return
                self._changed.wait(max(0.0, min(idle.until for idle in self._idle) - self._clock()))


POOL = ProducerPool()
"""The pool of this process."""
os.register_at_fork(after_in_child=POOL.begin_anew)
