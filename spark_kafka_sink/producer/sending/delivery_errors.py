"""Builds the exception that a failed batch's futures get: words for the user at two in the morning."""

from __future__ import annotations

from copy import copy

from spark_kafka_sink.client.cluster import Node
from spark_kafka_sink.client.metadata import Metadata
from spark_kafka_sink.client.network_client import NetworkClient
from spark_kafka_sink.diagnostics.text import format_partition
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
from spark_kafka_sink.producer.sending.outcome import Fail
from spark_kafka_sink.producer.sending.produce_exchange import Answer
from spark_kafka_sink.protocol import error_codes as codes
from spark_kafka_sink.protocol.error_codes import build_broker_error, lookup_error_code

_AT_FAULT: dict[int, type[DataError]] = {
    codes.MESSAGE_TOO_LARGE: RecordTooLargeError,
    codes.INVALID_RECORD: InvalidRecordError,
}
"""Where it is clear that the record is wrong if it was alone in its batch."""


def attempt_error(batch: ProducerBatch, answer: Answer) -> KafkaSinkError:
    """What went wrong this time."""
    if answer.cause is not None:
        return answer.cause
    where = format_partition(*batch.topic_partition)
    return build_broker_error(answer.code, where, broker_message=answer.words)


def final_error(batch: ProducerBatch, answer: Answer, failure: Fail) -> KafkaSinkError:
    """The error of a batch that will not be tried again."""
    error = attempt_error(batch, answer)
    if failure.timed_out:
        return timeout_error(batch, error, in_doubt=failure.in_doubt)
    if failure.retries_used_up or failure.in_doubt:
        words = f"{_sentence(error)} Attempts: {batch.attempts + 1}."
        return _because(DeliveryError(words, possibly_stored=failure.in_doubt), error)
    kind = _AT_FAULT.get(answer.code) if batch.record_count == 1 else None
    return error if kind is None else _because(kind(str(error)), error)


def why_not_stored(batch: ProducerBatch, metadata: Metadata, client: NetworkClient) -> Exception | None:
    """Why the batch is not stored: an error of its topic, its leader or its last attempt, or why there was none."""
    topic, partition = batch.topic_partition
    leader = metadata.snapshot.leader(topic, partition)
    error = metadata.topic_error(topic) or _refused_by(leader, client) or _unreachable(leader, metadata)
    if error is not None:
        return error
    if batch.has_been_sent:
        return _silent(batch.error)
    if batch.error is not None:
        return batch.error
    if metadata.has_connection_failures:
        return DisconnectedError(metadata.describe_connection_failures())
    known = metadata.snapshot.partition(topic, partition)
    has_leader = known is not None and known.leader is not None
    return None if has_leader else DisconnectedError("The partition has no leader.")


def _refused_by(leader: Node | None, client: NetworkClient) -> KafkaSinkError | None:
    refusal = None if leader is None else client.authentication_exception(leader.id)
    if refusal is None:
        return None
    return _because(AuthenticationError(f"{leader} refuses the authentication: {refusal}"), refusal)


def _unreachable(leader: Node | None, metadata: Metadata) -> KafkaSinkError | None:
    reason = None if leader is None else metadata.connection_failure(leader.id)
    if leader is None or reason is None:
        return None
    return DisconnectedError(
        f"The partition's leader, {leader}, cannot be reached: {reason.rstrip('.')}. See whether it runs. The broker "
        f"advertises {leader.address} (advertised.listeners): clients must be able to reach it there."
    )


def _silent(error: Exception | None) -> Exception | None:
    """Add to the error what to do, if the last attempt had no answer."""
    if not isinstance(error, DisconnectedError):
        return error
    remedy = "See that broker's log, and its load; delivery.timeout.ms is how long it is waited for."
    return _because(DisconnectedError(f"{_sentence(error)} {remedy}"), error)


def timeout_error(batch: ProducerBatch, last: Exception | None, *, in_doubt: bool) -> KafkaSinkError:
    """The error of a batch whose delivery.timeout.ms has passed."""
    where = format_partition(*batch.topic_partition)
    limit_ms = batch.deadline_ms - batch.created_ms
    why = "" if batch.has_been_sent else " Never sent."
    if last is not None:
        why += f" The last attempt: {_sentence(last)}" if batch.has_been_sent else f" {_sentence(last)}"
    words = f"{where}: not acknowledged within {limit_ms:.0f} ms.{why}"
    return _because(DeliveryTimeoutError(words, possibly_stored=in_doubt), last)


def abandoned_error(batch: ProducerBatch, last: Exception | None) -> KafkaSinkError:
    """The error of a batch that cannot keep its sequence, while another sequence could store it twice (rule 3)."""
    where = format_partition(*batch.topic_partition)
    words = (
        f"{where}: sent without an answer, and records before them were refused. "
        f"They are not sent again, for that could store them twice. The last attempt: {_sentence(last)}"
    )
    return _because(DeliveryError(words, possibly_stored=True), last)


def encoding_error(batch: ProducerBatch) -> KafkaSinkError:
    words = f"{format_partition(batch.topic_partition.topic)}: the rows could not be encoded: {batch.error!r}"
    return _because(DeliveryError(words), batch.error)


def split_error(batch: ProducerBatch, error: Exception) -> KafkaSinkError:
    partition = format_partition(*batch.topic_partition)
    words = f"{partition}: a batch that was refused as too large could not be split: {error!r}"
    return _because(DeliveryError(words), error)


def with_doubt(error: KafkaSinkError) -> KafkaSinkError:
    """A copy of the error for records that were sent before: it adds that they may be stored."""
    doubtful = copy(error)
    doubtful.possibly_stored = True
    return _because(doubtful, error.__cause__)


def record_errors(batch: ProducerBatch, answer: Answer) -> tuple[dict[int, KafkaSinkError], KafkaSinkError | None]:
    """The errors of the records that the broker named, and the error of the others, which it did not object to."""
    words_by_index = {index: words for index, words in answer.record_words.items() if 0 <= index < batch.record_count}
    if not words_by_index:
        return {}, None
    where = format_partition(*batch.topic_partition)
    name = lookup_error_code(answer.code).name
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


def _because(error: KafkaSinkError, cause: BaseException | None) -> KafkaSinkError:
    error.__cause__ = cause
    return error
