"""BufferPool: buffer.memory, handed out in turn.

The pool counts bytes; it does not own them. Everything that a producer holds from append to acknowledgement is charged
here before it exists: staged Arrow rows, the encoded form that they will take, and, with compression, the compressed
form. Whoever cannot be served waits in a queue, first come first served: freed bytes go to the head of the queue alone,
piece by piece, so that a large request cannot be starved by small ones behind it. A waiter that gives up hands its
pieces on to the next.

A MemoryLease is one reservation with several holders. The rows of one grouping are encoded into one Arrow buffer, and
many batches point into it: its memory cannot be used again before the last of them has let go. That is why the lease
returns its bytes only then, never bit by bit, and why a batch whose request may still sit in a socket's queue must not
let go, even if it has expired (CVE-2026-35554: memory reused under a request that was still being sent).

No time is read here except through `clock`, for the metrics; waiting itself is done by a lock with a timeout.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable

from spark_kafka_sink.errors import BufferExhaustedError, IllegalStateError, ProducerClosedError, RecordTooLargeError


class BufferPool:
    """The bound on a producer's memory. All methods may be called from any thread; everything is guarded by _lock."""

    def __init__(self, bytes_max: int, clock: Callable[[], float]) -> None:
        self.bytes_max = bytes_max
        self.wait_ms_total = 0.0
        self.exhausted_total = 0
        self._clock = clock
        self._lock = threading.Lock()
        self._free = bytes_max
        self._waiters: deque[_Waiter] = deque()
        self._closed = False

    def __repr__(self) -> str:
        return f"BufferPool({self._free} of {self.bytes_max} bytes free, {len(self._waiters)} waiting)"

    @property
    def free_bytes(self) -> int:
        """Bytes that nobody holds, counting what a waiter has gathered so far as held."""
        return self._free

    @property
    def waiters(self) -> int:
        """How many appends wait for memory: if any, the sender must not wait for linger.ms."""
        return len(self._waiters)

    def try_reserve(self, count: int) -> bool:
        """Take `count` bytes if they are free and nobody waits in front."""
        with self._lock:
            if self._closed:
                raise ProducerClosedError("The producer was closed.")
            if self._waiters or self._free < count:
                return False
            self._free -= count
            return True

    def reserve(self, count: int, block_ms: float, waiting: Callable[[], None] | None = None) -> None:
        """Take `count` bytes, waiting in turn for at most `block_ms`; `waiting` is called when the wait begins."""
        if count > self.bytes_max:
            raise RecordTooLargeError(
                f"{count} bytes are needed at once, but buffer.memory is {self.bytes_max}. Raise buffer.memory."
            )
        if self.try_reserve(count):
            return
        waiter = self._queue_up(count)
        started = self._clock()
        try:
            if waiting is not None:
                waiting()
            waiter.wait(block_ms)
        except BaseException:  # Ctrl-C: who is gone must not keep his place in the queue
            self._cancel(waiter)
            raise
        self._leave(waiter, block_ms, self._clock() - started)

    def release(self, count: int) -> None:
        """Give `count` bytes back, to the head of the queue first."""
        with self._lock:
            if self._free + count > self.bytes_max:
                raise IllegalStateError(f"{count} bytes came back to {self!r}, which did not miss them.")
            self._free += count
            self._serve()

    def close(self) -> None:
        """Wake all waiters with ProducerClosedError; what is reserved may still be released."""
        with self._lock:
            self._closed = True
            for waiter in self._waiters:
                waiter.wake()

    def _queue_up(self, count: int) -> _Waiter:
        with self._lock:
            if self._closed:
                raise ProducerClosedError("The producer was closed.")
            waiter = _Waiter(count)
            self._waiters.append(waiter)
            self._serve()
            return waiter

    def _cancel(self, waiter: _Waiter) -> None:
        with self._lock:
            if waiter.gathered < waiter.wanted:
                self._waiters.remove(waiter)
            self._free += waiter.gathered
            self._serve()

    def _leave(self, waiter: _Waiter, block_ms: float, waited_ms: float) -> None:
        with self._lock:
            self.wait_ms_total += waited_ms
            if waiter.gathered == waiter.wanted:
                if not self._closed:
                    return
            else:
                self._waiters.remove(waiter)
            self._free += waiter.gathered
            self._serve()
            if self._closed:
                raise ProducerClosedError("The producer was closed while this call waited for memory.")
            self.exhausted_total += 1
            free = self._free
        raise BufferExhaustedError(
            f"buffer.memory ({self.bytes_max} bytes) stayed full for max.block.ms ({block_ms:.0f} ms): {waiter.wanted} "
            f"bytes were needed, {free} are free. The brokers take less than is written."
        )

    def _serve(self) -> None:
        while self._waiters and self._free:
            head = self._waiters[0]
            given = min(self._free, head.wanted - head.gathered)
            head.gathered += given
            self._free -= given
            if head.gathered < head.wanted:
                return
            self._waiters.popleft()
            head.wake()


class _Waiter:
    """One blocked append, guarded by the pool's lock. It waits at a lock: an Event would make three of them."""

    __slots__ = ("_asleep", "gathered", "wanted")

    def __init__(self, wanted: int) -> None:
        self.wanted = wanted
        self.gathered = 0
        self._asleep = threading.Lock()
        self._asleep.acquire()

    def wait(self, block_ms: float) -> None:
        """Until it is woken, at most so long. Without the pool's lock."""
        self._asleep.acquire(timeout=max(0.0, block_ms) / 1000)

    def wake(self) -> None:
        """It may be done twice: by the close as well as by memory that comes."""
        if self._asleep.locked():
            self._asleep.release()


_GONE = "This memory went back to the pool before."


class MemoryLease:
    """Reserved bytes with several holders; they go back when the last holder lets go. Safe from any thread.

    The holders are counted by the length of a list, which is one step of the interpreter each way, where a number and
    its lock would be many. The first element says that it is the last to go.
    """

    __slots__ = ("_bytes", "_holders", "_lock", "_pool")

    def __init__(self, pool: BufferPool, count: int) -> None:
        """Take over `count` bytes that are already reserved in `pool`; the caller is the first holder."""
        self._pool = pool
        self._bytes = count
        self._holders = [True]
        self._lock = threading.Lock()  # guards _bytes

    @property
    def bytes(self) -> int:
        """What is still charged."""
        return self._bytes

    def hold(self, count: int = 1) -> None:
        """So many more holders. Only a holder may ask for them."""
        if not self._holders:
            raise IllegalStateError(_GONE)
        self._holders.extend((False,) * count)

    def let_go(self) -> None:
        """Stop being a holder; each holder does so once."""
        try:
            last = self._holders.pop()
        except IndexError:
            raise IllegalStateError(_GONE) from None
        if last:
            self.shrink_to(0)

    def shrink_to(self, count: int) -> None:
        """Give back what turned out not to be needed."""
        with self._lock:
            surplus = max(0, self._bytes - count)
            self._bytes -= surplus
        if surplus:
            self._pool.release(surplus)

    def carve(self, count: int) -> MemoryLease:
        """Move at most `count` of the bytes into a lease of their own."""
        with self._lock:
            taken = min(count, self._bytes)
            self._bytes -= taken
        return MemoryLease(self._pool, taken)
