"""Errors before the commit of a batch. Each message has the cause, the state of the data in Kafka, and the remedy."""

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
from spark_kafka_sink.exactly_once.batch_content import BatchContent
from spark_kafka_sink.exactly_once.entries import Batch, Entry, WriterKind
from spark_kafka_sink.protocol import error_codes
from spark_kafka_sink.protocol.error_codes import build_broker_error

# --- before the first row


def build_nothing_written_error(reason: object) -> PreflightError:
    return PreflightError(f"Kafka cannot be written to exactly once, and nothing was written: {reason}")


def build_unknown_id_rejected_error(error: BrokerError) -> PreflightError:
    """Build the error for a broker that rejects the first epoch request of a transactional id, unlike Kafka."""
    return build_nothing_written_error(
        f"{error.name}: the broker rejected InitProducerId with an expected producer id for a transactional id that it "
        "does not know. Apache Kafka accepts it, and without it two drivers that start at the same time cannot be told "
        "apart. Remove deliveryGuarantee, or use brokers that accept it."
    )


def build_timeout_rejected_error(error: BrokerError, *, is_user_timeout: bool) -> PreflightError:
    remedy = _USER_TIMEOUT_REMEDY if is_user_timeout else _GRANTED_TOO_LITTLE_REMEDY
    return build_nothing_written_error(f"{error} {remedy}")


_USER_TIMEOUT_REMEDY = (
    "Lower kafka.transaction.timeout.ms, or leave it out to use the longest timeout that the brokers grant."
)
_GRANTED_TOO_LITTLE_REMEDY = (
    "kafka.transaction.timeout.ms is not set, and the brokers grant less than the sink needs. Raise their "
    "transaction.max.timeout.ms. If it was lowered while this query ran, start the query again: it requests a new "
    "timeout."
)
_GRANTED_LESS_REMEDY = (
    "kafka.transaction.timeout.ms is not set, so it is the longest timeout that the brokers granted when this write "
    "began, and now one of them grants less. Start again: the sink requests a new timeout. If the brokers have "
    "different values of transaction.max.timeout.ms, for example during a rolling restart that lowers it, set "
    "kafka.transaction.timeout.ms to the lowest of them."
)


def build_log_not_compacted_error(topic: str, policy: str) -> PreflightError:
    return build_nothing_written_error(
        f"topic {topic}, the decision log, has cleanup.policy={sanitize(policy)}. It would lose decisions, and a batch "
        "could be written twice. Set the topic's cleanup.policy to compact, or set decisionLogTopic to another topic: "
        "the sink creates it with the right settings if it is missing."
    )


@contextmanager
def convert_start_errors() -> Iterator[None]:
    """Convert rejections by brokers to PreflightError, whose message says that nothing was written."""
    try:
        yield
    except UnsupportedVersionError as error:
        raise build_nothing_written_error(f"{error} Exactly once requires Kafka 3.0 or newer.") from error
    except BrokerError as error:
        raise build_nothing_written_error(error) from error


def build_superseded_error(entry: Entry, driver_name: str) -> ExactlyOnceError:
    return ExactlyOnceError(
        f"A newer driver has taken over the query with the prefix {entry.prefix}: {entry.driver_name}. This driver, "
        f"{driver_name}, must stop. Two drivers of a query must not run at the same time. If the newer one has ended, "
        "start this query again."
    )


def build_overtaken_error(entry: Entry, driver_name: str) -> ExactlyOnceError:
    return ExactlyOnceError(
        f"A newer driver has taken over the query with the prefix {entry.prefix}: {entry.driver_name}. It did so after "
        f"this driver, {driver_name}, had read the decision log. This driver has changed nothing and must stop. The "
        "newer one may be running, or may have ended by now. If this driver should run instead, make sure that the "
        "newer one has ended, and start this one again."
    )


def build_concurrent_start_error(prefix: str, driver_name: str) -> ExactlyOnceError:
    return ExactlyOnceError(
        f"Several drivers started under the prefix {prefix} at the same time, and this one, {driver_name}, has given "
        "way. Nothing was written. Start only one driver, and give each query its own transactionalIdPrefix."
    )


