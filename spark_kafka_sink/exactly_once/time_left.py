"""How much of the tasks' transaction timeout must be left when a batch is decided, and how long a decision may take.

    margin        so much is left of each task's transaction when the driver looks, or it does not decide
    decision      a third of that: so long may the driver's own transaction be open, which holds the decision, and so
                  long may its commit be asked for

A driver that stands still between its look and its commit finds that brokers have ended its own transaction by the
timeout: it has decided nothing. Brokers look for timed-out transactions every 10 seconds by default
(transaction.abort.timed.out.transaction.cleanup.interval.ms), and the last third is for the commit of the tasks'
transactions. A margin of less than 30 seconds has no room for all three.
"""

from __future__ import annotations

MARGIN_MS_MAX = 60_000
"""Or a quarter of the timeout, if that is less."""


def margin_ms(timeout_ms: int) -> int:
    return min(MARGIN_MS_MAX, timeout_ms // 4)


def decision_ms(timeout_ms: int) -> int:
    return margin_ms(timeout_ms) // 3
