"""Errors raised before a batch is committed. Each message states the cause, what Kafka contains, and the remedy.

Most of them concern the decision log, the topic that records which batches are committed. A query or job is known by
its prefix, the name with which its transactional ids begin. Its state in the log is called its entry. An entry is
unproven if somebody other than a driver of the prefix may have written it.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from spark_kafka_sink.diagnostics.text import sanitize
from spark_kafka_sink.errors import (
    BrokerError,
    ConfigurationError,
    DecodeError,
    ExactlyOnceError,
    PreflightError,
    UnsupportedVersionError,
)
from spark_kafka_sink.exactly_once.batch_summary import BatchSummary
from spark_kafka_sink.exactly_once.decision_errors import COMPARISON_HINT
from spark_kafka_sink.exactly_once.entries import Batch, Entry, WriterKind
from spark_kafka_sink.exactly_once.job_names import is_generated_job_prefix
from spark_kafka_sink.exactly_once.timeout_marks import FENCING_TIMEOUT_MS
from spark_kafka_sink.protocol import error_codes
from spark_kafka_sink.protocol.error_codes import build_broker_error


def join_sentences(*sentences: str) -> str:
    """Join the sentences of a message with spaces. Empty ones are omitted."""
    return " ".join(filter(None, sentences))


# --- before the first row


def build_start_error(reason: object) -> PreflightError:
    """Build the error for a batch that cannot begin. `reason` completes the message."""
    return PreflightError(f"Cannot write to Kafka exactly once; nothing was written: {reason}")


def build_first_epoch_rejected_error(error: BrokerError) -> PreflightError:
    """Build the error for a broker that, unlike Kafka, rejects the first request for an epoch of a transactional id."""
    return build_start_error(
        f"{error.name}: the broker rejected InitProducerId with an expected producer id for a transactional id that it "
        "does not know. Apache Kafka accepts such a request. Without it, two drivers that start at the same time "
        "cannot be told apart. Remove deliveryGuarantee, or use brokers that accept this request."
    )


def build_timeout_limit_error(transactional_id: str, timeout_ms: int, remedy: str = "") -> BrokerError:
    """Build the error for a transaction timeout that is longer than a broker allows.

    Kafka's remedy, to decrease the timeout, is right only if the user has set it. So the caller passes the remedy.
    """
    limit_sentence = (
        f"The broker's transaction.max.timeout.ms is less than the {timeout_ms} ms that the sink has requested."
    )
    return build_broker_error(
        error_codes.INVALID_TRANSACTION_TIMEOUT,
        f"transactional id {transactional_id}",
        join_sentences(limit_sentence, remedy),
    )


def build_driver_timeout_error(driver_id: str, timeout_ms: int) -> BrokerError:
    """Build the error for brokers that do not grant the timeout of a driver id, which the sink itself has chosen."""
    # A longer timeout than the one for fencing is derived from a timeout of the tasks that the brokers have granted.
    was_limit_decreased = timeout_ms > FENCING_TIMEOUT_MS
    remedy = _DRIVER_LIMIT_DECREASED_REMEDY if was_limit_decreased else _SINK_TIMEOUT_REMEDY
    return build_timeout_limit_error(driver_id, timeout_ms, remedy)


def build_timeout_rejected_error(error: BrokerError, *, is_user_timeout: bool) -> PreflightError:
    """Build the error for brokers that grant none of the transaction timeouts that the driver has requested.

    `is_user_timeout`: whether the user has set the timeout.
    """
    remedy = _USER_TIMEOUT_REMEDY if is_user_timeout else _SINK_TIMEOUT_REMEDY
    return build_start_error(f"{error} {remedy}")


_USER_TIMEOUT_REMEDY = (
    "Decrease kafka.transaction.timeout.ms, or omit it to use the longest timeout that the brokers grant."
)
_SINK_TIMEOUT_REMEDY = (
    "The sink needs this timeout for its own transactions. Increase transaction.max.timeout.ms on all brokers to at "
    "least this value."
)
_DRIVER_LIMIT_DECREASED_REMEDY = (
    "The limit was decreased after this driver had started. If kafka.transaction.timeout.ms is set, decrease it; "
    "otherwise, the next start requests a shorter timeout."
)
_TASK_LIMIT_DECREASED_REMEDY = (
    "kafka.transaction.timeout.ms is not set, so this write uses the longest timeout that the brokers granted when it "
    "began, but one of them now grants only a shorter one. Start again: the sink then requests a new timeout. If the "
    "brokers have different values of transaction.max.timeout.ms, for example during a rolling restart that decreases "
    "it, set kafka.transaction.timeout.ms to the lowest of these values."
)


def build_log_not_compacted_error(log_topic: str, policy: str) -> PreflightError:
    """Build the error for a decision log from which brokers delete records. `policy` is its cleanup.policy."""
    return build_start_error(
        f"topic {log_topic}, the decision log, has cleanup.policy={sanitize(policy)}. It would lose decisions, and a "
        "batch could be written twice. Set the topic's cleanup.policy to compact. If the prefix has never been used, "
        "you can also set decisionLogTopic to another topic, which the sink creates with the right settings if it does "
        "not exist."
    )


@contextmanager
def convert_start_errors() -> Iterator[None]:
    """Convert a BrokerError or UnsupportedVersionError to a PreflightError that says that nothing was written."""
    try:
        yield
    except UnsupportedVersionError as error:
        raise build_start_error(f"{error} Exactly-once delivery requires Kafka 3.0 or newer.") from error
    except BrokerError as error:
        raise build_start_error(error) from error


def build_superseded_error(entry: Entry, driver_name: str) -> ExactlyOnceError:
    """Build the error for a driver that a newer one has already replaced. The entry names the newer one."""
    return ExactlyOnceError(
        join_sentences(
            f"A newer driver has taken over the query with the prefix {entry.prefix}: {entry.driver_name}. This "
            f"driver, {driver_name}, must stop. Two drivers of the same query must not run at the same time. If the "
            "newer driver has ended, start this query again; without `register`, start a new Spark application for it.",
            _describe_other_run(entry),
        )
    )


def build_overtaken_error(entry: Entry, driver_name: str) -> ExactlyOnceError:
    """Build the error for a driver that another one has overtaken during its start. The entry names the other one."""
    return ExactlyOnceError(
        join_sentences(
            f"A newer driver has taken over the prefix {entry.prefix}: {entry.claimant_name}. It did so after "
            f"this driver, {driver_name}, had read the decision log. This driver has written nothing and must stop. "
            "The newer driver may still be running or may have ended. If this driver should run instead, make sure "
            "that the newer driver has ended, and start this one again.",
            _describe_other_run(entry),
        )
    )


def _describe_other_run(entry: Entry) -> str:
    """Say when a job must not be started again after a newer driver. Return "" if the newer driver is a stream's."""
    if entry.writer_kind is not WriterKind.JOB:
        return ""
    return (
        "If the newer driver is another run of this job, start this one again only if the job has an idempotencyKey: "
        "otherwise, that could write all of its rows twice."
    )