def build_log_lost_error(prefix: str, topic: str) -> ExactlyOnceError:
    return ExactlyOnceError(
        f"Topic {topic}, the decision log, has no entry of the prefix {prefix}, although the prefix's driver has "
        "written to it: the topic was deleted or emptied, records of others have replaced its entry, or partitions "
        "were added to it. It is unknown which batch was committed last, so nothing was written. Compare the last "
        "batch of the checkpoint with the records in Kafka. Then start with another transactionalIdPrefix: a batch "
        "that was committed, but is not in the checkpoint's commits yet, will be written once more."
    )


def build_log_records_deleted_error(topic: str, partition: int) -> ExactlyOnceError:
    """Return the error for records that were deleted between two reads of one driver."""
    return ExactlyOnceError(
        f"Topic {topic}, the decision log: records of partition {partition} were deleted while a driver was reading "
        "it. Nothing new was decided, and nothing was aborted. Start again. Never delete records of this topic: it "
        "contains which batches are committed."
    )


def build_unreadable_entry_error(position: str, prefix: str, error: DecodeError) -> DecodeError:
    return DecodeError(
        f"{position}: the newest decision under the prefix {prefix} cannot be read: {error}. A newer version of this "
        "library may have written it: use the newest version for every driver of this query. Other queries are not "
        "affected."
    )


def build_checkpoint_mismatch_error(entry: Entry, checkpoint: str) -> ExactlyOnceError:
    return ExactlyOnceError(
        f"transactionalIdPrefix {entry.prefix} is in use by a query with the checkpoint {entry.checkpoint}, and this "
        f"query has the checkpoint {checkpoint}. Nothing was written. Give each query its own prefix. If the "
        "checkpoint was moved, let the query finish its last batch at the old location, and start it at the new one "
        "with another prefix, or without a prefix. If both are the same location, write it as before."
        + describe_unknown_writer(entry)
    )


def build_writer_kind_mismatch_error(entry: Entry) -> ExactlyOnceError:
    """Return the error for a batch job under the prefix of a stream, or a stream under the prefix of batch jobs."""
    if entry.owner_kind is WriterKind.STREAM:
        checkpoint = f" with the checkpoint {entry.checkpoint}" if entry.checkpoint else ""
        owner, writer = f"a stream{checkpoint}", "a batch job"
    else:
        owner, writer = "batch jobs", "a stream"
    last_batch = entry.last_decided_batch
    last_decision = "" if last_batch is None else f"; its last decision is {last_batch}"
    return ExactlyOnceError(
        f"transactionalIdPrefix {entry.prefix} belongs to {owner} (newest driver: {entry.driver_name}{last_decision}), "
        f"and this is {writer}. Nothing was written, and the owner was not affected. Give each stream, and each series "
        "of jobs, its own transactionalIdPrefix." + describe_unknown_writer(entry)
    )


def build_query_mismatch_error(entry: Entry, batch: Batch) -> ExactlyOnceError:
    return ExactlyOnceError(
        f"transactionalIdPrefix {entry.prefix} belongs to another query: its last decision is {entry.batch}, and this "
        f"is query {batch.query_id}. Either two queries have the same prefix, or the checkpoint was deleted, and Spark "
        "assigned a new query id. Nothing was written. Give this query its own transactionalIdPrefix. If its "
        "checkpoint was deleted, the rows that it reads from the beginning will be written once more."
        + describe_unknown_writer(entry)
    )


def build_stale_batch_error(entry: Entry, batch: Batch) -> ExactlyOnceError:
    return ExactlyOnceError(
        f"{batch} must not be written: {entry.batch} is decided already (prefix {entry.prefix}). The checkpoint is "
        "older than the data in Kafka: it was restored from a copy, or two drivers use copies of one checkpoint. "
        "Nothing was written. Continue with the newest checkpoint." + describe_unknown_writer(entry)
    )


