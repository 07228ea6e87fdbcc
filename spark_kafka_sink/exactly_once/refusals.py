"""The errors of exactly once: what happened, what is in Kafka now, and what to do."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager

from spark_kafka_sink.errors import (
    BrokerError,
    CommitLostError,
    ConfigurationError,
    DecodeError,
    ExactlyOnceError,
    KafkaSinkError,
    PreflightError,
    ProducerFencedError,
    UnsupportedVersionError,
)
from spark_kafka_sink.exactly_once.content import Content
from spark_kafka_sink.exactly_once.entries import Batch, Entry
from spark_kafka_sink.exactly_once.names import split_id
from spark_kafka_sink.producer.transactions.transaction_description import TransactionDescription
from spark_kafka_sink.producer.transactions.verdicts import NOT_THE_CALLERS
from spark_kafka_sink.protocol import error_codes
from spark_kafka_sink.protocol.error_codes import broker_error
from spark_kafka_sink.words import cleaned

_SHOWN_MAX = 20


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
        f"topic {topic}, the log of what is decided, has cleanup.policy={cleaned(policy)}. It would forget decisions, "
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
        f"A newer driver has taken over the query with the prefix {entry.prefix}: {entry.driver} began while this one, "
        f"{name}, was starting, and works. This one has changed nothing and must stop. If it is this one that should "
        "work, stop the other and start this one again."
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
    "Brokers forget a transactional id that was not used for a week, give it another producer id after some 10,000 "
    "batches, and show no ids that this user may not describe: so the entry may be an earlier driver's, or anybody's "
    "who may write to the log."
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


# --- at the commit


def not_open(entry: Entry, faults: Sequence[str]) -> ExactlyOnceError:
    return ExactlyOnceError(
        f"{entry.batch} was not committed, because transactions of its tasks are not open any more:\n"
        f"{_listed(faults)}\nNothing of the batch is visible, and the next start writes it again. What may have "
        "happened, and what to do:\n"
        "- Brokers have ended them: from the first row of a task to the end of the batch more than the transaction "
        f"timeout ({entry.timeout_ms / 1000:g} s) has passed. Make batches smaller, or raise the brokers' "
        "transaction.max.timeout.ms, and kafka.transaction.timeout.ms if it is set; then start again.\n"
        "- Somebody has ended them with a tool, such as kafka-transactions.sh. Start again.\n"
        "- Spark has run a stage again, and a second attempt of a task has ended what the first one had written. Start "
        "again."
    )


def too_late(entry: Entry, transaction: TransactionDescription, left_ms: float) -> ExactlyOnceError:
    return ExactlyOnceError(
        f"{entry.batch} was not committed: of the {transaction.timeout_ms / 1000:g} s that its transactions may last, "
        f"{max(0.0, left_ms) / 1000:.1f} s were left for {transaction.transactional_id}, too little to commit it "
        "safely. It was not decided, and nothing of it is visible. Make batches smaller, or let transactions last "
        "longer: raise the brokers' transaction.max.timeout.ms, and kafka.transaction.timeout.ms if it is set. If the "
        "clocks of this machine and of the brokers differ by more than some seconds, set them right."
    )


def decision_in_doubt(entry: Entry, error: KafkaSinkError) -> ExactlyOnceError:
    return ExactlyOnceError(
        f"It is not known whether {entry.batch} is decided (prefix {entry.prefix}): {error} Start again: the next "
        "start finishes the batch if it is decided, and writes it again if it is not. No row is lost or doubled."
    )


def downgraded(entry: Entry) -> ExactlyOnceError:
    return ExactlyOnceError(
        f"{entry.batch} was not committed: the cluster's transaction.version was lowered while the batch was written. "
        "Nothing of the batch is visible, and nothing is lost. Start the query again: it writes the batch again, with "
        "transactions of version 1."
    )


_LOST = NOT_THE_CALLERS | {error_codes.TRANSACTIONAL_ID_NOT_FOUND}
_FORGOTTEN = {error_codes.INVALID_PRODUCER_ID_MAPPING, error_codes.TRANSACTIONAL_ID_NOT_FOUND}
"""Brokers do not know the id, or have given it another producer id since."""


def is_lost(error: BrokerError) -> bool:
    """Does this answer mean that a transaction has ended in another way? Any other refusal says nothing of its
    outcome."""
    return error.code in _LOST


def not_committed(entry: Entry, refused: Mapping[str, BrokerError]) -> ExactlyOnceError:
    """Some transactions of a decided batch were refused: lost for good, or not committed yet."""
    is_any_lost = any(is_lost(error) for error in refused.values())
    return _commit_lost(entry, refused) if is_any_lost else not_yet_committed(entry, refused)


def commit_not_finished(entry: Entry, error: KafkaSinkError) -> ExactlyOnceError:
    return ExactlyOnceError(
        f"{entry.batch} is decided (prefix {entry.prefix}), and it is not known whether all of its "
        f"{len(entry.transactions)} transactions are committed: {error} Nothing is lost yet. {_remedy(entry)}"
        + doubt(entry)
    )


def not_yet_committed(entry: Entry, refused: Mapping[str, BrokerError]) -> ExactlyOnceError:
    """Some of the `refused` may be lost: the others are to be committed before these are given up."""
    open_ones = {name: error for name, error in refused.items() if not is_lost(error)}
    lost_ones = sorted(refused.keys() - open_ones.keys())
    lines = [f"{name}: {error}" for name, error in sorted(open_ones.items())]
    lost = f"Lost for good are: {', '.join(lost_ones)}. Nothing was given up." if lost_ones else "Nothing is lost."
    return ExactlyOnceError(
        f"{entry.batch} is decided (prefix {entry.prefix}), and {len(open_ones)} of its {len(entry.transactions)} "
        f"transactions could not be committed now:\n{_listed(lines)}\nThey are still open. {lost} {_remedy(entry)}"
        + doubt(entry)
    )


def _remedy(entry: Entry) -> str:
    return (
        "Remove the cause and start again, or let `pykafka transactions finish` commit what is open, within the "
        f"transaction timeout ({entry.timeout_ms / 1000:g} s) of its beginning."
    )


def _rows_of(transactional_id: str) -> str:
    split = split_id(transactional_id)
    return "" if split is None else f"rows of Spark's partition {split[1].partition}, "


def _commit_lost(entry: Entry, refused: Mapping[str, BrokerError]) -> CommitLostError:
    lost = {name: error for name, error in refused.items() if is_lost(error)}
    waiting = [f"{name}: {error}" for name, error in sorted(refused.items()) if name not in lost]
    others = "those of the others are committed"
    if waiting:
        others = f"these could not be committed now, and are open still:\n{_listed(waiting)}\nThe others are committed"
    by_id = {each.transactional_id: each for each in entry.transactions}
    lines = [
        f"{name} ({_rows_of(name)}producer id {by_id[name].producer_id}, epoch {by_id[name].epoch}): {error.name}"
        for name, error in sorted(lost.items())
    ]
    if all(error.code in _FORGOTTEN for error in lost.values()):
        return CommitLostError(
            f"{entry.batch} is decided (prefix {entry.prefix}), and brokers know nothing any more of {len(lost)} of "
            f"its {len(by_id)} transactions:\n{_listed(lines)}\nThey forget an id that is not used for a week "
            "(transactional.id.expiration.ms). So it is not known whether the rows of these were committed before the "
            "driver died; "
            f"{others}. Compare the batch with what is in Kafka, and write what is missing with a job of your own. "
            f"{_give_up(entry)}"
        )
    return CommitLostError(
        f"{entry.batch} is decided (prefix {entry.prefix}), and {len(lost)} of its {len(by_id)} transactions cannot "
        f"be committed any more:\n{_listed(lines)}\nThe rows of these are lost to read_committed readers; {others}. "
        "Probably the driver was down for longer than the transaction timeout "
        f"({entry.timeout_ms / 1000:g} s) between the decision and the commit. The batch is not written again by "
        "itself, since this would double what is committed. If the missing rows are needed, write them with a job of "
        f"your own first. {_give_up(entry)}"
    )


def _give_up(entry: Entry) -> str:
    return (
        f"Then note the batch as done: `pykafka transactions give-up --bootstrap-server HOST:PORT --prefix "
        f"{entry.prefix}`, with --log-topic if the write has decisionLogTopic. After that a stream goes on with its "
        "next batch, and a job with this key writes nothing." + doubt(entry)
    )


def fenced(transactional_id: str) -> BrokerError:
    return broker_error(error_codes.PRODUCER_FENCED, f"transactional id {transactional_id} has another epoch now")


@contextmanager
def fenced_before_the_decision(entry: Entry) -> Iterator[None]:
    with _fenced_means(
        f"{entry.batch} was not committed: a newer driver has taken over the query with the prefix {entry.prefix}, or "
        "`pykafka transactions` has. This one must stop. The driver that goes on writes the batch, or finishes it if "
        "it was decided at the last moment: no row is lost or doubled."
    ):
        yield


@contextmanager
def fenced_after_the_decision(entry: Entry) -> Iterator[None]:
    with _fenced_means(
        f"{entry.batch} is decided, and a newer driver has taken over the query with the prefix {entry.prefix} since, "
        "which finishes it. This one must stop."
    ):
        yield


@contextmanager
def fenced_after_the_commit(entry: Entry) -> Iterator[None]:
    with _fenced_means(
        f"{entry.batch} is committed, and a newer driver has taken over the query with the prefix {entry.prefix} "
        "since. This one must stop."
    ):
        yield


@contextmanager
def _fenced_means(words: str) -> Iterator[None]:
    try:
        yield
    except KafkaSinkError as error:
        if not isinstance(error, ProducerFencedError) and not isinstance(error.__cause__, ProducerFencedError):
            raise
        raise ExactlyOnceError(words) from error


def _listed(lines: Sequence[str]) -> str:
    shown = [f"- {line}" for line in lines[:_SHOWN_MAX]]
    if len(lines) > len(shown):
        shown.append(f"- and {len(lines) - len(shown)} more")
    return "\n".join(shown)
