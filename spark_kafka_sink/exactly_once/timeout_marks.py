"""Mark the state of a transactional id in the last three digits of its transaction timeout.

For each transactional id, brokers store two values that a client sends and that every client can read: the epoch and
the timeout. A mark is therefore set in the same request as the epoch, and survives the loss of the decision log. There
are two marks:

    999   a driver id that has claimed its prefix. If the log contains no claim, the log was deleted or emptied
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

_CLAIMED_MARK = 999
_FENCED_MARK = 998
_MAX_UNMARKED = 997
_MAX_FENCED_TIMEOUT_MS = 5_000
"""Limit for a fenced id's timeout. It is low, because a driver ends the id's open transaction right after fencing."""


def remove_timeout_mark(timeout_ms: int) -> int:
    """Return the timeout without a mark. The result is at most two milliseconds shorter than `timeout_ms`."""
    return timeout_ms - timeout_ms % 1000 + min(timeout_ms % 1000, _MAX_UNMARKED)


def mark_claimed(granted_ms: int) -> int:
    """Return the marked timeout for a driver id that has claimed its prefix. It is close to the decision timeout.

    `granted_ms`: the unmarked transaction timeout of the driver's tasks.
    """
    return _add_mark(compute_decision_timeout_ms(granted_ms), _CLAIMED_MARK, granted_ms)


def mark_fenced(granted_ms: int) -> int:
    """Return the marked timeout for a fenced task id.

    `granted_ms`: the task's transaction timeout. A timeout shorter than the mark is raised to the mark, because an id
    without a mark would be fenced again with each batch. That is safe, because no task begins a transaction with the
    marked timeout.
    """
    return max(_add_mark(min(granted_ms, _MAX_FENCED_TIMEOUT_MS), _FENCED_MARK, granted_ms), _FENCED_MARK)


def _add_mark(timeout_ms: int, mark: int, granted_ms: int) -> int:
    """Return a timeout that ends in the mark and is no longer than `timeout_ms` or the mark, whichever is longer.

    If the marked timeout would exceed `granted_ms`, return `granted_ms` without a mark.
    """
    marked_ms = max(0, timeout_ms // 1000 - 1) * 1000 + mark
    return marked_ms if marked_ms <= granted_ms else granted_ms


def is_marked_claimed(timeout_ms: int) -> bool:
    return timeout_ms % 1000 == _CLAIMED_MARK


def is_marked_fenced(timeout_ms: int) -> bool:
    return timeout_ms % 1000 == _FENCED_MARK