def build_concurrent_start_error(prefix: str, driver_name: str) -> ExactlyOnceError:
    """Build the error for a driver that was fenced by other drivers at each attempt to start."""
    return ExactlyOnceError(
        f"Several drivers started under the prefix {prefix} at the same time, and this driver, {driver_name}, has "
        "stopped in favor of another driver. Nothing was written. Start only one driver at a time. If the drivers "
        "belong to different streams or series of jobs, give each of these its own transactionalIdPrefix. A committed "
        "idempotencyKey is known only under its prefix: with a new prefix, a job that is run again writes its rows "
        "once more."
    )


def build_log_lost_error(prefix: str, log_topic: str) -> ExactlyOnceError:
    """Build the error for a decision log that has lost the prefix's entry."""
    return ExactlyOnceError(
        f"Topic {log_topic}, the decision log, has no entry for the prefix {prefix}, although a driver of this prefix "
        "has written one. Either decisionLogTopic was changed, or the topic was deleted or emptied, someone else's "
        "records have replaced the entry, or partitions were added to the topic. It is not known which batch was "
        "committed last, so nothing was written. If decisionLogTopic was changed, set it back. Otherwise:\n"
        "1. Wait until the transactions that are open under this prefix have timed out, at the latest after the "
        "brokers' transaction.max.timeout.ms.\n"
        "2. Compare the last batch of the checkpoint, or the job's rows, with the records in Kafka. "
        f"{COMPARISON_HINT}\n"
        "3. Write only the missing rows of a job. A query, or a job whose rows are all missing, can start with another "
        "transactionalIdPrefix (a job that sets none, with another idempotencyKey). A batch of a query that was "
        "committed, entirely or in part, but is not yet in the checkpoint's commits will then be written once more."
    )


