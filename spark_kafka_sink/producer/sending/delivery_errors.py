"""Builds the exception that a failed batch's futures get: words for the user at two in the morning."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from copy import copy
from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

from spark_kafka_sink.client.cluster import Node
from spark_kafka_sink.client.in_flight import ClientResponse
from spark_kafka_sink.client.metadata import Metadata
from spark_kafka_sink.client.network_client import NetworkClient
from spark_kafka_sink.errors import (
    AuthenticationError,
    BatchRefusedError,
    DataError,
    DeliveryError,
    DeliveryTimeoutError,
    DisconnectedError,
    InvalidRecordError,
    KafkaSinkError,
    RecordTooLargeError,
)
from spark_kafka_sink.producer.batching.batch import ProducerBatch
from spark_kafka_sink.protocol import error_codes as codes
from spark_kafka_sink.protocol.error_codes import broker_error, error_code
from spark_kafka_sink.protocol.messages.produce import PartitionProduceResponse, ProduceResponse
from spark_kafka_sink.words import cleaned, placed

if TYPE_CHECKING:
    from spark_kafka_sink.producer.sending.deliveries import SentBatches

_DOUBT = "The records may be stored all the same."
_AT_FAULT: dict[int, type[DataError]] = {
    codes.MESSAGE_TOO_LARGE: RecordTooLargeError,
    codes.INVALID_RECORD: InvalidRecordError,
}
"""Where it is clear that the record is wrong if it was alone in its batch."""


class Answer(NamedTuple):
    """One partition's part of a response, or what stands for it."""

    code: int
    base_offset: int = -1
    log_append_time: int = -1
    log_start_offset: int = -1
    words: str = ""
    record_words: Mapping[int, str] = {}
    """What the broker says of single records, by their place in the batch (KIP-467)."""
    cause: KafkaSinkError | None = None
    """Why there was no answer, if there was none."""


def answers_of(response: ClientResponse, sent: SentBatches, acks: int) -> Iterator[tuple[ProducerBatch, Answer]]:
    """Every batch of a request that is over, with its answer or with what stands for it."""
    message = response.message
    unanswered = {topic: dict(batches) for topic, batches in sent.batches.items()}
    if isinstance(message, ProduceResponse):
        for topic in message.responses:
            its_batches = unanswered.get(sent.name(topic), {})
            for row in topic.partition_responses:
                batch = its_batches.pop(row.index, None)
                if batch is not None:
                    yield batch, answer_of(row)
    for left_out in unanswered.values():
        for batch in left_out.values():
            yield batch, answer_without_message(response, acks)


def answer_of(row: PartitionProduceResponse) -> Answer:
    errors = row.record_errors
    named = {one.batch_index: cleaned(one.batch_index_error_message) for one in errors} if errors else {}
    words = cleaned(row.error_message) if row.error_message else ""
    return Answer(row.error_code, row.base_offset, row.log_append_time_ms, row.log_start_offset, words, named)


def no_answer(reason: str) -> Answer:
    """The connection was lost; the broker may have stored the records or not."""
    return Answer(codes.NETWORK_EXCEPTION, cause=DisconnectedError(reason or "the connection was lost"))


def answer_without_message(response: ClientResponse, acks: int) -> Answer:
    """What stands for a partition's answer where there is none."""
    if response.version_error is not None:
        return Answer(codes.UNSUPPORTED_VERSION, cause=response.version_error)
    if response.disconnected:
        return no_answer(response.reason)
    if acks == 0:
        return Answer(codes.NONE)
    return no_answer("the broker's answer leaves this partition out")


def attempt_error(batch: ProducerBatch, answer: Answer) -> KafkaSinkError:
    """What went wrong this time."""
    if answer.cause is not None:
        return answer.cause
    where = placed(*batch.topic_partition)
    error = broker_error(answer.code, where)
    return _with_words(error, answer.words) if answer.words else error


def final_error(batch: ProducerBatch, answer: Answer, failure: Fail) -> KafkaSinkError:
    """The error of a batch that will not be tried again."""
    error = attempt_error(batch, answer)
    if failure.timed_out:
        return timeout_error(batch, error, in_doubt=failure.in_doubt)
    if failure.retries_used_up or failure.in_doubt:
        tail = f" {_DOUBT}" if failure.in_doubt else ""
        return _because(DeliveryError(f"{_sentence(error)} Attempts: {batch.attempts + 1}.{tail}"), error)
    kind = _AT_FAULT.get(answer.code) if batch.record_count == 1 else None
    return error if kind is None else _because(kind(str(error)), error)


