"""Errors of the commit of a decided batch. Each message says which rows are visible, and what to do.

The driver has decided the batch: it has written a list of the tasks' transactions to the decision log. It then commits
these transactions. The functions take the batch's entry, which is the state of the query or job in the log. The
messages name the prefix: the name of the query or job, with which its transactional ids begin.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager

from spark_kafka_sink.diagnostics.text import format_count
from spark_kafka_sink.errors import BrokerError, CommitLostError, ExactlyOnceError, KafkaSinkError
from spark_kafka_sink.exactly_once.decision_errors import (
    COMPARISON_HINT,
    LOG_TOPIC_HINT,
    NEWER_DRIVER_REMEDY,
    build_command,
    convert_fencing,
    describe_finish_deadline,
    format_list,
)
from spark_kafka_sink.exactly_once.entries import Entry
from spark_kafka_sink.exactly_once.job_names import is_generated_job_prefix
from spark_kafka_sink.exactly_once.precommit_errors import describe_unknown_writer, join_sentences
from spark_kafka_sink.exactly_once.transaction_names import parse_task_id
from spark_kafka_sink.protocol import error_codes
from spark_kafka_sink.requests.verdicts import OWNERSHIP_LOST_ERRORS

_log = logging.getLogger(__name__)

MAY_STAY_OPEN_MESSAGE = (
    "transactions of superseded task attempts may still be open. They end when they time out; until then, "
    "read_committed readers wait for them"
)
JOB_NOT_RECORDED_MESSAGE = (
    "this could not be recorded in the decision log, so `pykafka transactions` may continue to show the job"
)
_NAMED_JOB_NOT_RECORDED_MESSAGE = (
    "this could not be recorded in the decision log. The next write with this prefix records it. If there is none, run "
    "`pykafka transactions finish` before a week has passed. If a task had several attempts, a transaction may stay "
    "open until then or until it times out, and read_committed readers wait for it. If there is nothing to finish, and "
    "no query or job with this prefix is running, end it with `pykafka transactions abort`"
)


_LOST_ERRORS = OWNERSHIP_LOST_ERRORS | {error_codes.TRANSACTIONAL_ID_NOT_FOUND}
"""Errors with which a broker reports that the transaction has ended, or that it no longer knows the transaction."""
_FORGOTTEN_ID_ERRORS = {error_codes.INVALID_PRODUCER_ID_MAPPING, error_codes.TRANSACTIONAL_ID_NOT_FOUND}
"""Errors with which a broker reports that it has forgotten the id, or has since assigned a new producer id to it."""
FORGOTTEN_IDS_REASON = (
    "Brokers forget an id that is not used for a week (transactional.id.expiration.ms). Therefore it is not known "
    "whether the rows of these transactions were committed before the driver died"
)
MISSING_ROWS_REMEDY = (
    "After give-up, compare the batch with the records in Kafka, and write only the missing rows, with a job of your "
    f"own. {COMPARISON_HINT}"
)


def is_transaction_lost(error: BrokerError) -> bool:
    """Return whether this error of a commit means that the transaction can no longer be committed.

    Any other error says nothing about the outcome of the transaction.
    """
    return error.code in _LOST_ERRORS


def is_id_forgotten(error: BrokerError) -> bool:
    """Return whether this error of a commit means that the transaction may be lost, or may have been committed before.

    The broker has forgotten the transactional id, and with it the outcome of the transaction.
    """
    return error.code in _FORGOTTEN_ID_ERRORS


def build_not_committed_error(entry: Entry, errors_by_id: Mapping[str, BrokerError]) -> ExactlyOnceError:
    """Build the error for a decided batch if some of its transactions could not be committed.

    It is a CommitLostError if any of these transactions is lost, which means that it can never be committed.

    `errors_by_id`: the errors of the rejected commits, by transactional id.
    """
    has_lost_transactions = any(is_transaction_lost(error) for error in errors_by_id.values())
    build_error = _build_commit_lost_error if has_lost_transactions else build_uncommitted_batch_error
    return build_error(entry, errors_by_id)


def build_unfinished_commit_error(
    entry: Entry, error: KafkaSinkError, errors_by_id: Mapping[str, BrokerError]
) -> ExactlyOnceError:
    """Build the error for a decided batch if it is not known whether its transactions are committed.

    Either requests to commit them got no response, or commits were rejected, but it is not known whether a newer driver
    had committed these transactions before.

    `errors_by_id`: the errors of the rejected commits, by transactional id.
    """
    outcome = "Nothing is lost unless their transaction timeout has passed."
    if errors_by_id:
        outcome = _describe_rejected_commits(entry, errors_by_id)
    return ExactlyOnceError(
        join_sentences(
            f"{entry.batch} is decided (prefix {entry.prefix}), but it is not known whether all of its "
            f"{len(entry.transactions)} transactions are committed: {error} {outcome}",
            _describe_how_to_finish(entry),
            describe_unknown_writer(entry),
        )
    )


def _describe_rejected_commits(entry: Entry, errors_by_id: Mapping[str, BrokerError]) -> str:
    """List transactions whose commits were rejected, and say which of them may be lost."""
    lost_transaction_errors, open_transaction_errors = _split_errors_by_loss(errors_by_id)
    if lost_transaction_errors:
        open_names = sorted({error.name for error in open_transaction_errors.values()})
        exception = f", except those with {', '.join(open_names)}, which are still open" if open_names else ""
        fate = f"They are lost unless another driver has committed them before{exception}."
    else:
        fate = "They are still open."
    return (
        "These transactions could not be committed:\n"
        f"{_format_rejected_transactions(entry, dict(sorted(errors_by_id.items())))}\n{fate}"
    )


def build_uncommitted_batch_error(entry: Entry, errors_by_id: Mapping[str, BrokerError]) -> ExactlyOnceError:
    """Build the error for a decided batch that still has open transactions, because brokers rejected their commits.

    Other transactions may be lost. The open ones must be committed before the user gives up the lost ones with
    `pykafka transactions give-up`.

    `errors_by_id`: the errors of the rejected commits, by transactional id.

    Example:

        batch 7 of query q is decided (prefix orders), but 1 of its 3 transactions could not be committed yet:
        - orders-2-0-0: TRANSACTIONAL_ID_AUTHORIZATION_FAILED ...
        These transactions are still open. Can no longer be committed:
        - orders-2-1-0
        None of them has been given up yet. Fix the cause and start again, or commit the open transactions with ...
    """
    lost_transaction_errors, open_transaction_errors = _split_errors_by_loss(errors_by_id)
    open_lines = [f"{transactional_id}: {error}" for transactional_id, error in open_transaction_errors.items()]
    loss_sentence = "Nothing is lost."
    if lost_transaction_errors:
        lost_list = format_list(list(lost_transaction_errors))
        loss_sentence = f"Can no longer be committed:\n{lost_list}\nNone of them has been given up yet."
    return ExactlyOnceError(
        join_sentences(
            f"{entry.batch} is decided (prefix {entry.prefix}), but {len(open_transaction_errors)} of its "
            f"{len(entry.transactions)} transactions could not be committed yet:\n{format_list(open_lines)}\n"
            "These transactions are still open.",
            loss_sentence,
            _describe_how_to_finish(entry),
            describe_unknown_writer(entry),
        )
    )


def build_superseded_commit_error(entry: Entry, errors_by_id: Mapping[str, BrokerError]) -> ExactlyOnceError:
    """Build the error for a decided batch some of whose commits were rejected after another process had taken over.

    The rejected transactions are lost unless a newer driver has committed them before.

    `errors_by_id`: the errors of the rejected commits, by transactional id.
    """
    rejected_list = _format_rejected_transactions(entry, dict(sorted(errors_by_id.items())))
    if entry.batch.is_idempotent:
        remedy = (
            "If none is running, start again: the next start finishes the batch, or names the lost transactions, "
            "unless somebody has given them up."
        )
    else:
        remedy = (
            "Do not run the job again: it has no idempotencyKey, so that would write all of its rows twice. If no "
            f"newer driver is running, run `{build_command('finish', entry)}`, which finishes the job, or names the "
            "lost transactions. If there is nothing to finish, another process has finished the job, or has given up "
            "the transactions listed here: compare their rows with the records in Kafka, and write only the missing "
            f"ones. {COMPARISON_HINT}"
        )
    return ExactlyOnceError(
        f"{entry.batch} is decided, but a newer driver has taken over the prefix {entry.prefix}, or `pykafka "
        f"transactions` has, and {len(errors_by_id)} of the batch's {len(entry.transactions)} transactions "
        f"could not be committed:\n{rejected_list}\nThis driver must stop. A newer driver may have committed these "
        f"transactions before. {remedy}"
    )


def _split_errors_by_loss(
    errors_by_id: Mapping[str, BrokerError],
) -> tuple[dict[str, BrokerError], dict[str, BrokerError]]:
    """Return the errors of lost transactions and the errors of open ones, both by transactional id in sorted order."""
    sorted_errors = dict(sorted(errors_by_id.items()))
    lost_transaction_errors = {
        transactional_id: error for transactional_id, error in sorted_errors.items() if is_transaction_lost(error)
    }
    open_transaction_errors = {
        transactional_id: error for transactional_id, error in sorted_errors.items() if not is_transaction_lost(error)
    }
    return lost_transaction_errors, open_transaction_errors


def _describe_how_to_finish(entry: Entry) -> str:
    """Say how to commit the transactions of a decided batch that are still open."""
    if entry.batch.is_idempotent:
        return (
            "Fix the cause and start again, or commit the open transactions with `pykafka transactions finish` "
            + describe_finish_deadline(entry)
        )
    return (
        "Do not run the decided job again: it has no idempotencyKey, so that would write all of its rows twice. Fix "
        f"the cause, and commit the open transactions with `{build_command('finish', entry)}` "
        f"{describe_finish_deadline(entry)}"
    )


def _build_commit_lost_error(entry: Entry, errors_by_id: Mapping[str, BrokerError]) -> CommitLostError:
    """Build the error for a decided batch if some of its transactions can never be committed.

    If the commits failed only because brokers have forgotten the transactional ids, the transactions may have been
    committed before.
    """
    lost_transaction_errors, open_transaction_errors = _split_errors_by_loss(errors_by_id)
    lost_count_text = f"{len(lost_transaction_errors)} of its {len(entry.transactions)} transactions"
    lost_list = _format_rejected_transactions(entry, lost_transaction_errors)
    other_outcome = _describe_other_transactions(open_transaction_errors)
    if all(map(is_id_forgotten, lost_transaction_errors.values())):
        explanation = (
            f"{entry.batch} is decided (prefix {entry.prefix}), but the brokers no longer know {lost_count_text}:\n"
            f"{lost_list}\n{FORGOTTEN_IDS_REASON}; {other_outcome}."
        )
    else:
        # "Which is rare": the error is the same if the commit succeeded, but its response was lost, and then a late
        # InitProducerId request of a task reached the coordinator
        # (test_commit_lost_error_does_not_exclude_that_rows_are_visible).
        forgotten_names = {error.name for error in lost_transaction_errors.values() if is_id_forgotten(error)}
        exception = f" (those with {', '.join(sorted(forgotten_names))} may be committed)" if forgotten_names else ""
        explanation = (
            f"{entry.batch} is decided (prefix {entry.prefix}), but {lost_count_text} can no longer be "
            f"committed:\n{lost_list}\nThe rows of these transactions are lost to read_committed readers{exception}, "
            f"unless they were committed and only the response was lost, which is rare; {other_outcome}. The driver "
            f"was probably down for longer than the transaction timeout ({entry.timeout_ms / 1000:g} s) between the "
            "decision and the commit. The batch is not written again automatically, because that would duplicate the "
            "committed rows."
        )
    remedy = _describe_how_to_give_up(entry, has_open_transactions=bool(open_transaction_errors))
    return CommitLostError(join_sentences(explanation, remedy, describe_unknown_writer(entry)))


def _format_rejected_transactions(entry: Entry, errors_by_id: Mapping[str, BrokerError]) -> str:
    """List transactions whose commits were rejected, with details to find their rows and search the brokers' logs."""
    transactions_by_id = {transaction.transactional_id: transaction for transaction in entry.transactions}
    lines = []
    for transactional_id, error in errors_by_id.items():
        transaction = transactions_by_id[transactional_id]
        task_id = parse_task_id(transactional_id)
        details = [] if task_id is None else [f"rows of Spark's partition {task_id.task_attempt.partition}"]
        details += [f"producer id {transaction.producer_id}", f"epoch {transaction.epoch}"]
        lines.append(f"{transactional_id} ({', '.join(details)}): {error.name}")
    return format_list(lines)


