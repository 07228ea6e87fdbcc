"""Time limits for the driver's decision to commit a batch, derived from the tasks' transaction timeout.

The driver decides a batch with a record that promises to commit all transactions of the batch's tasks. It writes this
record in a transaction of its own; the batch is decided when that transaction is committed. The promise can be kept
only if none of the tasks' transactions times out before it is committed. There are two limits:

    commit margin        how much time each task's transaction must have left when the driver checks it. Otherwise, the
                         driver does not decide
    decision timeout     a third of the margin. It limits how long the driver's own transaction, which contains the
                         decision, may stay open, and how long its commit may be retried

If the driver is suspended between the check and the commit of its own transaction, that transaction exceeds the
decision timeout and the brokers abort it, so nothing is decided. The driver's transactional id has this timeout while
its driver may decide batches. At other times (during a start; after an abort, a hand-over or `pykafka transactions`),
it has `timeout_marks.FENCING_TIMEOUT_MS`, which is longer than the decision timeout if the tasks' timeout is less than
a minute. The margin has to cover three things:

    1. the decision timeout
    2. the interval at which brokers look for timed-out transactions, 10 seconds by default
       (transaction.abort.timed.out.transaction.cleanup.interval.ms)
    3. the time needed to commit the tasks' transactions

A margin of less than 30 seconds is too short to cover all three.
"""

from __future__ import annotations

MAX_COMMIT_MARGIN_MS = 60_000
"""Upper limit of the commit margin, which is otherwise a quarter of the transaction timeout."""


def compute_commit_margin_ms(timeout_ms: int) -> int:
    """Return how much time a task's transaction must have left for the driver to decide the batch.

    `timeout_ms`: the transaction timeout of the task.
    """
    return min(MAX_COMMIT_MARGIN_MS, timeout_ms // 4)


def compute_decision_timeout_ms(timeout_ms: int) -> int:
    """Return how long the driver's own transaction, which contains the decision, may stay open.

    `timeout_ms`: the transaction timeout of the tasks.
    """
    return compute_commit_margin_ms(timeout_ms) // 3