def build_log_records_deleted_error(log_topic: str, partition: int) -> ExactlyOnceError:
    """Build the error for records that were deleted between two reads by the same driver."""
    return ExactlyOnceError(
        f"Topic {log_topic}, the decision log: records in partition {partition} were deleted while a driver was "
        "reading it. Nothing new was decided, and nothing was aborted. Start again. Never delete records from this "
        "topic, because they show which batches are committed."
    )


def build_unreadable_entry_error(position: str, prefix: str, error: DecodeError) -> DecodeError:
    """Build the error for a prefix whose newest record cannot be decoded.

    `position`: the topic, partition and offset of the record.
    """
    return DecodeError(
        f"{position}: the newest decision under the prefix {prefix} cannot be read: {error}. A newer version of this "
        "library may have written it. Use the newest version for every driver of this query. Other queries are not "
        "affected."
    )


def build_checkpoint_mismatch_error(entry: Entry, checkpoint: str) -> ExactlyOnceError:
    """Build the error for a stream whose prefix belongs to a stream with another checkpoint."""
    return ExactlyOnceError(
        join_sentences(
            f"transactionalIdPrefix {entry.prefix} is in use by a query with the checkpoint {entry.checkpoint}, and "
            f"this query has the checkpoint {checkpoint}. Nothing was written.",
            describe_unknown_writer(entry),
            "What to do:\n"
            "- If two queries have this prefix, give each query its own prefix.\n"
            "- If both checkpoints are the same location, specify it as before.\n"
            "- If the checkpoint was moved:\n"
            "  1. Move it back, let the query finish its last batch at the old location, and stop it.\n"
            "  2. Check that `pykafka transactions` shows the query's last decision as done, and that the checkpoint's "
            "commits folder contains a file with the number of this batch. If not, start and stop the query once more, "
            "and check again, because the batch would otherwise be written twice.\n"
            "  3. Move the checkpoint to the new location, and start the query there with another prefix or without a "
            "prefix.",
        )
    )


def build_writer_kind_mismatch_error(entry: Entry) -> ExactlyOnceError:
    """Build the error for a batch job whose prefix belongs to a stream, or a stream whose prefix belongs to jobs."""
    if entry.writer_kind is WriterKind.STREAM:
        checkpoint = f" with the checkpoint {entry.checkpoint}" if entry.checkpoint else ""
        owner, writer = f"a stream{checkpoint}", "a batch job"
    else:
        owner, writer = "batch jobs", "a stream"
    last_batch = entry.last_decided_batch
    last_decision = "" if last_batch is None else f"; its last decision is {last_batch}"
    return ExactlyOnceError(
        join_sentences(
            f"transactionalIdPrefix {entry.prefix} belongs to {owner} (newest driver: "
            f"{entry.driver_name}{last_decision}), but this is {writer}. Nothing was written, and the owner was not "
            "affected. Give each stream and each series of jobs its own transactionalIdPrefix.",
            describe_unknown_writer(entry),
        )
    )


