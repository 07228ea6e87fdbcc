"""A Produce request and its answer: the batches that one broker takes as a message, and which part of the response
belongs to which batch.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, NamedTuple

from spark_kafka_sink.client.client_request import ClientResponse
from spark_kafka_sink.client.cluster import NO_TOPIC_ID, ClusterSnapshot
from spark_kafka_sink.diagnostics.text import sanitize
from spark_kafka_sink.errors import DisconnectedError, KafkaSinkError
from spark_kafka_sink.producer.batching.batch import ProducerBatch
from spark_kafka_sink.producer.config import ProducerConfig
from spark_kafka_sink.protocol import error_codes as codes
from spark_kafka_sink.protocol.messages.produce import (
    PartitionProduceData,
    PartitionProduceResponse,
    ProduceRequest,
    ProduceResponse,
    TopicProduceData,
    TopicProduceResponse,
)
from spark_kafka_sink.protocol.schema import VersionRange
from spark_kafka_sink.requests.produce_versions import produce_versions

if TYPE_CHECKING:  # a producer without a transactional.id does not load it
    from spark_kafka_sink.requests.transaction_identity import TransactionIdentity


_OFFSET_MAX = 2**62
"""No broker has such offsets; those of a batch's records can be counted up from a smaller one."""


class SentBatches(NamedTuple):
    """What a produce request carried, and what was known of the topics' names and ids when it was sent (KIP-516)."""

    batches: dict[str, dict[int, ProducerBatch]]
    """By topic and partition."""
    snapshot: ClusterSnapshot

    def name(self, topic: TopicProduceResponse) -> str:
        return topic.name or self.snapshot.topic_name(topic.topic_id) or ""


class ProduceExchange(NamedTuple):
    """A request to be made, and what is to be kept until its answer."""

    message: ProduceRequest
    sent: SentBatches
    versions: VersionRange
    """Those that will do."""


def produce_request(
    batches: Sequence[ProducerBatch],
    snapshot: ClusterSnapshot,
    config: ProducerConfig,
    transaction: TransactionIdentity | None = None,
) -> ProduceExchange:
    by_topic: defaultdict[str, dict[int, ProducerBatch]] = defaultdict(dict)
    for batch in batches:
        name, partition = batch.topic_partition
        by_topic[name][partition] = batch
    topics, by_name_only = [], False
    for name, its_batches in by_topic.items():
        topic_id = snapshot.topic_id(name)
        by_name_only |= topic_id is None
        data = [
            PartitionProduceData(partition, batch.build_wire_segments()) for partition, batch in its_batches.items()
        ]
        topics.append(TopicProduceData(name=name, topic_id=topic_id or NO_TOPIC_ID, partition_data=data))
    message = ProduceRequest(
        transactional_id=None if transaction is None else transaction.transactional_id,
        acks=config.acks,
        timeout_ms=config.request_timeout_ms,
        topic_data=topics,
    )
    transaction_version = None if transaction is None else transaction.version
    versions = produce_versions(transaction_version, by_name_only=by_name_only)
    return ProduceExchange(message, SentBatches(by_topic, snapshot), versions)


_NONE_NAMED: Mapping[int, str] = {}


class Answer(NamedTuple):
    """One partition's part of a response, or what stands for it."""

    code: int
    base_offset: int = -1
    log_append_time: int = -1
    log_start_offset: int = -1
    words: str = ""
    record_words: Mapping[int, str] = _NONE_NAMED
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
    named = {one.batch_index: sanitize(one.batch_index_error_message) for one in errors} if errors else _NONE_NAMED
    words = sanitize(row.error_message) if row.error_message else ""
    offset = row.base_offset if row.base_offset < _OFFSET_MAX else -1
    return Answer(row.error_code, offset, row.log_append_time_ms, row.log_start_offset, words, named)


def no_answer(reason: str) -> Answer:
    """The connection was lost; the broker may have stored the records or not."""
    return Answer(codes.NETWORK_EXCEPTION, cause=DisconnectedError(reason or "the connection was lost"))


def answer_without_message(response: ClientResponse, acks: int) -> Answer:
    """Make an Answer for a partition that has none in the response."""
    if response.version_error is not None:
        return Answer(codes.UNSUPPORTED_VERSION, cause=response.version_error)
    if response.disconnected:
        return no_answer(response.reason)
    if acks == 0:
        return Answer(codes.NONE)
    return no_answer("the broker's answer leaves this partition out")
