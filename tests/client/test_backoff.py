from __future__ import annotations

from random import Random

from spark_kafka_sink.client.backoff import ExponentialBackoff, SharedRetryBackoff


def test_backoff_doubles_up_to_maximum_with_jitter() -> None:
    backoff = ExponentialBackoff(100, 1_000, Random(1))
    for failures, expected in [(0, 100), (1, 200), (2, 400), (3, 800), (4, 1_000), (400, 1_000)]:
        waits = [backoff.compute_delay_ms(failures) for _ in range(200)]
        assert all(expected * 0.8 <= wait <= min(expected * 1.2, 1_000) for wait in waits)
        assert max(waits) - min(waits) > expected * 0.1, "without jitter all clients would reconnect at the same time"


def test_jitter_never_exceeds_maximum() -> None:
    backoff = ExponentialBackoff(900, 1_000, Random(1))
    assert all(backoff.compute_delay_ms(9) <= 1_000 for _ in range(200))


def test_backoff_is_constant_when_maximum_is_below_initial() -> None:
    backoff = ExponentialBackoff(500, 50, Random(1))
    assert {backoff.compute_delay_ms(failures) for failures in range(10)} == {50}


def test_backoff_of_zero_is_allowed() -> None:
    assert ExponentialBackoff(0, 0, Random(1)).compute_delay_ms(3) == 0


def test_same_random_numbers_give_same_backoffs() -> None:
    first, second = ExponentialBackoff(100, 1_000, Random(7)), ExponentialBackoff(100, 1_000, Random(7))
    assert [first.compute_delay_ms(n) for n in range(5)] == [second.compute_delay_ms(n) for n in range(5)]


def test_simultaneous_failures_share_one_retry_time() -> None:
    shared = SharedRetryBackoff(ExponentialBackoff(100, 10_000, Random(1)))
    together = {shared.next_attempt_ms(5_000, 2) for _ in range(10)}
    assert len(together) == 1
    assert 5_000 + 0.8 * 400 <= together.pop() <= 5_000 + 1.2 * 400
    assert shared.next_attempt_ms(5_000, 3) > 5_000 + 0.8 * 800
    assert len({shared.next_attempt_ms(now_ms, 2) - now_ms for now_ms in range(10)}) == 10
