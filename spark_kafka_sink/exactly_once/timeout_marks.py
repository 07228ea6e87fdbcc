"""Timeout marks: one fact about a transactional id, in the last three digits of its transaction timeout on the brokers.

For each transactional id, brokers store an epoch and a transaction timeout in milliseconds. Every client can read both,
and one InitProducerId request sets both. The last three digits of the timeout make no practical difference, so a driver
uses them for a mark, which it sets together with a new epoch. There are two marks:

    999   on the driver's transactional id: A driver has claimed the prefix, which is the name of the query or job, by
          writing an entry to the decision log. If a starting driver finds the mark but no entry in the log, the entry
          was lost, and the driver stops (`driver_ids.is_log_lost`).
    998   on the transactional id of a task attempt: A driver has fenced the id, so the attempt that used it can write
          nothing more. The next driver does not fence it again, and another attempt may use it
          (`transaction_aborts.can_write`). Only version 1 transactions need this mark. In version 2, the driver ends
          the id's transaction, and then the id is no longer in the list that the next driver gets.

The fact that a driver has claimed the prefix could not be stored elsewhere. A field in the log would be deleted with
the log, and the next driver would write a decided batch again
(test_deleted_log_causes_duplicate_batch_without_the_claim_mark). The id's transaction state is EMPTY after a claim, but
also after a driver has died before its claim. Without the mark 998, each micro-batch of a query with 300 tasks would
fence 300 ids again (test_each_batch_fences_ids_of_version_1_again_without_the_mark).

A marked timeout must not be too short. A coordinator waits for its replicas to store the id's state, but no longer than
the id's timeout. If the wait times out, the coordinator tries again (on an idle cluster, half a minute later), and
responds with CONCURRENT_TRANSACTIONS until then. A timeout of 1 ms blocked ids for minutes. A marked timeout is
therefore at least about as long as the id's transactions need.
"""

from __future__ import annotations

from spark_kafka_sink.exactly_once.commit_margin import compute_decision_timeout_ms

# The last three digits of a timeout. Brokers store marked timeouts, so if these values change, ids that are already
# marked are no longer recognized.
_CLAIMED_MARK = 999
_FENCED_MARK = 998
_MAX_UNMARKED_REMAINDER = 997

FENCING_TIMEOUT_MS = 5_000
"""The timeout of a driver id from the moment when a driver fences older ones until it has claimed the prefix.

It also stays after a claim by an abort, a hand-over or `pykafka transactions`, because none of them decides a batch. It
is not longer than the decision timeout of any driver whose tasks have a transaction timeout of a minute or more.
"""
_MAX_FENCED_TIMEOUT_MS = 5_000
"""The longest timeout of a fenced task id.

The only transaction with this timeout is the empty one that a driver begins and aborts to make leaders reject late
records (transaction_aborts.py). A task that uses the id later sets its own timeout.
"""


def remove_timeout_mark(timeout_ms: int) -> int:
    """Return `timeout_ms`, reduced by at most two milliseconds, so that it cannot be mistaken for a marked timeout."""
    return timeout_ms - timeout_ms % 1000 + min(timeout_ms % 1000, _MAX_UNMARKED_REMAINDER)


def compute_driver_fencing_timeout_ms(*, is_claimed: bool) -> int:
    """Return the transaction timeout for the driver id of a driver that fences older ones.

    `is_claimed`: whether the driver id has the mark for a claimed prefix, which is then kept.
    """
    if is_claimed:
        return _add_mark(FENCING_TIMEOUT_MS, _CLAIMED_MARK, FENCING_TIMEOUT_MS)
    return FENCING_TIMEOUT_MS


def compute_driver_claimed_timeout_ms(task_timeout_ms: int) -> int:
    """Return the transaction timeout for the driver id of a driver that has claimed the prefix, with the mark.

    It is about the decision timeout (commit_margin.py): how long the driver's own transactions, which contain its
    decisions, may stay open. For example, if the tasks have 3,600,000 ms, the driver id gets 19,999 ms.

    `task_timeout_ms`: the transaction timeout of the driver's tasks, without a mark; 0 if the driver id is not used for
    any batch.
    """
    if not task_timeout_ms:
        return compute_driver_fencing_timeout_ms(is_claimed=True)
    return _add_mark(compute_decision_timeout_ms(task_timeout_ms), _CLAIMED_MARK, task_timeout_ms)


def compute_task_fenced_timeout_ms(task_timeout_ms: int) -> int:
    """Return the transaction timeout for a task id, with the mark for an id that a driver has fenced.

    `task_timeout_ms`: the task's transaction timeout.
    """
    # If the timeout is shorter than the mark, use the mark itself, because an id without a mark would be fenced again
    # with each batch. The longer timeout does no harm: no task begins a transaction with the marked timeout.
    return max(_add_mark(min(task_timeout_ms, _MAX_FENCED_TIMEOUT_MS), _FENCED_MARK, task_timeout_ms), _FENCED_MARK)


def _add_mark(timeout_ms: int, mark: int, max_ms: int) -> int:
    """Return a timeout whose last three digits are the mark, and which is less than two seconds below `timeout_ms`.

    For example, 20,000 ms with the mark 999 becomes 19,999 ms. A timeout of less than two seconds becomes the mark
    itself. If the marked timeout would be longer than `max_ms`, return `max_ms` without a mark.

    `max_ms`: a timeout that brokers have granted. They might reject a longer one.
    """
    marked_ms = max(0, timeout_ms // 1000 - 1) * 1000 + mark
    return marked_ms if marked_ms <= max_ms else max_ms


def is_marked_claimed(timeout_ms: int) -> bool:
    """Return whether this is the timeout of a driver id that has claimed its prefix."""
    return timeout_ms % 1000 == _CLAIMED_MARK


def is_marked_fenced(timeout_ms: int) -> bool:
    """Return whether this is the timeout of a task id that a driver has fenced."""
    return timeout_ms % 1000 == _FENCED_MARK
