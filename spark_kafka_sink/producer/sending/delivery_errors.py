"""Builders of the exceptions for the futures of failed batches.

Each message states the cause and, if one is known, a remedy. If a batch is in doubt, which means that a broker may have
stored it although the producer received no acknowledgement, `possibly_stored` is set on its error.
"""

from __future__ import annotations

from typing import NamedTuple

from spark_kafka_sink.client.cluster import Node
from spark_kafka_sink.client.metadata import Metadata
from spark_kafka_sink.client.network_client import NetworkClient
from spark_kafka_sink.diagnostics.text import format_partition
from spark_kafka_sink.errors import (
    AuthenticationError,
    BatchRejectedError,
    DataError,
    DeliveryError,
    DeliveryTimeoutError,
    DisconnectedError,
    InvalidRecordError,
    KafkaSinkError,
    RecordTooLargeError,
    clear_tracebacks,
)
from spark_kafka_sink.producer.batching.batch import ProducerBatch
from spark_kafka_sink.producer.sending.outcome import Fail
from spark_kafka_sink.producer.sending.produce_exchange import PartitionResponse
from spark_kafka_sink.protocol import error_codes as codes
from spark_kafka_sink.protocol.error_codes import build_broker_error, lookup_error_code

_RECORD_ERRORS: dict[int, type[DataError]] = {
    codes.MESSAGE_TOO_LARGE: RecordTooLargeError,
    codes.INVALID_RECORD: InvalidRecordError,
}
"""Exception types by error code, for batches with a single record, which must then be the cause of the error."""


class RecordErrors(NamedTuple):
    """Errors for the records of a rejected batch, if the broker has said which records it rejects (KIP-467)."""

    errors_by_index: dict[int, KafkaSinkError]
    """The error of each record that the broker rejected individually, keyed by the record's index in the batch."""
    remaining_error: KafkaSinkError | None
    """The error for the records that were not rejected individually.

    None if the broker has named no records. All records of the batch then get the error of the batch.
    """


def build_attempt_error(batch: ProducerBatch, response: PartitionResponse) -> KafkaSinkError:
    """Build the error for one failed attempt to send a batch. The batch may still be sent again."""
    if response.cause is not None:
        return response.cause
    partition = format_partition(*batch.topic_partition)
    return build_broker_error(response.code, broker_message=response.error_message, destination=partition)


def build_final_error(batch: ProducerBatch, response: PartitionResponse, failure: Fail) -> KafkaSinkError:
    """Build the error for a batch that has failed after an attempt with this response, and is not sent again."""
    error = build_attempt_error(batch, response)
    if failure.timed_out:
        return build_timeout_error(batch, error, possibly_stored=failure.in_doubt)
    if failure.has_used_up_retries or failure.in_doubt:
        message = f"{_to_sentence(error)} Attempts: {batch.failed_attempts + 1}."
        partition = format_partition(*batch.topic_partition)
        delivery_error = DeliveryError(message, destination=partition, possibly_stored=failure.in_doubt)
        return _with_cause(delivery_error, error)
    record_error = _RECORD_ERRORS.get(response.code) if batch.record_count == 1 else None
    if record_error is None:
        return error
    return _with_cause(record_error(error.reason, destination=error.destination), error)


def find_timeout_cause(batch: ProducerBatch, metadata: Metadata, client: NetworkClient) -> Exception | None:
    """Return the reason why a batch was not acknowledged before its timeout, or None if the reason is unknown.

    The reason is the first of these that exists: the topic's error, the leader's authentication or connection error,
    and the error of the last attempt to send the batch. If none of them exists and the batch was never sent, the reason
    may be that connections have failed or that the partition has no leader.
    """
    topic, partition = batch.topic_partition
    leader = metadata.snapshot.leader(topic, partition)
    # A current problem of the topic or its leader explains a timeout better than the error of the last attempt.
    current_error = (
        metadata.topic_error(topic)
        or _build_authentication_error(leader, client)
        or _build_connection_error(leader, metadata)
    )
    if current_error is not None:
        return current_error
    if batch.has_been_sent:
        return _add_disconnect_remedy(batch.error)
    if batch.error is not None:
        return batch.error
    if metadata.has_connection_failures:
        return DisconnectedError(metadata.describe_connection_failures())
    partition_info = metadata.snapshot.partition(topic, partition)
    has_leader = partition_info is not None and partition_info.leader is not None
    return None if has_leader else DisconnectedError("The partition has no leader.")


def _build_authentication_error(leader: Node | None, client: NetworkClient) -> KafkaSinkError | None:
    error = None if leader is None else client.authentication_exception(leader.id)
    if error is None:
        return None
    return _with_cause(AuthenticationError(f"{leader} rejected the authentication: {error}"), error)


