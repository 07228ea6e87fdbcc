"""Errors for transactions with failed records, and for records that are no longer sent because of their transaction.

A failed commit reports how many records of a batch failed, and the key of the first one, so that users can find them.
"""

from __future__ import annotations

from collections.abc import Mapping

from spark_kafka_sink.diagnostics.text import format_partition
from spark_kafka_sink.errors import DeliveryError, KafkaSinkError, TransactionAbortedError
from spark_kafka_sink.producer.batching.batch import ProducerBatch
from spark_kafka_sink.producer.transactions.manager import TransactionManager
from spark_kafka_sink.records.decoder import decode_batches

_MAX_SHOWN_KEY_BYTES = 60
"""Maximum number of bytes of a key that an error message shows."""


def fail_transaction(
    manager: TransactionManager,
    batch: ProducerBatch,
    error: KafkaSinkError,
    record_errors: Mapping[int, KafkaSinkError] | None,
    *,
    in_doubt: bool,
) -> None:
    """Prevent the commit of a transaction, because one of its batches was not stored, or may not have been.

    `error`: the error of the batch.
    `record_errors`: errors of the records that the broker rejected individually, keyed by their index in the batch;
    None if there are none.
    `in_doubt`: whether a broker may have stored the batch, or may still store it.
    """
    # Do not describe the failed records if unsent batches are dropped. The transaction has then already failed or is
    # being aborted, and its first error is kept.
    if not manager.should_drop_unsent_batches:
        error = _build_failed_records_error(batch, error, record_errors or {})
    manager.handle_failed_batch(error, has_sequence=batch.has_sequence, in_doubt=in_doubt)


def build_dropped_error(manager: TransactionManager) -> KafkaSinkError:
    """Build the error for a record that is not sent, or not again, because its transaction will not be committed."""
    message_start = (
        f"transactional id {manager.transactional_id}: the record was not acknowledged, because its transaction "
    )
    cause = manager.error
    if cause is None:
        return TransactionAbortedError(f"{message_start}was aborted.")
    error = TransactionAbortedError(f"{message_start}cannot be committed. {cause}")
    error.__cause__ = cause
    return error


def _build_failed_records_error(
    batch: ProducerBatch, error: KafkaSinkError, record_errors: Mapping[int, KafkaSinkError]
) -> KafkaSinkError:
    """Build an error that states how many of the batch's records failed, and the key of the first one.

    `record_errors`: errors of the failed records, keyed by their index in the batch. If it is empty, all records failed
    with `error`.
    """
    first_index = min(record_errors, default=0)
    cause = record_errors.get(first_index, error)
    failed_count = len(record_errors) or batch.record_count
    key = _read_key(batch, first_index)
    failed_records = "1 record" if failed_count == 1 else f"{failed_count} records"
    if key is not None:
        failed_records += f" with the key {key}" if failed_count == 1 else f", the first with the key {key},"
    partition = format_partition(*batch.topic_partition)
    failed_records_error = DeliveryError(f"{failed_records} for {partition}, failed: {cause.reason}")
    failed_records_error.__cause__ = cause
    return failed_records_error


def _read_key(batch: ProducerBatch, record_index: int) -> str | None:
    """Return a record's key for an error message, truncated if it is long.

    Return None if the key is null or can no longer be read.
    """
    # A batch without a sequence may still be open, and the memory of a batch that is done may have been released.
    if not batch.has_sequence or batch.is_done:
        return None
    columns = next(iter(decode_batches(b"".join(batch.build_wire_segments())))).columns
    key = columns.column("key")[record_index].as_py()
    return None if key is None else repr(key[:_MAX_SHOWN_KEY_BYTES]).removeprefix("b")
