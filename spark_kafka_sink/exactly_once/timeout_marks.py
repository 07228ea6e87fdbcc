"""Mark the state of a transactional id in the last three digits of its transaction timeout.

For each transactional id, brokers store two values that a client sends and that every client can read: the epoch and
the timeout. A mark is therefore set in the same request as the epoch, and survives the loss of the decision log. There
are two marks:

    999   a driver id (the transactional id of a query's driver) that has claimed its prefix, which means that it has
          written to the log. If the log contains no claim, the log was deleted or emptied
    998   a task id that a driver has fenced. Only version 1 transactions need this mark. In version 2, the driver ends
          the id's transaction, and the id is no longer listed

A field in the log entry could not replace 999: a deleted log has no fields, and the next driver would write a decided
batch again (test_deleted_log_causes_duplicate_batch_without_the_claim_mark). The id's transaction state is not enough
either, because it is EMPTY both after a claim and after a start that died before its claim. Without 998, each
micro-batch of a job with 300 tasks would fence 300 ids again
(test_each_batch_fences_ids_of_version_1_again_without_the_mark).

A marked timeout is about as long as the id's transactions need, and never much shorter. A coordinator waits at most for
the id's timeout until its replicas have stored the id's state. If this wait times out, the coordinator retries (on an
idle cluster, half a minute later), and responds with CONCURRENT_TRANSACTIONS until then. A timeout of 1 ms blocked ids
for minutes.
"""

from __future__ import annotations

from spark_kafka_sink.exactly_once.commit_margin import compute_decision_timeout_ms

# The last three digits of a timeout. Brokers store marked timeouts, so a change affects ids that are already marked.
_CLAIMED_MARK = 999
_FENCED_MARK = 998
_MAX_UNMARKED_REMAINDER = 997

_MAX_FENCED_TIMEOUT_MS = 5_000
"""The limit for the timeout of a fenced task id. It is low, because only the driver uses it, for a moment."""


def remove_timeout_mark(timeout_ms: int) -> int:
    """Return a timeout that no reader takes for marked. It is at most two milliseconds shorter than `timeout_ms`."""
    return timeout_ms - timeout_ms % 1000 + min(timeout_ms % 1000, _MAX_UNMARKED_REMAINDER)


def compute_claimed_timeout_ms(task_timeout_ms: int) -> int:
    """Return the transaction timeout for a driver id, with the mark for a driver that has claimed its prefix.

    It is about as long as the driver's own transactions may take, which contain its decisions.

    `task_timeout_ms`: the transaction timeout of the driver's tasks, without a mark.
    """
    return _add_mark(compute_decision_timeout_ms(task_timeout_ms), _CLAIMED_MARK, task_timeout_ms)


def compute_fenced_timeout_ms(task_timeout_ms: int) -> int:
    """Return the transaction timeout for a task id, with the mark for an id that a driver has fenced.

    `task_timeout_ms`: the task's transaction timeout.
    """
    # A timeout shorter than the mark is raised to the mark, because an id without a mark would be fenced again with
    # each batch. A longer timeout does no harm: no task begins a transaction with the marked timeout.
    return max(_add_mark(min(task_timeout_ms, _MAX_FENCED_TIMEOUT_MS), _FENCED_MARK, task_timeout_ms), _FENCED_MARK)


def _add_mark(timeout_ms: int, mark: int, task_timeout_ms: int) -> int:
    """Return a timeout whose last three digits are the mark, and which is less than two seconds below `timeout_ms`.

    Return the mark itself for a very short timeout. Return `task_timeout_ms`, without a mark, if the marked timeout would be
    longer, because brokers might reject it.
    """
    marked_ms = max(0, timeout_ms // 1000 - 1) * 1000 + mark
    return marked_ms if marked_ms <= task_timeout_ms else task_timeout_ms


def is_marked_claimed(timeout_ms: int) -> bool:
    """Return whether this is the timeout of a driver id that has claimed its prefix."""
    return timeout_ms % 1000 == _CLAIMED_MARK


def is_marked_fenced(timeout_ms: int) -> bool:
    """Return whether this is the timeout of a task id that a driver has fenced."""
    return timeout_ms % 1000 == _FENCED_MARK