def _describe_other_transactions(open_transaction_errors: Mapping[str, BrokerError]) -> str:
    """Say what became of the transactions that are not lost. The result continues a sentence about the lost ones."""
    if not open_transaction_errors:
        return "those of the others are committed"
    open_list = format_list(
        [f"{transactional_id}: {error}" for transactional_id, error in open_transaction_errors.items()]
    )
    return f"these could not be committed yet, and are still open:\n{open_list}\nThe others are committed"


def _describe_how_to_give_up(entry: Entry, *, has_open_transactions: bool) -> str:
    """Say how to record a decided batch as done although some of its transactions are lost, and what to do then."""
    first_step = "Fix the cause of those that are still open. Then record" if has_open_transactions else "Record"
    if entry.batch.query_id is not None:
        consequence = "After that, the query continues with its next batch."
    elif entry.batch.is_idempotent:
        consequence = "After that, a job with this key writes nothing."
    else:
        consequence = (
            "Do not run the decided job again: it has no idempotencyKey, so that would write the committed rows twice."
        )
    return (
        f"{first_step} the batch as done with `{build_command('give-up', entry)}` {LOG_TOPIC_HINT}, which also ends "
        f"the transactions of other task attempts. {consequence} {MISSING_ROWS_REMEDY}"
    )


