"""BufferPool: reservations never exceed the pool, waiting calls are served in turn, and all memory is released."""

from __future__ import annotations

import random
import threading
from collections.abc import Callable

import pytest

from spark_kafka_sink.errors import BufferExhaustedError, IllegalStateError, ProducerClosedError, RecordTooLargeError
from spark_kafka_sink.producer.batching.buffer_pool import BufferPool, MemoryLease, WaitForEvent
from spark_kafka_sink.producer.one_time_event import OneTimeEvent
from tests.producer.batching.accumulator_harness import Clock
from tests.waiting import WAIT_TIMEOUT_SECONDS

LONG_MS = 600_000.0


def wait_after(action: Callable[[], None]) -> WaitForEvent:
    """Build a wait function that runs an action before it waits."""

    def wait(event: OneTimeEvent, timeout_ms: float | None) -> bool:
        action()
        return event.wait(None if timeout_ms is None else timeout_ms / 1000)

    return wait


class Reserver(threading.Thread):
    """Thread that reserves bytes, and signals when it begins to wait."""

    def __init__(self, pool: BufferPool, count: int, block_ms: float = LONG_MS) -> None:
        super().__init__(daemon=True)
        self.error: Exception | None = None
        self.waiting = threading.Event()
        self._pool, self._count, self._block_ms = pool, count, block_ms
        self.start()

    def run(self) -> None:
        try:
            self._pool.reserve(self._count, self._block_ms, wait_after(self.waiting.set))
        except Exception as error:
            self.error = error
        self.waiting.set()


def start_waiting(pool: BufferPool, count: int) -> Reserver:
    reserver = Reserver(pool, count)
    assert reserver.waiting.wait(WAIT_TIMEOUT_SECONDS)
    return reserver


def create_pool(count: int) -> BufferPool:
    return BufferPool(count, Clock())


def test_reserved_bytes_are_unavailable_until_released() -> None:
    pool = create_pool(100)
    pool.reserve(60, 0)
    assert (pool.free_bytes, pool.waiter_count) == (40, 0)
    assert not pool.try_reserve(41)
    assert pool.try_reserve(40)
    pool.release(100)
    assert pool.free_bytes == 100


def test_rejects_reservation_larger_than_pool_and_names_the_option() -> None:
    with pytest.raises(RecordTooLargeError, match=r"buffer\.memory"):
        create_pool(100).reserve(101, LONG_MS)


def test_waiting_call_is_served_when_enough_bytes_are_released() -> None:
    pool = create_pool(100)
    pool.reserve(100, 0)
    reserver = start_waiting(pool, 50)
    pool.release(20)
    pool.release(20)
    assert reserver.is_alive()
    pool.release(20)
    reserver.join(WAIT_TIMEOUT_SECONDS)
    assert (reserver.error, pool.free_bytes) == (None, 10)


def test_serves_waiting_calls_in_order() -> None:
    pool = create_pool(100)
    pool.reserve(100, 0)
    large, small = start_waiting(pool, 90), start_waiting(pool, 10)
    pool.release(50)
    assert large.is_alive()
    assert small.is_alive()
    assert not pool.try_reserve(1)
    pool.release(40)
    large.join(WAIT_TIMEOUT_SECONDS)
    assert small.is_alive()
    pool.release(10)
    small.join(WAIT_TIMEOUT_SECONDS)
    assert (large.error, small.error, pool.free_bytes) == (None, None, 0)


def test_timeout_of_reservation_names_the_options() -> None:
    pool = create_pool(100)
    pool.reserve(95, 0)
    with pytest.raises(BufferExhaustedError, match=r"buffer\.memory \(100 bytes\).*max\.block\.ms"):
        pool.reserve(10, 0)
    assert (pool.free_bytes, pool.waiter_count, pool.exhausted_count) == (5, 0, 1)


def test_timeout_of_first_waiter_serves_the_next() -> None:
    pool = create_pool(100)
    pool.reserve(100, 0)
    impatient = Reserver(pool, 90, block_ms=1)
    patient = start_waiting(pool, 30)
    pool.release(30)
    impatient.join(WAIT_TIMEOUT_SECONDS)
    assert isinstance(impatient.error, BufferExhaustedError)
    patient.join(WAIT_TIMEOUT_SECONDS)
    assert (patient.error, pool.free_bytes) == (None, 0)


def test_interrupted_wait_leaves_no_waiter_and_no_reserved_bytes() -> None:
    def interrupt() -> None:
        raise KeyboardInterrupt

    pool = create_pool(100)
    pool.reserve(70, 0)
    with pytest.raises(KeyboardInterrupt):
        pool.reserve(50, LONG_MS, wait_after(interrupt))
    assert (pool.free_bytes, pool.waiter_count) == (30, 0)


def test_close_ends_waits_and_rejects_new_ones_but_accepts_releases() -> None:
    pool = create_pool(100)
    pool.reserve(90, 0)
    reservers = [start_waiting(pool, 50), start_waiting(pool, 50)]
    pool.close()
    for reserver in reservers:
        reserver.join(WAIT_TIMEOUT_SECONDS)
        assert isinstance(reserver.error, ProducerClosedError)
    with pytest.raises(ProducerClosedError):
        pool.reserve(1, LONG_MS)
    with pytest.raises(ProducerClosedError):
        pool.try_reserve(1)
    pool.release(90)
    assert pool.free_bytes == 100