def build_replay_mismatch_error(
    entry: Entry, batch: Batch, decided_content: BatchContent | None, content: BatchContent
) -> ExactlyOnceError:
    if decided_content is None:
        return ExactlyOnceError(
            f"{batch} is in Kafka already (prefix {entry.prefix}). An earlier version of this library has decided it "
            f"and did not record its rows, so they cannot be compared with the {content} of this run. Nothing was "
            'written now. If it is the same batch, set onReplayMismatch to "warn" for one start: then the committed '
            "rows are kept."
        )
    return ExactlyOnceError(
        f"{batch} is in Kafka already (prefix {entry.prefix}), but with different rows: {decided_content} were "
        "committed, and this "
        f"run has {content}. Nothing was written now. The checkpoint was restored or copied, the source returns other "
        "rows when it is read again, or the key is used for another job. If the rows of this run should be written, "
        "start with another key or checkpoint and another transactionalIdPrefix. If the plan itself returns other "
        'rows, because of rand() or the time in a filter, set onReplayMismatch to "warn": then the rows that were '
        "committed first are kept."
    )


def build_unproven_decision_error(
    entry: Entry, batch: Batch, decided_content: BatchContent | None, content: BatchContent
) -> ExactlyOnceError:
    option = "transactionalIdPrefix" if batch.key is None else "idempotencyKey"
    return ExactlyOnceError(
        f"The decision log says that {batch} is in Kafka already (prefix {entry.prefix}), with "
        f"{decided_content or 'rows that it does not name'}; this run has {content}. But it is unknown who wrote this "
        "entry. "
        f"{_UNKNOWN_WRITER_REASON} Nothing was written now. Check the topics. If the rows are there, set "
        'onReplayMismatch to "warn" for this run: then the committed rows are kept. If they are not, start with '
        f"another {option}."
    )


_UNKNOWN_WRITER_REASON = (
    "Brokers forget a transactional id that was not used for a week, and do not list ids that this user may not "
    "describe. So an earlier driver may have written the entry, or anybody else who may write to the log."
)


def describe_unknown_writer(entry: Entry) -> str:
    """Return a sentence to append to an error because of an unproven entry; empty for a proven one."""
    return f" It is unknown who wrote this entry of the log. {_UNKNOWN_WRITER_REASON}" if entry.is_unproven else ""


def build_unknown_prefix_error(topic: str, prefix: str, *, log_exists: bool) -> ConfigurationError:
    """Return the error of `pykafka transactions` for a prefix without an entry, perhaps because the log is another."""
    reason = f"has no entry of the prefix {prefix}" if log_exists else "does not exist"
    return ConfigurationError(
        f"The decision log {topic} {reason}, so it is not known what is decided under {prefix}. Nothing was done. If "
        "the write uses another log (decisionLogTopic), set --log-topic."
    )


# --- in a task


def build_late_attempt_error(prefix: str, outcome: str) -> ExactlyOnceError:
    return ExactlyOnceError(
        "This attempt came too late: its batch is over, or a newer driver has taken over the query with the prefix "
        f"{prefix}. {outcome}"
    )


@contextmanager
def convert_timeout_errors(*, is_user_timeout: bool) -> Iterator[None]:
    """Convert the rejection of a task's transaction timeout, which the brokers have granted to the driver before."""
    try:
        yield
    except BrokerError as error:
        if error.code != error_codes.INVALID_TRANSACTION_TIMEOUT:
            raise
        remedy = _USER_TIMEOUT_REMEDY if is_user_timeout else _GRANTED_LESS_REMEDY
        raise ExactlyOnceError(f"This task wrote nothing: {error} {remedy}") from error


# --- fencing that a driver detects itself


def build_hand_over_error(transactional_id: str, next_id: str) -> BrokerError:
    return build_broker_error(
        error_codes.PRODUCER_FENCED, f"transactional id {transactional_id} has no epochs left, and {next_id} follows it"
    )


def build_fenced_error(transactional_id: str) -> BrokerError:
    return build_broker_error(error_codes.PRODUCER_FENCED, f"transactional id {transactional_id} has another epoch now")
