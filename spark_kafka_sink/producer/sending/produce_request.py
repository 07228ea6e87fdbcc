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

_NAMES_ONLY_TO = 12
"""Later versions name topics by their ids alone."""
_ADDS_PARTITIONS_FROM = 12
"""In a transaction, what is written adds its partition from this version on (KIP-890), and must not before."""


class TransactionInUse(NamedTuple):
    """The transaction that the batches of a request belong to."""

    transactional_id: str
    version: int


class SentBatches(NamedTuple):
    """What a produce request carried, and what was known of the topics' names and ids when it was sent (KIP-516)."""

    batches: dict[str, dict[int, ProducerBatch]]
    """By topic and partition."""
    snapshot: ClusterSnapshot

    def name(self, topic: TopicProduceResponse) -> str:
        return topic.name or self.snapshot.topic_name(topic.topic_id) or ""


def produce_request(
    batches: Sequence[ProducerBatch],
    snapshot: ClusterSnapshot,
    config: ProducerConfig,
    transaction: TransactionInUse | None = None,
) -> tuple[ProduceRequest, SentBatches, VersionRange]:
    """The message, what is to be kept until the answer, and the versions that will do."""
    by_topic: defaultdict[str, dict[int, ProducerBatch]] = defaultdict(dict)
    for batch in batches:
        name, partition = batch.topic_partition
        by_topic[name][partition] = batch
    topics, by_name_only = [], False
    for name, its_batches in by_topic.items():
        topic_id = snapshot.topic_id(name)
        by_name_only |= topic_id is None
        data = [PartitionProduceData(partition, batch.wire_segments()) for partition, batch in its_batches.items()]
        topics.append(TopicProduceData(name=name, topic_id=topic_id or NO_TOPIC_ID, partition_data=data))
    message = ProduceRequest(
        transactional_id=transaction and transaction.transactional_id,
        acks=config.acks,
        timeout_ms=config.request_timeout_ms,
        topic_data=topics,
    )
    return message, SentBatches(by_topic, snapshot), _versions(transaction, by_name_only=by_name_only)


def _versions(transaction: TransactionInUse | None, *, by_name_only: bool) -> VersionRange:
    least, most = ProduceRequest.VERSIONS.min, ProduceRequest.VERSIONS.max
    if by_name_only:
        most = _NAMES_ONLY_TO
    if transaction is not None and transaction.version >= 2:
        least = _ADDS_PARTITIONS_FROM
    elif transaction is not None:
        most = min(most, _ADDS_PARTITIONS_FROM - 1)
    return VersionRange(least, most)
