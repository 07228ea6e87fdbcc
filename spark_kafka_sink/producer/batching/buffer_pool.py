"""BufferPool: the bound on a producer's memory (buffer.memory), handed out first come, first served.

The pool counts bytes; it does not own them. Everything that a producer holds from append to acknowledgement is charged
here before it exists: staged Arrow rows, the encoded form that they will take, and, with compression, the compressed
form. A call that cannot be served waits in a queue. While the queue is not empty, freed memory belongs to its head
alone, so that small requests cannot starve a large one before them.

A MemoryLease is one reservation that several batches share. The encoder writes the records of many batches into one
buffer, which is the lease's, until the last of these batches no longer needs it. Only then the lease returns its bytes:
memory that is charged is memory that is used. A batch whose request may still be read by a socket must not let
go, even if it has expired (CVE-2026-35554: memory was reused under a request that was still being sent).

A partition whose leader does not answer would hold its whole buffer with one small batch. `is_sparse` finds such
leases; the accumulator then copies the few batches that are left, so that the buffer can go (batch_filler.py).

The clock is read for the metrics only.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Sequence

from spark_kafka_sink.client.backoff import lock_timeout_seconds
from spark_kafka_sink.errors import BufferExhaustedError, IllegalStateError, ProducerClosedError, RecordTooLargeError

_SPARSE_SHARE = 8
"""A lease is sparse when its batches need at most this part of its bytes. Copying them costs at most as much memory
again for a moment, and without pressure nothing is copied. With a quarter, copies took 4 % of the CPU of ten thousand
partitions; with a sixteenth as good as nothing is copied."""


Wait = Callable[[threading.Event, "float | None"], bool]
"""Waits for an event, at most so many milliseconds or without a limit, and returns whether it is set."""


def _wait(event: threading.Event, timeout_ms: float | None) -> bool:
    return event.wait(None if timeout_ms is None else lock_timeout_seconds(timeout_ms))


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
        """Bytes that are not reserved."""
        return self._free

    @property
    def waiters(self) -> int:
        """Number of appends that wait for memory: if there is one, the sender must not wait for linger.ms."""
        return len(self._waiters)

    def try_reserve(self, count: int) -> bool:
        """Take `count` bytes if they are free and no other call waits."""
        with self._lock:
            if self._closed:
                raise ProducerClosedError("The producer was closed.")
            if self._waiters or self._free < count:
                return False
            self._free -= count
            return True

    def reserve(self, count: int, block_ms: float, wait: Wait = _wait) -> None:
        """Take `count` bytes, waiting in turn for at most `block_ms`."""
        if count > self.bytes_max:
            raise RecordTooLargeError(
                f"{count} bytes are needed at once, but buffer.memory is {self.bytes_max}. Raise buffer.memory."
            )
        if self.try_reserve(count):
            return
        waiter = _Waiter(count)
        started = self._clock()
        try:
            with self._lock:
                self._waiters.append(waiter)
                self._serve()
            wait(waiter.woken, block_ms)
        finally:
            with self._lock:
                if waiter in self._waiters:
                    self._waiters.remove(waiter)
                    self._serve()
                self.wait_ms_total += self._clock() - started
        if self._closed:
            if waiter.served:
                self.release(count)
            raise ProducerClosedError("The producer was closed while this call waited for memory.")
        if not waiter.served:
            with self._lock:
                self.exhausted_total += 1
            raise BufferExhaustedError(
                f"buffer.memory ({self.bytes_max} bytes) stayed full for {block_ms:.0f} ms, all that max.block.ms left "
                f"for this call: {count} bytes were needed, {self.free_bytes} are free. The brokers take less than is "
                "written."
            )

    def release(self, count: int) -> None:
        """Give `count` bytes back; calls that wait are served in turn."""
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
                waiter.woken.set()

    def _serve(self) -> None:
        while self._waiters and self._free >= self._waiters[0].count:
            waiter = self._waiters.popleft()
            self._free -= waiter.count
            waiter.served = True
            waiter.woken.set()


class _Waiter:
    """One blocked append, guarded by the pool's lock."""

    __slots__ = ("count", "served", "woken")

    def __init__(self, count: int) -> None:
        self.count = count
        self.served = False  # it has its bytes
        self.woken = threading.Event()  # it has its bytes, or the pool was closed


class MemoryLease:
    """Reserved bytes with several holders; they return to the pool when the last holder lets go. Any thread."""

    __slots__ = ("__weakref__", "_bytes", "_holders", "_lock", "_pool", "_used", "buffer")

    def __init__(self, pool: BufferPool, count: int) -> None:
        """Take over `count` bytes that are already reserved in `pool`. The lease has no holder yet."""
        self._pool = pool
        self.buffer: memoryview | None = None  # the memory that its holders share, if they share some
        self._lock = threading.Lock()  # guards the fields below
        self._bytes = count
        self._used = 0  # bytes that the present holders need
        self._holders: dict[object, int] = {}

    @property
    def bytes(self) -> int:
        """Bytes that are still charged."""
        return self._bytes

    @property
    def holders(self) -> list[object]:
        """The holders that have not let go yet."""
        with self._lock:
            return list(self._holders)

    @property
    def is_sparse(self) -> bool:
        """Do the holders need only a small part of what the lease keeps?"""
        return 0 < self._used * _SPARSE_SHARE <= self._bytes

    def hold(self, holder: object, count: int) -> None:
        """Add a holder that needs `count` of the bytes."""
        with self._lock:
            self._holders[holder] = count
            self._used += count

    def hold_each(self, holders: Sequence[object], counts: Sequence[int]) -> None:
        """Add holders; each needs its count of the bytes."""
        with self._lock:
            self._holders.update(zip(holders, counts, strict=True))
            self._used += sum(counts)

    def let_go(self, holder: object) -> None:
        """Remove a holder, if it is one; the last one returns all bytes."""
        with self._lock:
            self._used -= self._holders.pop(holder, 0)
            if self._holders:
                return
            surplus, self._bytes, self.buffer = self._bytes, 0, None
        if surplus:
            self._pool.release(surplus)

    def sibling(self) -> MemoryLease:
        """An empty lease on the same pool."""
        return MemoryLease(self._pool, 0)

    def move(self, count: int, other: MemoryLease) -> None:
        """Move at most `count` of the bytes into another lease."""
        with self._lock:
            taken = max(0, min(count, self._bytes))
            self._bytes, other._bytes = self._bytes - taken, other._bytes + taken
