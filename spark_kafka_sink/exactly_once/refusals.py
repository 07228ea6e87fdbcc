"""The errors of exactly once: what happened, what is in Kafka now, and what to do."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager

from spark_kafka_sink.errors import (
    BrokerError,
    CommitLostError,
    ExactlyOnceError,
    KafkaSinkError,
    PreflightError,
    ProducerFencedError,
    UnsupportedVersionError,
)
from spark_kafka_sink.exactly_once.entries import Batch, Entry
from spark_kafka_sink.exactly_once.names import task_id
from spark_kafka_sink.protocol import error_codes
from spark_kafka_sink.protocol.error_codes import broker_error
from spark_kafka_sink.words import cleaned

_SHOWN_MAX = 20


# --- before the first row


def nothing_written(reason: object) -> PreflightError:
    return PreflightError(f"Kafka cannot be written to exactly once. Nothing was written.\n- {reason}")


def timeout_refused(error: BrokerError) -> PreflightError:
    remedy = "Lower kafka.transaction.timeout.ms, or leave it out to have the longest that the brokers grant."
    return nothing_written(f"{error} {remedy}")


def log_forgets(topic: str, policy: str) -> PreflightError:
    return nothing_written(
        f"topic {topic}, the log of what is decided, has cleanup.policy={cleaned(policy)}. It would forget decisions, "
        "and a batch could be written twice. Set the topic's cleanup.policy to compact, or name another topic with "
        "decisionLogTopic: one that does not exist is created as it must be."
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
        f"A newer driver has taken over the query with the prefix {entry.prefix}: {entry.drivers[-1]}. This one, "
        f"{name}, must stop. Two drivers worked on one checkpoint; the newer one goes on."
    )


def other_checkpoint(entry: Entry, checkpoint: str) -> ExactlyOnceError:
    return ExactlyOnceError(
        f"transactionalIdPrefix {entry.prefix} is in use by a query with the checkpoint {entry.checkpoint}, and the "
        f"checkpoint of this one is {checkpoint}. Nothing was written. Give each query a prefix of its own. One whose "
        "checkpoint was moved gets a new prefix; it is known by its query id. If both are one place, write it "
        "as before."
    )


def other_query(entry: Entry, batch: Batch) -> ExactlyOnceError:
    return ExactlyOnceError(
        f"transactionalIdPrefix {entry.prefix} belongs to another query: the last that is decided there is "
        f"{entry.batch}, and this is query {batch.query}. Either two queries have the same prefix, or the checkpoint "
        "was deleted, and Spark began anew with another query id. Nothing was written. Give this query a "
        "transactionalIdPrefix of its own. If its checkpoint was deleted, what it reads from the beginning will be "
        "written once more."
    )


def older_batch(entry: Entry, batch: Batch) -> ExactlyOnceError:
    return ExactlyOnceError(
        f"{batch} must not be written: {entry.batch} is decided already (prefix {entry.prefix}). The checkpoint is "
        "older than what is in Kafka: it was restored from a copy, or two drivers work on copies of one checkpoint. "
        "Nothing was written. Go on with the newest checkpoint."
    )


def unfinished(entry: Entry, batch: Batch) -> ExactlyOnceError:
    return ExactlyOnceError(
        f"{batch} was decided under the prefix {entry.prefix} and is not committed yet. Nothing was written. Set "
        f'transactionalIdPrefix to "{entry.prefix}" for the next start, or let `pykafka transactions` finish it.'
    )


# --- at the commit


def not_open(entry: Entry, faults: Sequence[str]) -> ExactlyOnceError:
    return ExactlyOnceError(
        f"{entry.batch} was not committed, because transactions of its tasks are not open any more:\n"
        f"{_listed(faults)}\nThe time between a task's first row and the end of the batch must stay below the "
        f"transaction timeout ({entry.timeout_ms / 1000:g} s; the brokers' limit is transaction.max.timeout.ms). "
        "Nothing of the batch is visible, and the next start writes it again."
    )


def commit_lost(entry: Entry, refused: Mapping[str, BrokerError]) -> CommitLostError:
    by_id = {task_id(entry.prefix, each.task): each for each in entry.transactions}
    lines = [
        f"{name} (rows of Spark's partition {by_id[name].task.partition}, producer id {by_id[name].producer_id}, epoch "
        f"{by_id[name].epoch}): {error.name}"
        for name, error in sorted(refused.items())
    ]
    return CommitLostError(
        f"{entry.batch} is decided (prefix {entry.prefix}), and {len(refused)} of its {len(by_id)} transactions cannot "
        f"be committed any more:\n{_listed(lines)}\nThe rows of these are lost to read_committed readers; those of the "
        "others are committed. Probably the driver was down for longer than the transaction timeout "
        f"({entry.timeout_ms / 1000:g} s) between the decision and the commit. The batch is not written again by "
        "itself, since this would double what is committed. docs/exactly-once.md says how to go on: `pykafka "
        "transactions` shows what is decided, and can give up what is lost."
    )


def fenced(transactional_id: str) -> BrokerError:
    return broker_error(error_codes.PRODUCER_FENCED, f"transactional id {transactional_id} has another epoch now")


@contextmanager
def fenced_before_the_decision(entry: Entry) -> Iterator[None]:
    with _fenced_means(
        f"{entry.batch} was not committed: a newer driver has taken over the query with the prefix {entry.prefix}, or "
        "`pykafka transactions` has. This one must stop. Nothing of the batch is visible; the driver that goes on "
        "writes it."
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