def _build_connection_error(leader: Node | None, metadata: Metadata) -> KafkaSinkError | None:
    loss = None if leader is None else metadata.connection_failure(leader.id)
    if leader is None or loss is None:
        return None
    failure = loss.detail.rstrip(".")
    remedy = loss.suggest_remedy(unreachable_remedy="")
    if remedy:
        return DisconnectedError(
            f"The connection to the partition's leader, {leader}, failed: {failure}", remedy=remedy
        )
    return DisconnectedError(
        f"The partition's leader, {leader}, cannot be reached: {failure}. Check that the broker is "
        f"running. The broker advertises {leader.address} (advertised.listeners): clients must be able to reach "
        "it there."
    )


def _add_disconnect_remedy(error: Exception | None) -> Exception | None:
    """Return the error of a lost connection with a remedy added, and any other error unchanged."""
    if not isinstance(error, DisconnectedError):
        return error
    remedy = "Check the log and the load of that broker, or increase delivery.timeout.ms."
    return _with_cause(DisconnectedError(f"{_to_sentence(error)} {remedy}"), error)


def build_timeout_error(batch: ProducerBatch, cause: Exception | None, *, possibly_stored: bool) -> KafkaSinkError:
    """Build the error for a batch whose delivery.timeout.ms has passed.

    `cause`: the reason for the timeout; None if it is unknown.
    `possibly_stored`: whether a broker may have stored the batch.
    """
    partition = format_partition(*batch.topic_partition)
    timeout_ms = batch.deadline_ms - batch.oldest_row_arrival_ms
    cause_text = "" if cause is None else f" {_to_sentence(cause)}"
    if not batch.has_been_sent:
        details = f", and never sent.{cause_text}"
    elif cause is not None:
        details = f". The last error was:{cause_text}"
    else:
        details = "."
    message = f"not acknowledged within {timeout_ms:.0f} ms{details}"
    return _with_cause(DeliveryTimeoutError(message, destination=partition, possibly_stored=possibly_stored), cause)


def build_abandoned_error(batch: ProducerBatch, cause: Exception | None) -> KafkaSinkError:
    """Build the error for a batch that cannot be sent again, because it needs a new sequence but may be stored.

    Under a new sequence, it could be stored twice (rule 3 of idempotence.py).
    """
    partition = format_partition(*batch.topic_partition)
    message = (
        "the response to these records was lost, and records before them were rejected. They are not sent again, "
        f"because that could store them twice. The last attempt failed: {_to_sentence(cause)}"
    )
    return _with_cause(DeliveryError(message, destination=partition, possibly_stored=True), cause)


def build_encoding_error(batch: ProducerBatch) -> KafkaSinkError:
    topic = format_partition(batch.topic_partition.topic)
    return _with_cause(DeliveryError(f"the rows could not be encoded: {batch.error!r}", destination=topic), batch.error)


def build_split_error(batch: ProducerBatch, error: Exception) -> KafkaSinkError:
    partition = format_partition(*batch.topic_partition)
    message = f"a batch that was rejected as too large could not be split: {error!r}"
    return _with_cause(DeliveryError(message, destination=partition), error)


def build_record_errors(batch: ProducerBatch, response: PartitionResponse) -> RecordErrors:
    """Build the errors of the records that the broker rejected individually, and one for the batch's other records.

    Record indices that are outside of the batch, which only a faulty broker sends, are ignored.
    """
    messages_by_index = {
        index: message for index, message in response.record_error_messages.items() if 0 <= index < batch.record_count
    }
    if not messages_by_index:
        return RecordErrors(errors_by_index={}, remaining_error=None)
    partition = format_partition(*batch.topic_partition)
    code_name = lookup_error_code(response.code).name
    errors_by_index: dict[int, KafkaSinkError] = {}
    for index, message in messages_by_index.items():
        reason = message or response.error_message or code_name
        errors_by_index[index] = InvalidRecordError(
            f"the broker rejected this record: {reason} ({code_name})", destination=partition
        )
    remaining_error = BatchRejectedError(
        f"not stored, because {len(errors_by_index)} other records of the same batch were rejected ({code_name}). "
        "This record may be sent again.",
        destination=partition,
    )
    return RecordErrors(errors_by_index, remaining_error)


def _to_sentence(error: Exception | None) -> str:
    """Return an error's message, without the destination, and with a period at its end."""
    message = error.reason if isinstance(error, KafkaSinkError) else str(error)
    return message if message.endswith(".") else f"{message}."


def _with_cause(error: KafkaSinkError, cause: BaseException | None) -> KafkaSinkError:
    """Set the cause of an error, as `raise error from cause` does, and return the error.

    The tracebacks of the cause are cleared, because users may keep the futures that fail with the error.
    """
    error.__cause__ = cause
    clear_tracebacks(cause)
    return error