def test_reserves_bytes_released_just_before_the_wait(monkeypatch: pytest.MonkeyPatch) -> None:
    pool = create_pool(100)
    monkeypatch.setattr(pool, "try_reserve", lambda *_: False)  # as if another thread released the bytes afterwards
    pool.reserve(60, 0)
    assert (pool.free_bytes, pool.waiter_count) == (40, 0)


def test_releases_bytes_served_while_pool_was_closed() -> None:
    pool = create_pool(100)
    pool.reserve(90, 0)

    def serve_and_close() -> None:
        pool.release(90)
        pool.close()

    with pytest.raises(ProducerClosedError):
        pool.reserve(50, LONG_MS, wait_after(serve_and_close))
    assert pool.free_bytes == 100


def test_rejects_release_of_bytes_that_were_never_reserved() -> None:
    with pytest.raises(IllegalStateError):
        create_pool(100).release(1)


def test_measures_wait_time_with_the_clock() -> None:
    clock = Clock()
    pool = BufferPool(100, clock)
    pool.reserve(100, 0)

    def release_later() -> None:
        clock.now += 250
        pool.release(100)

    pool.reserve(10, LONG_MS, wait_after(release_later))
    assert pool.total_wait_ms == 250


def test_pool_may_exceed_32_bits() -> None:
    pool = create_pool(2**40)
    pool.reserve(2**39, 0)
    assert pool.free_bytes == 2**39


def test_concurrent_reservations_and_releases_lose_no_bytes() -> None:
    pool = create_pool(1000)
    errors: list[Exception] = []

    def reserve_and_release(seed: int) -> None:
        random_numbers = random.Random(seed)
        for _ in range(300):
            count = random_numbers.choice((1, 7, 400, 1000))
            try:
                pool.reserve(count, LONG_MS)
            except Exception as error:
                errors.append(error)
                return
            pool.release(count)

    threads = [threading.Thread(target=reserve_and_release, args=(seed,)) for seed in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(WAIT_TIMEOUT_SECONDS)
    assert (errors, pool.free_bytes, pool.waiter_count) == ([], 1000, 0)


def create_lease(pool: BufferPool, count: int) -> MemoryLease:
    pool.reserve(count, 0)
    return MemoryLease(pool, count)


def test_lease_releases_all_bytes_with_its_last_holder() -> None:
    pool = create_pool(100)
    lease = create_lease(pool, 60)
    lease.add_holder("first", 40)
    lease.add_holder("second", 20)
    assert pool.free_bytes == 40
    lease.remove_holder("second")
    assert pool.free_bytes == 40
    lease.remove_holder("first")
    assert pool.free_bytes == 100


def test_concurrent_removal_of_holders_releases_bytes_once() -> None:
    pool = create_pool(100)
    lease = create_lease(pool, 80)
    for holder in range(4_001):
        lease.add_holder(holder, 0)
    start_barrier = threading.Barrier(4)

    def remove_holder(first: int) -> None:
        start_barrier.wait(WAIT_TIMEOUT_SECONDS)
        for holder in range(first, first + 1_000):
            lease.remove_holder(holder)

    threads = [threading.Thread(target=remove_holder, args=(1_000 * i,)) for i in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(WAIT_TIMEOUT_SECONDS)
    assert (pool.free_bytes, lease.reserved_bytes) == (20, 80)
    lease.remove_holder(4_000)
    assert (pool.free_bytes, lease.reserved_bytes) == (100, 0)


def test_removing_holder_twice_releases_bytes_once() -> None:
    pool = create_pool(100)
    lease = create_lease(pool, 80)
    lease.add_holder("first", 40)
    lease.add_holder("second", 40)
    lease.remove_holder("first")
    lease.remove_holder("first")
    assert (pool.free_bytes, lease.holders) == (20, ["second"])
    lease.remove_holder("second")
    lease.remove_holder("second")
    assert pool.free_bytes == 100


def test_transferred_bytes_are_released_with_the_other_lease() -> None:
    pool = create_pool(100)
    lease = create_lease(pool, 80)
    lease.add_holder("batch", 80)
    compressed = lease.create_empty()
    compressed.add_holder("batch", 30)
    lease.transfer_up_to(30, compressed)
    lease.remove_holder("batch")
    assert (pool.free_bytes, compressed.reserved_bytes) == (70, 30)
    compressed.remove_holder("batch")
    assert pool.free_bytes == 100


def test_transfers_at_most_the_reserved_bytes() -> None:
    pool = create_pool(100)
    small = create_lease(pool, 10)
    other = small.create_empty()
    small.transfer_up_to(50, other)
    assert (small.reserved_bytes, other.reserved_bytes) == (0, 10)


@pytest.mark.parametrize(("used", "sparse"), [(100, False), (13, False), (12, True), (1, True), (0, False)])
def test_lease_is_sparse_when_holders_need_at_most_an_eighth(used: int, sparse: bool) -> None:
    lease = create_lease(create_pool(100), 100)
    lease.add_holder("batch", used)
    assert lease.is_sparse is sparse