@contextmanager
def convert_earlier_batch_errors(entry: Entry) -> Iterator[None]:
    """Convert an ExactlyOnceError in the block to one of the same class, which also concerns the run that is starting.

    The run cannot begin, because it could not commit the batch that an earlier run has decided under its prefix.

    `entry`: the entry with the earlier run's decision.
    """
    try:
        yield
    except ExactlyOnceError as error:
        batch = "the last batch" if entry.batch.query_id is not None else "an earlier job"
        raise type(error)(
            join_sentences(
                f"This run has written nothing, because {batch} under its prefix must be finished first: {error}",
                _describe_when_to_start_again(entry, error),
            )
        ) from error


def _describe_when_to_start_again(entry: Entry, error: ExactlyOnceError) -> str:
    """Say when to start a run that could not finish the entry's batch. Return "" if the error itself says so."""
    if not entry.batch.is_idempotent:
        return "When the decided job is done, start this run again, unless it would write the same rows once more."
    return "When the batch is done, start this run again." if isinstance(error, CommitLostError) else ""


def handle_errors_after_commit(entry: Entry, *, is_single_use: bool) -> AbstractContextManager[None]:
    """Return the context for a block that records in the decision log that a batch is done.

    It converts and raises a stream's errors, because the driver must stop if a newer driver has taken over. It logs a
    job's errors, because the job has succeeded. If such an error made the job fail, a scheduler would run it again, and
    a job without an idempotency key would write all of its rows twice.

    `is_single_use`: whether only this job uses the prefix.
    """
    if entry.batch.query_id is not None:
        return _convert_errors_after_commit(entry)
    return log_errors_after_commit(
        entry, JOB_NOT_RECORDED_MESSAGE if is_single_use else _NAMED_JOB_NOT_RECORDED_MESSAGE
    )


