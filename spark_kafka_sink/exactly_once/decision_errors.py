"""Errors of a batch's decision. Each message says whether the batch is decided, which rows are visible, and what to do.

The driver decides a batch by writing a list of the tasks' transactions to the decision log. After that, all of these
transactions must be committed (commit_errors.py). The functions take the batch's entry, which is the state of the query
or job in the log. The messages name the prefix: the name of the query or job, with which its transactional ids begin.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager

from spark_kafka_sink.errors import ExactlyOnceError, KafkaSinkError, ProducerFencedError
from spark_kafka_sink.exactly_once.entries import Entry
from spark_kafka_sink.exactly_once.job_names import is_generated_job_prefix
from spark_kafka_sink.requests.transaction_description import TransactionDescription
from spark_kafka_sink.requests.transaction_identity import TransactionIdentity

_MAX_LISTED = 20
"""Maximum number of transactions that a message lists."""
LOG_TOPIC_HINT = "(add --log-topic if the write sets decisionLogTopic)"
# A reader that compares earlier finds no records behind the open transactions, so rows that are already committed would
# be written again (test_rows_compared_before_give_up_are_not_all_visible). In the Prepare states, brokers have
# acknowledged the end of the transaction, but its marker may still be missing in some partitions.
COMPARISON_HINT = (
    "Compare only when none of the topics has an open transaction (state Ongoing, PrepareCommit or PrepareAbort in "
    "kafka-transactions.sh list): a read_committed reader finds no records behind it. If other programs write to these "
    "topics in transactions all the time, stop them first."
)
"""The condition under which a comparison of rows with the records in Kafka is reliable."""
NEWER_DRIVER_REMEDY = "If no newer driver is running, start this query again."
"""The remedy for a stream whose driver was fenced by a newer one or by `pykafka transactions`."""


def build_transactions_not_open_error(entry: Entry, problems: Sequence[str]) -> ExactlyOnceError:
    """Build the error for a batch that is not decided, because its tasks' transactions have ended.

    `problems`: a line for each of these transactions.
    """
    return ExactlyOnceError(
        f"{entry.batch} was not committed, because transactions of its tasks are no longer open:\n"
        f"{format_list(problems)}\nNone of the batch's rows are visible. {_describe_next_start(entry)} "
        "Possible causes and remedies:\n"
        "- The brokers ended the transactions, because more than the transaction timeout "
        f"({entry.timeout_ms / 1000:g} s) passed between a task's first row and the end of the batch. Make batches "
        "smaller, or increase the brokers' transaction.max.timeout.ms, for example to an hour (and "
        "kafka.transaction.timeout.ms, if it is set). Then start again.\n"
        "- Somebody ended the transactions with a tool such as kafka-transactions.sh. Start again.\n"
        "- Spark ran a stage again, and a second attempt of a task aborted the first attempt's transaction. Start "
        "again."
    )


def describe_missing_transaction(transaction: TransactionIdentity, description: TransactionDescription) -> str:
    """Return a line about a task's transaction that is no longer open, for `build_transactions_not_open_error`.

    `description`: the current description of the transactional id.
    """
    producer_id, epoch = description.id_and_epoch
    return (
        f"{transaction.transactional_id}: {description.state}, epoch {epoch} of producer id {producer_id}, expected "
        f"epoch {transaction.epoch} of producer id {transaction.producer_id}"
    )


def build_transaction_deadline_error(
    entry: Entry, transaction: TransactionDescription, remaining_ms: float
) -> ExactlyOnceError:
    """Build the error for a batch that is not decided, because a task's transaction may time out before its commit."""
    return ExactlyOnceError(
        f"{entry.batch} was not committed: of the {transaction.timeout_ms / 1000:g} s of the transaction timeout, only "
        f"{max(0.0, remaining_ms) / 1000:.1f} s were left for {transaction.transactional_id}, which is too little to "
        "commit it safely. The batch was not decided, and none of its rows are visible. Make batches smaller, or "
        "increase the brokers' transaction.max.timeout.ms, for example to an hour (and kafka.transaction.timeout.ms, "
        "if it is set). If this machine's clock and the brokers' clocks differ by more than a few seconds, synchronize "
        "them."
    )


def build_downgrade_error(entry: Entry) -> ExactlyOnceError:
    """Build the error for a batch that is not decided, because the transaction version was lowered since its start."""
    return ExactlyOnceError(
        f"{entry.batch} was not committed: the cluster's transaction.version was lowered while the batch was being "
        f"written. None of the batch's rows are visible. {_describe_next_start(entry)}"
    )


def _describe_next_start(entry: Entry) -> str:
    """Say what happens to the rows of a batch that was not committed when its query or job is started again."""
    if entry.batch.is_idempotent:
        return "The next start writes them again."
    return (
        "The next start writes them again. The job has no idempotencyKey, so start it again only if no other run of it "
        "is committed."
    )


