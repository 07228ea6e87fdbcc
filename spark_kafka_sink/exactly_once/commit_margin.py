"""Time limits of a decision, derived from the transaction timeout of the tasks.

    commit margin        the time that must be left of each task's transaction when the driver checks it; with less time
                         left the driver does not decide
    decision timeout     a third of the margin: how long the driver's transaction with the decision may stay open, and
                         how long its commit may be retried

If a driver is suspended between the check and its commit, the brokers abort its transaction by the decision timeout, so
nothing is decided. The margin has three parts:

    1. the decision timeout
    2. the interval at which brokers look for transactions that timed out, 10 seconds by default
       (transaction.abort.timed.out.transaction.cleanup.interval.ms)
    3. the time to commit the tasks' transactions

A margin of less than 30 seconds has no room for all three.
"""

from __future__ import annotations

MAX_COMMIT_MARGIN_MS = 60_000
"""The commit margin is a quarter of the transaction timeout, and at most this."""


def compute_commit_margin_ms(timeout_ms: int) -> int:
    return min(MAX_COMMIT_MARGIN_MS, timeout_ms // 4)


def compute_decision_timeout_ms(timeout_ms: int) -> int:
    return compute_commit_margin_ms(timeout_ms) // 3