@contextmanager
def log_errors_after_commit(entry: Entry, consequence: str) -> Iterator[None]:
    """Log errors in the block instead of raising them. The block is a step after a batch's commit.

    `consequence`: the part of the message that says what the failed step leaves behind.
    """
    try:
        yield
    except KafkaSinkError as error:
        _log.warning("%s is committed (prefix %s), but %s: %s", entry.batch, entry.prefix, consequence, error)


def log_rejected_aborts(prefix: str, errors_by_id: Mapping[str, BrokerError]) -> None:
    """Warn that brokers have rejected the abort of transactions of a batch that will not be committed.

    `errors_by_id`: the errors of the rejected aborts, by transactional id.
    """
    _log.warning(
        "Could not abort %s of tasks (prefix %s), which may stay open until they time out%s. Until then, "
        "read_committed readers wait for them. If no query or job with this prefix is running, end them with `pykafka "
        "transactions abort`:\n%s",
        format_count(len(errors_by_id), "transaction"),
        prefix,
        "" if is_generated_job_prefix(prefix) else ", or until the next start with this prefix",
        format_list([f"{transactional_id}: {error}" for transactional_id, error in sorted(errors_by_id.items())]),
    )


@contextmanager
def _convert_errors_after_commit(entry: Entry) -> Iterator[None]:
    """Convert errors in the block to an ExactlyOnceError that says that the batch is committed.

    The block records in the decision log that a stream's batch is done.
    """
    try:
        with convert_fencing(
            f"{entry.batch} is committed, but a newer driver has taken over the query with the prefix {entry.prefix}, "
            f"or `pykafka transactions` has. This driver must stop. {NEWER_DRIVER_REMEDY}"
        ):
            yield
    except ExactlyOnceError:
        raise
    except KafkaSinkError as error:
        raise ExactlyOnceError(
            f"{entry.batch} is committed (prefix {entry.prefix}) and all of its rows are visible, but this could not "
            f"be recorded in the decision log: {error} Start again: the next start records it and does not write the "
            "batch again."
        ) from error