@contextmanager
def convert_fencing_before_decision(entry: Entry) -> Iterator[None]:
    """Convert a ProducerFencedError in the block to an ExactlyOnceError that says that the batch was not committed.

    The driver is fenced if a newer driver of the query has started.
    """
    if entry.batch.query_id is not None:
        remedy = f"{NEWER_DRIVER_REMEDY} The batch is then written again. No rows are lost or duplicated."
    elif entry.batch.is_idempotent:
        remedy = "Run the job again. No rows are lost or duplicated."
    elif is_generated_job_prefix(entry.prefix):  # other runs of the job have other prefixes
        remedy = (
            "Run the job again, unless another run of it is committed. The job has no idempotencyKey, so another run "
            "after that would write all of its rows twice."
        )
    else:  # another run of the job has the same prefix, and nothing tells its rows from those of other jobs
        remedy = (
            "If the newer driver is another run of this job, do not run the job again: it has no idempotencyKey, so "
            "that would write all of its rows twice. Otherwise, run it again, unless another run of it is committed."
        )
    with convert_fencing(
        f"{entry.batch} was not committed: {_describe_fencing(entry)} None of its rows will become visible. {remedy}"
    ):
        yield


@contextmanager
def convert_fencing(message: str) -> Iterator[None]:
    """Convert a ProducerFencedError in the block to an ExactlyOnceError."""
    try:
        yield
    except ProducerFencedError as error:
        raise ExactlyOnceError(message) from error


def build_decision_in_doubt_error(entry: Entry, error: KafkaSinkError) -> ExactlyOnceError:
    """Build the error for a decision whose outcome is unknown: it may have been committed or not.

    `error`: the reason. It is a ProducerFencedError if the driver was fenced while it was committing the decision.
    """
    if isinstance(error, ProducerFencedError):
        return ExactlyOnceError(
            f"It is not known whether {entry.batch} is committed: {_describe_fencing(entry)} "
            f"{_describe_effect_of_fencing(entry)}"
        )
    if entry.batch.is_idempotent:
        remedy = (
            "Start again: the next start finishes the batch if it is decided, and writes it again if it is not. No "
            "rows are lost or duplicated."
        )
    else:
        remedy = build_unknown_outcome_remedy(entry)
    return ExactlyOnceError(
        f"It is not known whether {entry.batch} is decided (prefix {entry.prefix}): {error} {remedy}"
    )


def _describe_fencing(entry: Entry) -> str:
    """Say that the driver was fenced."""
    return (
        f"a newer driver has taken over the prefix {entry.prefix}, or `pykafka transactions` has. This driver must "
        "stop."
    )


def _describe_effect_of_fencing(entry: Entry) -> str:
    """Say what becomes of a batch whose driver was fenced while it was deciding it."""
    if entry.batch.query_id is not None:
        return (
            f"{NEWER_DRIVER_REMEDY} The batch is then written again, or finished if it was decided at the last "
            "moment. No rows are lost or duplicated."
        )
    if entry.batch.is_idempotent:
        return (
            "Run the job again. If it was decided at the last moment, the newer driver has finished it, and the job "
            "writes nothing. No rows are lost or duplicated."
        )
    return build_unknown_outcome_remedy(entry)


def build_unknown_outcome_remedy(entry: Entry) -> str:
    """Say what to do if it is not known whether a job without an idempotencyKey is decided.

    `entry`: the entry when the job began, or the job's decision. Its generation is the job's number.
    """
    warning = (
        "Do not run the job again before you know whether it is decided: it has no idempotencyKey, so that could write "
        "all of its rows twice. If the application log says that it was aborted, none of its rows are visible: run it "
        "again, unless another run of it is committed. Otherwise, "
    )
    finish = f"`{build_command('finish', entry)}` {describe_finish_deadline(entry)}"
    if is_generated_job_prefix(entry.prefix):  # no other job uses the prefix, so `abort` affects no other job
        return (
            f"{warning}run `{build_command('abort', entry)}` {LOG_TOPIC_HINT}:\n"
            "- It aborts the job if the job is not decided. Then run the job again, unless another run of it is "
            "committed.\n"
            "- It says so if the job is already committed. Do not run the job again.\n"
            f"- It is rejected if the job is decided. Then commit the open transactions with {finish}\n"
            "- It fails if the log has no entry for the prefix: the job was committed or aborted before. Compare its "
            f"rows with the records in Kafka, and write only the missing ones. {COMPARISON_HINT}"
        )
    return (
        f"{warning}find the prefix's last decision with `{build_command('list', entry)}` {LOG_TOPIC_HINT}:\n"
        f"- job number {entry.generation}: the job is decided. Do not run it again. If it is not done, commit the open "
        f"transactions with {finish}\n"
        "- a smaller number, or none: the job is not decided. If no other job with this prefix is running, run "
        "`pykafka transactions abort`, which is rejected if the job is decided after all. Then run the job again, "
        "unless another run of it is committed, such as the one with the smaller number if a scheduler has retried the "
        "job.\n"
        "- anything else: another job may have been decided since. Compare the job's rows with the records in Kafka, "
        f"and write only the missing ones. {COMPARISON_HINT}"
    )


def build_command(action: str, entry: Entry) -> str:
    """Return the command that performs this action of `pykafka transactions` on the entry's prefix."""
    return f"pykafka transactions {action} --bootstrap-server HOST:PORT --prefix {entry.prefix}"


def describe_finish_deadline(entry: Entry) -> str:
    """Return the end of a sentence that says until when a decided batch's transactions can be committed."""
    return f"before the transaction timeout ({entry.timeout_ms / 1000:g} s since they began) has passed."


def format_list(lines: Sequence[str]) -> str:
    """Format the lines as a list. If there are more than _MAX_LISTED, show how many are omitted."""
    listed_lines = [f"- {line}" for line in lines[:_MAX_LISTED]]
    if len(lines) > len(listed_lines):
        listed_lines.append(f"- and {len(lines) - len(listed_lines)} more")
    return "\n".join(listed_lines)
