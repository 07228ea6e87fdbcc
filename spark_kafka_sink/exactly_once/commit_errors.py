"""The errors of a commit: whether the batch is decided, which rows are visible, and what to do."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager

from spark_kafka_sink.errors import BrokerError, CommitLostError, ExactlyOnceError, KafkaSinkError, ProducerFencedError
from spark_kafka_sink.exactly_once.entries import Entry
from spark_kafka_sink.exactly_once.refusals import doubt
from spark_kafka_sink.exactly_once.transaction_names import split_id
from spark_kafka_sink.protocol import error_codes
from spark_kafka_sink.requests.transaction_description import TransactionDescription
from spark_kafka_sink.requests.verdicts import OWNERSHIP_LOST_ERRORS

_SHOWN_MAX = 20


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
        f"It is not known whether {entry.batch} is decided (prefix {entry.prefix}): {error} {_doubt_remedy(entry)}"
    )


def _doubt_remedy(entry: Entry) -> str:
    if entry.batch.is_known_to_reruns:
        return (
            "Start again: the next start finishes the batch if it is decided, and writes it again if it is not. No row "
            "is lost or doubled."
        )
    return (
        "A job without an idempotencyKey is written again by each run, so do not run it again before you know. If the "
        "log says below that its transactions were aborted, nothing of it is visible: run it again. Else `pykafka "
        f"transactions abort --bootstrap-server HOST:PORT --prefix {entry.prefix}` aborts it if it is not decided, and "
        f"rejects the abort if it is. {_COMMIT_WITHOUT_RERUN}"
    )


_COMMIT_WITHOUT_RERUN = (
    "If it is decided, do not run the job again: that would write all of its rows twice. `pykafka transactions finish` "
    "commits what is open."
)


def downgraded(entry: Entry) -> ExactlyOnceError:
    return ExactlyOnceError(
        f"{entry.batch} was not committed: the cluster's transaction.version was lowered while the batch was written. "
        "Nothing of the batch is visible, and nothing is lost. Start the query again: it writes the batch again, with "
        "transactions of version 1."
    )


_LOST = OWNERSHIP_LOST_ERRORS | {error_codes.TRANSACTIONAL_ID_NOT_FOUND}
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
    timeout = f"within the transaction timeout ({entry.timeout_ms / 1000:g} s) of its beginning."
    if entry.batch.is_known_to_reruns:
        return "Remove the cause and start again, or let `pykafka transactions finish` commit what is open, " + timeout
    return (
        "Do not run the job again: it has no idempotencyKey, so that would write all of its rows twice. Remove the "
        "cause, and let `pykafka transactions finish --bootstrap-server HOST:PORT --prefix "
        f"{entry.prefix}` commit what is open, {timeout}"
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
    rerun = "" if entry.batch.is_known_to_reruns else " Do not run the job again: that would write its rows twice."
    with _fenced_means(
        f"{entry.batch} is decided, and a newer driver has taken over the query with the prefix {entry.prefix} since, "
        f"which finishes it. This one must stop.{rerun}"
    ):
        yield


@contextmanager
def failed_after_the_commit(entry: Entry) -> Iterator[None]:
    """A stream's batch whose rows are all visible, while its driver could not note that in the decision log."""
    try:
        with _fenced_means(
            f"{entry.batch} is committed, and a newer driver has taken over the query with the prefix {entry.prefix} "
            "since. This one must stop."
        ):
            yield
    except ExactlyOnceError:
        raise
    except KafkaSinkError as error:
        raise ExactlyOnceError(
            f"{entry.batch} is committed (prefix {entry.prefix}), and all of its rows are visible, but this could not "
            f"be noted in the decision log: {error} Start again: the next start notes it, and does not write the batch "
            "again."
        ) from error


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
