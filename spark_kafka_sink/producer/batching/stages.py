"""Stages: what waits for each topic, and when it is time to group it.

    the stage is full            its rows make about a batch for each partition that they hit, or enough for a piece of
                                 one, or fill their memory: at once, on the thread of the caller who filled it
    linger.ms has passed,        on the sender's thread. But rows that could not leave yet go on waiting for company, as
    or memory is short           they would in Java's open batches: for up to 100 ms more they stay staged while each
                                 leader of their topic has as much to send as one request takes
    a flush, the close           at once

What a request takes is counted with one batch of each partition, so that a partition with a long queue does not hold
the rows of others. The limit of 100 ms is for leaders that take nothing: rows must be seen to expire, and must give
back the memory that is kept for their encoding. All of it is guarded by the accumulator's lock.
"""

from __future__ import annotations

from collections.abc import Iterator

from spark_kafka_sink.producer.batching.partition_queues import PartitionQueues
from spark_kafka_sink.producer.batching.staging import Stage
from spark_kafka_sink.producer.config import ProducerConfig

_CACHED_BYTES = 3 << 20
_PIECE_BYTES = 64 << 10
"""Rows are ordered in half the time, or less, while all are in the processor's cache. So a stage is full with so
many bytes, unless the pieces of batches that it becomes would be small: a piece costs what some hundred rows cost."""
_MEMORY_SHARE = 4
"""A stage is grouped when its rows, encoded, fill this part of the memory, even if no batch is full. With a thousand
partitions it is this that decides: half of it would make batches half as large and cost 40 % more per row."""
_HOLD_MS_MAX = 100


class Stages:
    """See the module's docstring."""

    def __init__(self, config: ProducerConfig, queues: PartitionQueues) -> None:
        self._linger_ms = config.linger_ms
        self._batch_size = config.batch_size
        self._request_bytes = config.max_request_size
        self._bytes_max = max(1, config.buffer_memory // _MEMORY_SHARE)
        self._queues = queues
        self._stages: dict[str, Stage] = {}

    def __iter__(self) -> Iterator[Stage]:
        return iter(list(self._stages.values()))

    def of(self, topic: str) -> Stage:
        stage = self._stages.get(topic)
        if stage is None:
            stage = self._stages[topic] = Stage(topic)
        return stage

    def is_full(self, stage: Stage) -> bool:
        pieces = max(_CACHED_BYTES, _PIECE_BYTES * len(stage.hit))
        return stage.bytes >= min(self._bytes_max, self._batch_size * len(stage.hit), pieces)

    def due_ms(self, stage: Stage, now: float, *, hurry: bool) -> float:
        """When the sender's thread is to group it. `hurry`: memory is short."""
        wanted_ms = stage.oldest_ms + (0.0 if hurry else self._linger_ms)
        if wanted_ms <= now and self._queues.all_leaders_supplied(stage.topic, self._request_bytes):
            return wanted_ms + _HOLD_MS_MAX
        return wanted_ms
