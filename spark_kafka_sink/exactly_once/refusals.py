"""The errors of exactly once: what happened, what is in Kafka now, and what to do."""

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
from spark_kafka_sink.exactly_once.content import Content
from spark_kafka_sink.exactly_once.entries import Batch, Entry, WriterKind
from spark_kafka_sink.protocol import error_codes
from spark_kafka_sink.protocol.error_codes import build_broker_error

# --- before the first row


def nothing_written(reason: object) -> PreflightError:
    return PreflightError(f"Kafka cannot be written to exactly once, and nothing was written: {reason}")


def timeout_refused(error: BrokerError, *, is_chosen: bool) -> PreflightError:
    remedy = _CHOSEN_TOO_LONG if is_chosen else _GRANTED_TOO_LITTLE
    return nothing_written(f"{error} {remedy}")


_CHOSEN_TOO_LONG = "Lower kafka.transaction.timeout.ms, or leave it out to have the longest that the brokers grant."
_GRANTED_TOO_LITTLE = (
    "kafka.transaction.timeout.ms is not set, and the brokers grant less than the sink can do with. Raise their "
    "transaction.max.timeout.ms. If it was lowered while this query ran, start the query again: it asks anew."
)
_GRANTED_NO_MORE = (
    "kafka.transaction.timeout.ms is not set, so it is the longest that the brokers granted when this write began, and "
    "now one of them grants less. Start again: the sink asks anew. If brokers differ in transaction.max.timeout.ms, as "
    "while it is lowered on one after the other, set kafka.transaction.timeout.ms to the least of them."
)


def log_forgets(topic: str, policy: str) -> PreflightError:
    return nothing_written(
        f"topic {topic}, the log of what is decided, has cleanup.policy={sanitize(policy)}. It would forget decisions, "
        "and a batch could be written twice. Set the topic's cleanup.policy to compact, or name another topic with "
        "decisionLogTopic: it is created as it must be if it is missing."
    )


@contextmanager
def before_the_first_row() -> Iterator[None]:
    """What brokers refuse becomes an error that says that nothing was written."""
    try:
        yield
    except UnsupportedVersionError as error:
        raise nothing_written(f"{error} Exactly once needs brokers of Kafka 3.0 or newer.") from error
    except BrokerError as error:
        raise nothing_written(error) from error


def superseded(entry: Entry, name: str) -> ExactlyOnceError:
    return ExactlyOnceError(
        f"A newer driver has taken over the query with the prefix {entry.prefix}: {entry.driver}. This one, {name}, "
        "must stop. Two of them must not work at the same time; if the newer one has ended, start this query again."
    )


def overtaken(entry: Entry, name: str) -> ExactlyOnceError:
    return ExactlyOnceError(
        f"A newer driver has taken over the query with the prefix {entry.prefix}: {entry.driver}, after this one, "
        f"{name}, had looked who drives. This one has changed nothing and must stop. The other may be working, or may "
        "have ended by now. If it is this one that should work, make sure that the other has ended, and start this one "
        "again."
    )


def contested(prefix: str, name: str) -> ExactlyOnceError:
    return ExactlyOnceError(
        f"Several drivers begin to work under the prefix {prefix} at the same time, and this one, {name}, has given "
        "way. Nothing was written. Start one driver only, and give each query a transactionalIdPrefix of its own."
    )


def log_lost(prefix: str, topic: str) -> ExactlyOnceError:
    return ExactlyOnceError(
        f"topic {topic}, the log of what is decided, has nothing of the prefix {prefix}, but its driver has written "
        "into it: the topic was deleted or emptied, records of others have replaced its own, or partitions were added "
        "to it. Which batch was committed last is not known any more, so nothing was written. Compare the last batch "
        "of the checkpoint with what is in Kafka; then start with another transactionalIdPrefix, which begins anew: a "
        "batch that was committed and is not in the checkpoint's commits yet will be written once more."
    )


def log_deleted(topic: str, partition: int) -> ExactlyOnceError:
    """Between two looks."""
    return ExactlyOnceError(
        f"topic {topic}, the log of what is decided: records of partition {partition} were deleted at this moment. "
        "Nothing new was decided, and nothing was aborted. Start again. Records of this topic must not be deleted: it "
        "says which batches are committed."
    )


def unreadable_entry(place: str, prefix: str, error: DecodeError) -> DecodeError:
    return DecodeError(
        f"{place}: the newest decision under the prefix {prefix} cannot be read: {error}. A newer version of this "
        "library may have written it: use the newest version for every driver of this query. Other queries are not "
        "concerned."
    )


def other_checkpoint(entry: Entry, checkpoint: str) -> ExactlyOnceError:
    return ExactlyOnceError(
        f"transactionalIdPrefix {entry.prefix} is in use by a query with the checkpoint {entry.checkpoint}, and the "
        f"checkpoint of this one is {checkpoint}. Nothing was written. Give each query a prefix of its own. If the "
        "checkpoint was moved, let the query finish its last batch at the old place, and start it at the new one with "
        "another prefix, or with none. If both are one place, write it as before." + doubt(entry)
    )