def build_query_mismatch_error(entry: Entry, batch: Batch) -> ExactlyOnceError:
    """Build the error for a batch whose prefix belongs to another query, according to the entry's last decision."""
    return ExactlyOnceError(
        join_sentences(
            f"transactionalIdPrefix {entry.prefix} belongs to another query: its last decision is {entry.batch}, but "
            f"this is query {batch.query_id}. Either two queries have the same prefix, or the checkpoint was deleted "
            "and Spark assigned a new query id. Nothing was written. Give this query its own transactionalIdPrefix. If "
            "its checkpoint was deleted, the rows that it reads from the beginning will be written once more.",
            describe_unknown_writer(entry),
        )
    )


def build_stale_batch_error(entry: Entry, batch: Batch) -> ExactlyOnceError:
    """Build the error for a batch with a smaller number than the entry's batch, which was decided last."""
    return ExactlyOnceError(
        join_sentences(
            f"{batch} must not be written: {entry.batch} is already decided (prefix {entry.prefix}). The checkpoint is "
            "older than the data in Kafka: it was restored from a copy, or two drivers use copies of the same "
            "checkpoint. Nothing was written. Continue with the newest checkpoint.",
            describe_unknown_writer(entry),
        )
    )


def build_replay_mismatch_error(
    entry: Entry, batch: Batch, decided_summary: BatchSummary, summary: BatchSummary
) -> ExactlyOnceError:
    """Build the error for a committed batch that is run again and has a different number of rows in some topic.

    `decided_summary`: the row counts that were committed.
    `summary`: the row counts of this run.
    """
    if batch.key is None:
        other_cause = "the checkpoint was restored or copied"
        newest_checkpoint = "- If there is a newer checkpoint, continue with it.\n"
    else:
        other_cause = "the key is used for another job"
        newest_checkpoint = ""
    return ExactlyOnceError(
        f"{batch} is already in Kafka (prefix {entry.prefix}), but with different rows: {decided_summary} were "
        f"committed, and this run has {summary}. Nothing was written now. The source returns different rows when it is "
        f"read again, or {other_cause}.",
        remedy="What to do:\n"
        f"{newest_checkpoint}"
        "- If the plan itself returns different rows, because of rand() or the current time in a filter, set "
        'onReplayMismatch to "warn" to keep the rows that were committed first.\n'
        "- Otherwise, compare the rows of this run with the records in Kafka. "
        f"{_describe_how_to_complete(batch, indentation='  ')}",
    )


def build_unproven_decision_error(
    entry: Entry, batch: Batch, decided_summary: BatchSummary, summary: BatchSummary
) -> ExactlyOnceError:
    """Build the error for a batch that is committed only according to an unproven entry.

    `decided_summary`: the row counts in the entry.
    `summary`: the row counts of this run.
    """
    return ExactlyOnceError(
        f"The decision log says that {batch} is already in Kafka (prefix {entry.prefix}) and had "
        f"{decided_summary}; this run has {summary}. However, it is not known who wrote this log entry. "
        f"{_UNKNOWN_WRITER_REASON} Nothing was written now.",
        remedy=f"Compare the rows of this run with the records in Kafka. {_describe_how_to_complete(batch)}",
    )


def _describe_how_to_complete(batch: Batch, indentation: str = "") -> str:
    """Say how to compare the rows of a batch that was not skipped with the records in Kafka, and what to do then.

    `indentation`: the spaces before each item of the list of results.
    """
    option = "transactionalIdPrefix" if batch.key is None else "idempotencyKey"
    return (
        f"{COMPARISON_HINT}\n"
        f'{indentation}- All rows are there: set onReplayMismatch to "warn" for this run to keep the committed rows.\n'
        f"{indentation}- Only some are there: first write the missing ones with a separate job. Then set "
        'onReplayMismatch to "warn" for this run.\n'
        f"{indentation}- None are there: start with another {option}. Do so only then: it writes all rows of this run, "
        "even those that are already in Kafka."
    )


