"""BufferPool: counts the memory that a producer uses, and keeps it within buffer.memory.

The pool counts bytes but does not own the memory. All memory of a record, from append to acknowledgement, is reserved
here before it is allocated: the staged Arrow rows, their encoded form and, with compression, the compressed form.

A call that needs more than the free memory waits in a queue. While calls are waiting, freed memory goes only to the
call that has waited longest, so that small reservations cannot starve an earlier large one.

A MemoryLease is a reservation that several batches share. The encoder writes the records of many batches into one
buffer, and the lease owns that buffer until none of these batches needs it. Only then does the lease return its bytes
to the pool, so the pool counts exactly the memory in use. A batch must keep its lease while a socket may still be
reading its request, even if the batch has expired: in CVE-2026-35554, memory was reused while a request was still being
sent from it.

A single small batch with an unresponsive leader would keep a whole buffer alive. `is_sparse` identifies such leases.
When memory is short, the batches that still hold them are copied so that the buffer can be freed (batch_filler.py).
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Sequence
from typing import Protocol

from spark_kafka_sink.errors import BufferExhaustedError, IllegalStateError, ProducerClosedError, RecordTooLargeError
from spark_kafka_sink.producer.one_time_event import OneTimeEvent

_SPARSE_DIVISOR = 8
"""A lease is sparse if its holders need at most one eighth of its bytes. When memory is short, their records are
copied. Until the buffer is freed, these copies take additional memory, but at most an eighth of the buffer's size. With
a quarter instead of an eighth, copying took 4% of the CPU time at ten thousand partitions. With a sixteenth, almost
nothing was ever copied.
"""


class WaitForEvent(Protocol):
    """A function that waits for an event, and returns whether the event was set in time.

    A `timeout_ms` of None waits forever.
    """

    def __call__(self, event: OneTimeEvent, timeout_ms: float | None, /) -> bool: ...


class BufferPool:
    """The memory of one producer, limited to buffer.memory. All methods are thread-safe; `_lock` guards all fields."""

    def __init__(self, total_bytes: int, clock: Callable[[], float]) -> None:
        """Create a pool in which all bytes are free.

        `clock`: returns monotonic milliseconds, with which `total_wait_ms` is measured.
        """
        self.total_bytes = total_bytes
        self.total_wait_ms = 0.0  # total time for which calls have waited for memory
        self.exhausted_count = 0  # number of calls that raised BufferExhaustedError
        self._clock = clock
        self._lock = threading.Lock()
        self._free_bytes = total_bytes
        self._waiters: deque[_Waiter] = deque()  # in the order in which they are served
        self._is_closed = False

    def __repr__(self) -> str:
        return f"BufferPool({self._free_bytes} of {self.total_bytes} bytes free, {len(self._waiters)} waiting)"

    @property
    def free_bytes(self) -> int:
        """Number of bytes that are not reserved."""
        return self._free_bytes

    @property
    def waiter_count(self) -> int:
        """Number of calls that are waiting for memory. Unless it is 0, the sender must send without lingering."""
        return len(self._waiters)

    def try_reserve(self, nbytes: int) -> bool:
        """Reserve `nbytes` if they are free and no call is waiting for memory. Return whether they were reserved.

        Raise ProducerClosedError if the pool is closed.
        """
        with self._lock:
            if self._is_closed:
                raise ProducerClosedError("The producer was closed.")
            if self._waiters or self._free_bytes < nbytes:
                return False
            self._free_bytes -= nbytes
            return True

    def reserve(self, nbytes: int, max_block_ms: float, wait_for_event: WaitForEvent = OneTimeEvent.wait) -> None:
        """Reserve `nbytes`, waiting up to `max_block_ms` until they are free.

        Raise BufferExhaustedError if they do not become free in time, ProducerClosedError if the pool is closed, and
        RecordTooLargeError if the whole pool is smaller than `nbytes`.

        `wait_for_event`: waits for the event that wakes this call; tests and the accumulator replace the default.
        """
        if nbytes > self.total_bytes:
            raise RecordTooLargeError(
                f"{nbytes} bytes are needed at once, but buffer.memory is {self.total_bytes}. Increase buffer.memory."
            )
        if self.try_reserve(nbytes):
            return
        waiter = _Waiter(nbytes)
        started_ms = self._clock()
        try:
            with self._lock:
                self._waiters.append(waiter)
                self._serve_waiters()  # memory may have been released since try_reserve()
            wait_for_event(waiter.wake_event, max_block_ms)
        finally:
            with self._lock:
                if waiter in self._waiters:
                    self._waiters.remove(waiter)
                    self._serve_waiters()  # the calls behind this one may need less memory
                self.total_wait_ms += self._clock() - started_ms
        if self._is_closed:
            if waiter.is_served:  # the bytes were reserved shortly before the pool was closed
                self.release(nbytes)
            raise ProducerClosedError("The producer was closed while this call waited for memory.")
        if not waiter.is_served:
            with self._lock:
                self.exhausted_count += 1
            raise BufferExhaustedError(
                f"buffer.memory ({self.total_bytes} bytes) stayed full for {max_block_ms:.0f} ms, all that "
                f"max.block.ms left for this call: {nbytes} bytes were needed, {self.free_bytes} are free. The brokers "
                "accept records more slowly than they are written. Write more slowly, or increase max.block.ms."
            )

    def release(self, nbytes: int) -> None:
        """Return `nbytes` to the pool, where waiting calls may get them immediately.

        Raise IllegalStateError if fewer bytes are reserved.
        """
        with self._lock:
            if self._free_bytes + nbytes > self.total_bytes:
                raise IllegalStateError(f"{nbytes} bytes were released to {self!r}, but fewer are reserved.")
            self._free_bytes += nbytes
            self._serve_waiters()

    def close(self) -> None:
        """Wake all waiting calls, which then raise ProducerClosedError. Reserved bytes can still be released."""
        with self._lock:
            self._is_closed = True
            for waiter in self._waiters:
                waiter.wake_event.set()

    def _serve_waiters(self) -> None:
        """Reserve memory for waiting calls, longest wait first, and wake them. The caller must hold the lock."""
        while self._waiters and self._free_bytes >= self._waiters[0].nbytes:
            waiter = self._waiters.popleft()
            self._free_bytes -= waiter.nbytes
            waiter.is_served = True
            waiter.wake_event.set()


class _Waiter:
    """A `reserve` call that is waiting for memory. Guarded by the pool's lock."""

    __slots__ = ("is_served", "nbytes", "wake_event")

    def __init__(self, nbytes: int) -> None:
        self.nbytes = nbytes
        self.is_served = False  # whether the bytes are reserved for this call
        self.wake_event = OneTimeEvent()  # set when the bytes are reserved or the pool is closed


