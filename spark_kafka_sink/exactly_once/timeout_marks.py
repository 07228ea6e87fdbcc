"""Mark the state of a transactional id in the last three digits of its transaction timeout.

For each transactional id, brokers store an epoch and a transaction timeout, and every client can read both. One
InitProducerId request changes the epoch and sets the timeout. An id is therefore marked together with its new epoch,
and stays marked if the decision log is lost. There are two marks:

    999   a driver id (the transactional id of a query's driver) under which a driver has claimed the prefix (the name
          of the query or job) by writing to the log. If a starting driver finds the mark but no entry in the log, the
          entry was lost, and the driver stops (`driver_ids.is_log_lost`)
    998   a task id (the transactional id of a task attempt) that a driver has fenced. The attempt that used the id
          cannot write any more, so the next driver does not fence the id again, and another attempt may use it
          (`transaction_aborts.can_write`). Only version 1 transactions need this mark. In version 2, the driver ends
          the id's transaction, and the next driver's list no longer contains the id

Neither the log nor the id's transaction state could replace 999. A field in the log would be deleted with the log, and
the next driver would write a decided batch again (test_deleted_log_causes_duplicate_batch_without_the_claim_mark). The
state is EMPTY both after a claim and after a driver has died before its claim. Without 998, each micro-batch of a job
with 300 tasks would fence 300 ids again (test_each_batch_fences_ids_of_version_1_again_without_the_mark).

A marked timeout is about as long as the id's transactions need, and never much shorter. A coordinator waits for its
replicas to store the id's state, but no longer than the id's timeout. If this wait times out, the coordinator retries
(on an idle cluster, half a minute later), and responds with CONCURRENT_TRANSACTIONS until then. A timeout of 1 ms
blocked ids for minutes.
"""

from __future__ import annotations

from spark_kafka_sink.exactly_once.commit_margin import compute_decision_timeout_ms

# The last three digits of a timeout. Brokers store marked timeouts, so if these values change, ids that are already
# marked are no longer recognized.
_CLAIMED_MARK = 999
_FENCED_MARK = 998
_MAX_UNMARKED_REMAINDER = 997

_MAX_FENCED_TIMEOUT_MS = 5_000
"""The limit for the timeout of a fenced task id. Only the driver that fences the id uses this timeout, for a moment."""


def remove_timeout_mark(timeout_ms: int) -> int:
    """Return `timeout_ms`, reduced by at most two milliseconds, so that it cannot be mistaken for a marked timeout."""
    return timeout_ms - timeout_ms % 1000 + min(timeout_ms % 1000, _MAX_UNMARKED_REMAINDER)


def compute_claimed_timeout_ms(task_timeout_ms: int) -> int:
    """Return the transaction timeout for a driver id, with the mark for a driver that has claimed its prefix.

    It is about the decision timeout (commit_margin.py): how long the driver's own transactions, which contain its
    decisions, may stay open.

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

    Return the mark itself for a timeout of less than two seconds. Return `task_timeout_ms`, without a mark, if the
    marked timeout would be longer: brokers have granted `task_timeout_ms`, but might reject a longer one.
    """
    marked_ms = max(0, timeout_ms // 1000 - 1) * 1000 + mark
    return marked_ms if marked_ms <= task_timeout_ms else task_timeout_ms


def is_marked_claimed(timeout_ms: int) -> bool:
    """Return whether this is the timeout of a driver id that has claimed its prefix."""
    return timeout_ms % 1000 == _CLAIMED_MARK


def is_marked_fenced(timeout_ms: int) -> bool:
    """Return whether this is the timeout of a task id that a driver has fenced."""
    return timeout_ms % 1000 == _FENCED_MARK