def why_not_stored(batch: ProducerBatch, metadata: Metadata, client: NetworkClient) -> Exception | None:
    """Why the batch is not stored: an error of its topic, its leader or its last attempt, or why there was none."""
    topic, partition = batch.topic_partition
    leader = metadata.snapshot.leader(topic, partition)
    error = metadata.topic_error(topic) or _refused_by(leader, client) or _unreachable(leader, metadata)
    if error is not None:
        return error
    if batch.ever_sent:
        return _silent(batch.error)
    if batch.error is not None:
        return batch.error
    if metadata.has_unreachable:
        return DisconnectedError(metadata.unreachable_words())
    known = metadata.snapshot.partition(topic, partition)
    has_leader = known is not None and known.leader is not None
    return None if has_leader else DisconnectedError("The partition has no leader.")


def _refused_by(leader: Node | None, client: NetworkClient) -> KafkaSinkError | None:
    refusal = None if leader is None else client.authentication_exception(leader.id)
    if refusal is None:
        return None
    return _because(AuthenticationError(f"{leader} refuses the authentication: {refusal}"), refusal)


def _unreachable(leader: Node | None, metadata: Metadata) -> KafkaSinkError | None:
    reason = None if leader is None else metadata.why_unreachable(leader.id)
    if leader is None or reason is None:
        return None
    reason = reason.removeprefix(f"{leader.address}: ").rstrip(".")
    return DisconnectedError(
        f"The partition's leader, {leader}, cannot be reached: {reason}. See whether it runs. The broker "
        f"advertises {leader.address} (advertised.listeners): clients must be able to reach it there."
    )


def _silent(error: Exception | None) -> Exception | None:
    """What to do if the last attempt had no answer, added to what became of it."""
    if not isinstance(error, DisconnectedError):
        return error
    remedy = "See that broker's log, and its load; delivery.timeout.ms is how long it is waited for."
    return _because(DisconnectedError(f"{_sentence(error)} {remedy}"), error)


def timeout_error(batch: ProducerBatch, last: Exception | None, *, in_doubt: bool) -> KafkaSinkError:
    """The error of a batch whose delivery.timeout.ms has passed."""
    where = placed(*batch.topic_partition)
    limit_ms = batch.deadline_ms - batch.created_ms
    why = "" if batch.ever_sent else " Never sent."
    if last is not None:
        why += f" The last attempt: {_sentence(last)}" if batch.ever_sent else f" {_sentence(last)}"
    doubt = f" {_DOUBT}" if in_doubt else ""
    words = f"{where}: not acknowledged within {limit_ms:.0f} ms.{why}{doubt}"
    return _because(DeliveryTimeoutError(words), last)


def abandoned_error(batch: ProducerBatch, last: Exception | None) -> KafkaSinkError:
    """The error of a batch that cannot keep its sequence, while another sequence could store it twice (rule 3)."""
    where = placed(*batch.topic_partition)
    words = (
        f"{where}: sent without an answer, and records before them were refused. "
        f"They are not sent again, for that could store them twice. The last attempt: {_sentence(last)} {_DOUBT}"
    )
    return _because(DeliveryError(words), last)


def encoding_error(batch: ProducerBatch) -> KafkaSinkError:
    words = f"{placed(batch.topic_partition.topic)}: the rows could not be encoded: {batch.error!r}"
    return _because(DeliveryError(words), batch.error)


def split_error(batch: ProducerBatch, error: Exception) -> KafkaSinkError:
    words = f"{placed(*batch.topic_partition)}: a batch that was refused as too large could not be split: {error!r}"
    return _because(DeliveryError(words), error)


def with_doubt(error: KafkaSinkError) -> KafkaSinkError:
    """A copy of the error for records that were sent before: it adds that they may be stored."""
    doubtful = copy(error)
    doubtful.args = (f"{error} {_DOUBT}",)
    return _because(doubtful, error.__cause__)


def record_errors(batch: ProducerBatch, answer: Answer) -> tuple[dict[int, KafkaSinkError], KafkaSinkError | None]:
    """The errors of the records that the broker named, and the error of the others, which it did not object to."""
    words_by_index = {index: words for index, words in answer.record_words.items() if 0 <= index < batch.record_count}
    if not words_by_index:
        return {}, None
    where = placed(*batch.topic_partition)
    name = error_code(answer.code).name
    named: dict[int, KafkaSinkError] = {
        index: InvalidRecordError(f"{where}: the broker refused this record: {words or answer.words or name} ({name})")
        for index, words in words_by_index.items()
    }
    innocent = BatchRefusedError(
        f"{where}: not stored, because {len(named)} other records of the same batch were refused ({name}). "
        "This record may be sent again."
    )
    return named, innocent


