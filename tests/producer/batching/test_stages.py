"""Stages: how much waits before it is grouped."""

from __future__ import annotations

import pytest

from spark_kafka_sink.producer.batching.partition_queues import PartitionQueues
from spark_kafka_sink.producer.batching.stages import Stages
from spark_kafka_sink.producer.config import ProducerConfig

KIB, MIB = 1 << 10, 1 << 20


@pytest.mark.parametrize(
    ("batch_size", "buffer_memory", "partitions", "enough"),
    [
        pytest.param(16 * KIB, 32 * MIB, 12, 12 * 16 * KIB, id="a batch for each partition"),
        pytest.param(MIB, 32 * MIB, 12, 3 * MIB, id="what the processor's cache holds"),
        pytest.param(MIB, 64 * MIB, 100, 100 * 64 * KIB, id="a piece of a batch for each partition"),
        pytest.param(MIB, 32 * MIB, 1_000, 8 * MIB, id="a quarter of the memory"),
    ],
)
def test_a_stage_is_full_with(batch_size: int, buffer_memory: int, partitions: int, enough: int) -> None:
    config = ProducerConfig.parse(
        {"bootstrap.servers": "a:1", "batch.size": batch_size, "buffer.memory": buffer_memory}
    )
    stages = Stages(config, PartitionQueues(config.linger_ms))
    stage = stages.of("t")
    stage.hit = set(range(partitions))
    stage.bytes = enough - 1
    assert not stages.is_full(stage)
    stage.bytes = enough
    assert stages.is_full(stage)