def other_writer(entry: Entry) -> ExactlyOnceError:
    """A stream's prefix for a batch job, or the other way round."""
    if entry.owner_kind is WriterKind.STREAM:
        checkpoint = f" with the checkpoint {entry.checkpoint}" if entry.checkpoint else ""
        owner, this = f"a stream{checkpoint}", "a batch job"
    else:
        owner, this = "batch jobs", "a stream"
    last = "" if entry.last_decided is None else f"; the last that was decided there is {entry.last_decided}"
    return ExactlyOnceError(
        f"transactionalIdPrefix {entry.prefix} belongs to {owner} (newest driver: {entry.driver}{last}), and this is "
        f"{this}. Nothing was written, and the owner was not disturbed. Give each stream, and each series of jobs, a "
        "transactionalIdPrefix of its own." + doubt(entry)
    )


def other_query(entry: Entry, batch: Batch) -> ExactlyOnceError:
    return ExactlyOnceError(
        f"transactionalIdPrefix {entry.prefix} belongs to another query: the last that is decided there is "
        f"{entry.batch}, and this is query {batch.query}. Either two queries have the same prefix, or the checkpoint "
        "was deleted, and Spark began anew with another query id. Nothing was written. Give this query a "
        "transactionalIdPrefix of its own. If its checkpoint was deleted, what it reads from the beginning will be "
        "written once more." + doubt(entry)
    )


def older_batch(entry: Entry, batch: Batch) -> ExactlyOnceError:
    return ExactlyOnceError(
        f"{batch} must not be written: {entry.batch} is decided already (prefix {entry.prefix}). The checkpoint is "
        "older than what is in Kafka: it was restored from a copy, or two drivers work on copies of one checkpoint. "
        "Nothing was written. Go on with the newest checkpoint." + doubt(entry)
    )


def replay_mismatch(entry: Entry, batch: Batch, decided: Content | None, counted: Content) -> ExactlyOnceError:
    if decided is None:
        return ExactlyOnceError(
            f"{batch} is in Kafka already (prefix {entry.prefix}). An earlier version of this library has decided it "
            f"and did not note its rows, so they cannot be compared with the {counted} of this time. Nothing was "
            "written now. "
            'If it is the same batch, set onReplayMismatch to "warn" for one start; then what was committed stands.'
        )
    return ExactlyOnceError(
        f"{batch} is in Kafka already (prefix {entry.prefix}), but with other rows: {decided} were committed, and this "
        f"time there are {counted}. Nothing was written now. The checkpoint was restored or copied, the source gives "
        "other rows when it is read again, or the key is used for another job. If the rows of this time should be "
        "written, start with another key or checkpoint and another transactionalIdPrefix. If the plan gives other rows "
        "by itself, by "
        'rand() or the time in a filter, set onReplayMismatch to "warn": then what was committed first stands.'
    )


def unproven_decision(entry: Entry, batch: Batch, decided: Content | None, counted: Content) -> ExactlyOnceError:
    another = "transactionalIdPrefix" if batch.key is None else "idempotencyKey"
    return ExactlyOnceError(
        f"The decision log says that {batch} is in Kafka already (prefix {entry.prefix}), with "
        f"{decided or 'rows that it does not name'}; this time there are {counted}. But it cannot be seen who has "
        f"written that. {_UNKNOWN_WRITER} Nothing was written now. Look into the topics. If the rows are there, set "
        'onReplayMismatch to "warn" for this run: then what was committed stands. If they are not, start with another '
        f"{another}."
    )


_UNKNOWN_WRITER = (
    "Brokers forget a transactional id that was not used for a week, and show no ids that this user may not describe: "
    "so the entry may be an earlier driver's, or anybody's who may write to the log."
)


def doubt(entry: Entry) -> str:
    """What to know of an entry that stops a batch."""
    return f" It cannot be seen who has written that into the log. {_UNKNOWN_WRITER}" if entry.unproven else ""


def unknown_prefix(topic: str, prefix: str, *, exists: bool) -> ConfigurationError:
    """For `pykafka transactions`: the log has no entry of the prefix, and may not be the log of the write."""
    reason = f"does not know the prefix {prefix}" if exists else "does not exist"
    return ConfigurationError(
        f"The decision log {topic} {reason}, so it is not known what is decided under {prefix}. Nothing was done. If "
        "the write has a log of its own (decisionLogTopic), name it by --log-topic."
    )


# --- in a task


def late_attempt(prefix: str, outcome: str) -> ExactlyOnceError:
    return ExactlyOnceError(
        "This attempt came too late: its batch is over, or a newer driver has taken over the query with the prefix "
        f"{prefix}. {outcome}"
    )


@contextmanager
def timeout_may_be_refused(*, is_chosen: bool) -> Iterator[None]:
    """In a task, whose transaction may last as long as brokers have granted to the driver. `is_chosen`: by the user."""
    try:
        yield
    except BrokerError as error:
        if error.code != error_codes.INVALID_TRANSACTION_TIMEOUT:
            raise
        remedy = _CHOSEN_TOO_LONG if is_chosen else _GRANTED_NO_MORE
        raise ExactlyOnceError(f"This task wrote nothing: {error} {remedy}") from error


def handed_over(transactional_id: str, next_id: str) -> BrokerError:
    return build_broker_error(
        error_codes.PRODUCER_FENCED, f"transactional id {transactional_id} is used up, and {next_id} follows it"
    )


def fenced(transactional_id: str) -> BrokerError:
    return build_broker_error(error_codes.PRODUCER_FENCED, f"transactional id {transactional_id} has another epoch now")