def _sentence(error: Exception | None) -> str:
    """The text with a period at its end, so that other sentences can follow."""
    words = str(error)
    return words if words.endswith(".") else f"{words}."


def _with_words(error: KafkaSinkError, words: str) -> KafkaSinkError:
    error.args = (f"{error} The broker says: {words}",)
    return error


def _because(error: KafkaSinkError, cause: BaseException | None) -> KafkaSinkError:
    error.__cause__ = cause
    return error


# What is to be done with a batch after an attempt to send it: one pure function over one table.
#
#     decide(what is known of the batch, what came back) -> Done | Retry | Split | Fail
#
# Two facts about an attempt decide whether records can be doubled, and they are kept apart everywhere:
#
#     refused     the broker says that it has not stored the batch. It may be sent again, even under another sequence
#     in doubt    the batch may be stored (connection lost, followers too slow, an error without a name): it may be sent
#                 again under the same sequence only
#
# A head of the line is a batch before which nothing of its partition is in flight or waits for its retry. That the
# broker misses records before a batch (OUT_OF_ORDER_SEQUENCE_NUMBER) is expected of all others: what is missing is
# in flight, or waits for its retry.


class BatchFacts(NamedTuple):
    """What the decision needs to know of a batch, before the answer is counted."""

    record_count: int
    attempts: int
    retries_max: int
    expired: bool
    idempotent: bool
    is_head: bool
    in_doubt: bool
    """An earlier attempt, or this one, may have stored the batch."""
    transactional: bool = False
    """The batch belongs to a transaction, whose epoch only brokers change."""


@dataclass(frozen=True)
class Done:
    duplicate: bool = False
    """Stored by an attempt whose answer was lost; the offset is not known."""


@dataclass(frozen=True)
class Retry:
    refresh_metadata: bool = False
    new_sequence: bool = False
    """Send it under a new epoch: what the broker knows of this producer does not fit the old sequence any more."""


@dataclass(frozen=True)
class Split:
    pass


@dataclass(frozen=True)
class Fail:
    refresh_metadata: bool = False
    timed_out: bool = False
    """The batch could have been sent again, but delivery.timeout.ms has passed."""
    retries_used_up: bool = False
    in_doubt: bool = False
    """The records may be stored although they fail."""
    fatal: bool = False


Outcome = Done | Retry | Split | Fail

SUCCESSES = {codes.NONE: Done(), codes.DUPLICATE_SEQUENCE_NUMBER: Done(duplicate=True)}
"""Answers that say that the batch is stored, whatever is known of it."""


def decide(facts: BatchFacts, code: int, log_start_offset: int = -1) -> Outcome:
    """`code` is the broker's; a lost connection counts as NETWORK_EXCEPTION."""
    row = error_code(code)
    if code in SUCCESSES:
        return SUCCESSES[code]
    if row.fatal:
        return Fail(fatal=True, in_doubt=facts.in_doubt)
    if code == codes.MESSAGE_TOO_LARGE and facts.record_count > 1 and not facts.expired:
        return Split()
    wanted = _about_sequence(facts, code, log_start_offset) if facts.idempotent else None
    if wanted is None:
        wanted = Retry(row.refreshes_metadata) if row.retriable else Fail(in_doubt=facts.in_doubt)
    if not isinstance(wanted, Retry):
        return wanted
    if facts.expired:
        return Fail(wanted.refresh_metadata, timed_out=True, in_doubt=facts.in_doubt)
    if facts.attempts >= facts.retries_max:
        return Fail(wanted.refresh_metadata, retries_used_up=True, in_doubt=facts.in_doubt)
    return wanted


def _about_sequence(facts: BatchFacts, code: int, log_start_offset: int) -> Outcome | None:
    """The two answers about sequences; None if it is another."""
    if code == codes.OUT_OF_ORDER_SEQUENCE_NUMBER:
        return _from_here(facts) if facts.is_head else Retry()
    if code == codes.UNKNOWN_PRODUCER_ID:
        # Without the start of the log nothing can be concluded (brokers before 1.1 do not send it).
        # Where all that was acknowledged has been deleted since, the state went with it.
        return Retry() if log_start_offset == -1 or not facts.is_head else _from_here(facts)
    return None


def _from_here(facts: BatchFacts) -> Outcome:
    """Begin again with this batch under a new epoch, unless it may be stored: then it would be stored twice.

    In a transaction there is no new epoch before the end: the transaction must be aborted.
    """
    if facts.transactional:
        return Fail(in_doubt=facts.in_doubt)
    return Fail(in_doubt=True) if facts.in_doubt else Retry(new_sequence=True)
