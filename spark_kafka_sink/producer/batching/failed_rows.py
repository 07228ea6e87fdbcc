"""Rows that could not be put into batches, as batches without bytes that have failed.

So the sender reports them, and resolves their futures, like those of all other batches.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from spark_kafka_sink.errors import DeliveryError
from spark_kafka_sink.producer.batching.batch import ProducerBatch, TopicPartition
from spark_kafka_sink.producer.batching.row_origins import rows_of_call
from spark_kafka_sink.producer.batching.staging import Stage, StagedRecord, StagedRows


def rows_without_bytes(stage: Stage, error: Exception) -> list[ProducerBatch]:
    """Failed batches for the rows of a stage."""
    batches: list[ProducerBatch] = []
    records = [entry for entry, _ in stage.entries if isinstance(entry, StagedRecord)]
    found: list[tuple[NDArray[Any], NDArray[np.int64], object]] = [
        (entry.partitions, entry.rows, entry.call) for entry, _ in stage.entries if isinstance(entry, StagedRows)
    ]
    if records:
        partitions = np.array([record.partition for record in records], np.int32)
        found.append((partitions, np.arange(len(records)), [record.future for record in records]))
    for partitions, rows, call in found:
        for partition in np.flatnonzero(np.bincount(partitions)).tolist():
            its_rows = rows_of_call(call, rows[partitions == partition])
            batches.append(ProducerBatch.failed(TopicPartition(stage.topic, partition), its_rows, error))
    return batches


def reason_of(error: BaseException) -> Exception:
    return error if isinstance(error, Exception) else DeliveryError(f"Interrupted by {type(error).__name__}.")
