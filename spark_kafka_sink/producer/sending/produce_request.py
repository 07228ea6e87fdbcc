"""The batches that one node takes, as a Produce request; and whose answer is whose."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from typing import NamedTuple

from spark_kafka_sink.client.cluster import NO_TOPIC_ID, ClusterSnapshot
from spark_kafka_sink.producer.batching.batch import ProducerBatch
from spark_kafka_sink.producer.config import ProducerConfig
from spark_kafka_sink.protocol.api_keys import VersionRange
from spark_kafka_sink.protocol.messages.produce import (
    PartitionProduceData,
    ProduceRequest,
    TopicProduceData,
    TopicProduceResponse,
)

_NAMES_ONLY = VersionRange(ProduceRequest.VERSIONS.min, 12)
"""Later versions name topics by their ids alone."""


class SentBatches(NamedTuple):
    """What a produce request carried, and what was known of the topics' names and ids when it was sent (KIP-516)."""

    batches: dict[str, dict[int, ProducerBatch]]
    """By topic and partition."""
    snapshot: ClusterSnapshot

    def name(self, topic: TopicProduceResponse) -> str:
        return topic.name or self.snapshot.topic_name(topic.topic_id) or ""


def produce_request(
    batches: Sequence[ProducerBatch], snapshot: ClusterSnapshot, config: ProducerConfig
) -> tuple[ProduceRequest, SentBatches, VersionRange | None]:
    """The message, what is to be kept until the answer, and the versions that will do (None: any)."""
    by_topic: defaultdict[str, dict[int, ProducerBatch]] = defaultdict(dict)
    for batch in batches:
        name, partition = batch.topic_partition
        by_topic[name][partition] = batch
    topics, versions = [], None
    for name, its_batches in by_topic.items():
        topic_id = snapshot.topic_id(name)
        if topic_id is None:
            versions = _NAMES_ONLY
        data = [PartitionProduceData(partition, batch.wire_segments()) for partition, batch in its_batches.items()]
        topics.append(TopicProduceData(name=name, topic_id=topic_id or NO_TOPIC_ID, partition_data=data))
    message = ProduceRequest(acks=config.acks, timeout_ms=config.request_timeout_ms, topic_data=topics)
    return message, SentBatches(by_topic, snapshot), versions
