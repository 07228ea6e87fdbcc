"""What records that failed mean for their transaction: which they are, in words that the commit repeats."""

from __future__ import annotations

from collections.abc import Mapping

from spark_kafka_sink.diagnostics.text import format_partition
from spark_kafka_sink.errors import DeliveryError, KafkaSinkError, TransactionAbortedError
from spark_kafka_sink.producer.batching.batch import ProducerBatch
from spark_kafka_sink.producer.transactions.manager import TransactionManager
from spark_kafka_sink.records.decoder import decode_batches

_KEY_BYTES_MAX = 60


def fail_transaction(
    manager: TransactionManager,
    batch: ProducerBatch,
    error: KafkaSinkError,
    by_record: Mapping[int, KafkaSinkError] | None,
) -> None:
    """Its records are not stored, or it is not known whether they are."""
    if not manager.drops_unsent_batches:  # else another failure came first, or the transaction is aborted in any case
        error = _with_records(batch, error, by_record or {})
    manager.batch_failed(error, has_sequence=batch.has_sequence)


def build_not_sent_error(manager: TransactionManager) -> KafkaSinkError:
    words = f"transactional id {manager.transactional_id}: the record was not sent, because its transaction "
    cause = manager.error
    if cause is None:
        return TransactionAbortedError(f"{words}was aborted.")
    error = TransactionAbortedError(f"{words}cannot be committed. {cause}")
    error.__cause__ = cause
    return error


def _with_records(
    batch: ProducerBatch, error: KafkaSinkError, by_record: Mapping[int, KafkaSinkError]
) -> KafkaSinkError:
    first = min(by_record, default=0)
    named = by_record.get(first, error)
    count = len(by_record) or batch.record_count
    key = _key_of(batch, first)
    which = "1 record" if count == 1 else f"{count} records"
    if key is not None:
        which += f" with the key {key}" if count == 1 else f", the first with the key {key},"
    described = DeliveryError(f"{which} for {format_partition(*batch.topic_partition)}, failed: {named}")
    described.__cause__ = named
    return described


def _key_of(batch: ProducerBatch, index: int) -> str | None:
    """None if there is no key, or if the batch was never made ready for sending."""
    if not batch.has_sequence or batch.is_done:
        return None
    columns = next(iter(decode_batches(b"".join(batch.build_wire_segments())))).columns
    key = columns.column("key")[index].as_py()
    return None if key is None else repr(key[:_KEY_BYTES_MAX]).removeprefix("b")