class MemoryLease:
    """Reserved bytes that several holders share, and that return to the pool when the last holder is removed.

    A holder is a batch, or a stage (a topic's staging buffer) from which batches are being filled. The methods are
    thread-safe, but `transfer_up_to` does not lock its target.
    """

    __slots__ = ("__weakref__", "_holders", "_lock", "_needed_bytes", "_pool", "_reserved_bytes", "buffer")

    def __init__(self, pool: BufferPool, nbytes: int) -> None:
        """Take over `nbytes` that are already reserved in `pool`. The new lease has no holders."""
        self._pool = pool
        self.buffer: memoryview | None = None  # shared by the holders; None before it is set and after its release
        self._lock = threading.Lock()  # guards the fields below
        self._reserved_bytes = nbytes
        self._needed_bytes = 0  # number of bytes that all holders together need
        self._holders: dict[object, int] = {}  # number of bytes that each holder needs

    @property
    def reserved_bytes(self) -> int:
        """Number of bytes that this lease still reserves in the pool."""
        return self._reserved_bytes

    @property
    def holders(self) -> list[object]:
        """The current holders, in the order in which they were added."""
        with self._lock:
            return list(self._holders)

    @property
    def is_sparse(self) -> bool:
        """Whether the holders need only a small part of the reserved bytes."""
        return 0 < self._needed_bytes * _SPARSE_DIVISOR <= self._reserved_bytes

    def add_holder(self, holder: object, nbytes: int) -> None:
        """Add a holder that needs `nbytes` of the reserved bytes."""
        with self._lock:
            self._holders[holder] = nbytes
            self._needed_bytes += nbytes

    def add_holders(self, holders: Sequence[object], sizes: Sequence[int]) -> None:
        """Add several holders. holders[i] needs sizes[i] of the reserved bytes."""
        with self._lock:
            self._holders.update(zip(holders, sizes, strict=True))
            self._needed_bytes += sum(sizes)

    def remove_holder(self, holder: object) -> None:
        """Remove a holder. If it was the last one, return all bytes to the pool. Idempotent."""
        with self._lock:
            self._needed_bytes -= self._holders.pop(holder, 0)
            if self._holders:
                return
            released_bytes, self._reserved_bytes, self.buffer = self._reserved_bytes, 0, None
        if released_bytes:
            self._pool.release(released_bytes)

    def create_empty(self) -> MemoryLease:
        """Create a lease on the same pool that reserves no bytes yet."""
        return MemoryLease(self._pool, 0)

    def transfer_up_to(self, nbytes: int, target: MemoryLease) -> None:
        """Move `nbytes`, or all reserved bytes if there are fewer, to another lease on the same pool.

        `target`: the other lease. This method does not lock it, so no other thread may use it yet.
        """
        with self._lock:
            moved_bytes = max(0, min(nbytes, self._reserved_bytes))
            # Keep this a single statement: an interrupt between two statements would lose bytes or count them twice.
            self._reserved_bytes, target._reserved_bytes = (
                self._reserved_bytes - moved_bytes,
                target._reserved_bytes + moved_bytes,
            )