_UNKNOWN_WRITER_REASON = (
    "Brokers forget a transactional id that is not used for a week, and do not list ids that this user may not "
    "describe. The entry may therefore come from an earlier driver, or from anyone else who may write to the log."
)


def describe_unknown_writer(entry: Entry) -> str:
    """Return a warning that somebody else may have written the entry. It is added to the end of a message.

    Return an empty string if it is certain that a driver of the prefix has written the entry.
    """
    return f"It is not known who wrote this log entry. {_UNKNOWN_WRITER_REASON}" if entry.is_unproven else ""


def build_unknown_prefix_error(log_topic: str, prefix: str, *, log_exists: bool) -> ConfigurationError:
    """Build the error of `pykafka transactions` for a prefix that has no entry in the decision log."""
    reason = f"has no entry for the prefix {prefix}" if log_exists else "does not exist"
    is_entry_probably_deleted = log_exists and is_generated_job_prefix(prefix)
    return ConfigurationError(
        join_sentences(
            f"The decision log {log_topic} {reason}, so it is not known what is decided under {prefix}. Nothing was "
            "done. If the write uses a different log (decisionLogTopic), set --log-topic.",
            _DELETED_ENTRY_REASON if is_entry_probably_deleted else "",
        )
    )


_DELETED_ENTRY_REASON = (
    "If it uses this log, no transactions are left to end: the entry of a job without a name is deleted once all of "
    "them are committed or aborted. Unless the application log says that the job was aborted, compare its rows with "
    f"the records in Kafka, and write only the missing ones. {COMPARISON_HINT}"
)


# --- in a task


def build_late_attempt_error(prefix: str, outcome: str) -> ExactlyOnceError:
    """Build the error for a task attempt whose batch is already decided or aborted.

    `outcome`: a sentence about the rows of the attempt.
    """
    return ExactlyOnceError(
        "This attempt came too late: its batch is over, or a newer driver or `pykafka transactions` has taken over the "
        f"prefix {prefix}. {outcome}"
    )


@contextmanager
def convert_rejected_transaction_timeout(task_id: str, timeout_ms: int, *, is_user_timeout: bool) -> Iterator[None]:
    """Convert the rejection of a task's transaction timeout to an ExactlyOnceError with the remedy.

    The driver's coordinator has granted the same timeout. So the brokers' limit has been decreased since, or the task's
    coordinator has a lower limit than the driver's.

    `task_id`: the task's transactional id.
    `timeout_ms`: the task's transaction timeout.
    `is_user_timeout`: whether the user has set the timeout.
    """
    try:
        yield
    except BrokerError as error:
        if error.code != error_codes.INVALID_TRANSACTION_TIMEOUT:
            raise
        remedy = _USER_TIMEOUT_REMEDY if is_user_timeout else _TASK_LIMIT_DECREASED_REMEDY
        limit_error = build_timeout_limit_error(task_id, timeout_ms, remedy)
        raise ExactlyOnceError(f"This task wrote nothing: {limit_error}") from error


# --- fencing that a driver detects itself


def build_hand_over_error(transactional_id: str, next_id: str) -> BrokerError:
    """Build the ProducerFencedError for a driver that must continue under the next driver id.

    The epochs of its current transactional id are used up.
    """
    return build_broker_error(
        error_codes.PRODUCER_FENCED,
        f"transactional id {transactional_id} has no epochs left; {next_id} is the next one",
    )


def build_other_driver_error(transactional_id: str) -> BrokerError:
    """Build the ProducerFencedError for a driver that finds another driver before a broker has rejected it."""
    return build_broker_error(
        error_codes.PRODUCER_FENCED, f"another driver is using the transactional id {transactional_id}"
    )
