"""Builder of the produce request for one broker's batches, and parser of the response for each of these batches.

If a request ends without a response (the connection was lost, or acks=0), each of its batches gets a PartitionResponse
nevertheless.
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
from spark_kafka_sink.requests.produce_versions import allowed_produce_versions

if TYPE_CHECKING:  # only loaded for producers with a transactional.id
    from spark_kafka_sink.requests.transaction_identity import TransactionIdentity


_MAX_BASE_OFFSET = 2**62
"""Base offsets from this number on are invalid. No log has so many records, and all offsets of a batch must fit into 64
bits."""


class SentBatches(NamedTuple):
    """The batches of a produce request, and the metadata that its topic ids come from (KIP-516)."""

    batches: dict[str, dict[int, ProducerBatch]]
    """The batches by topic and partition."""
    snapshot: ClusterSnapshot

    def topic_name(self, response: TopicProduceResponse) -> str:
        """Return the name of the topic that a response is about, or an empty string if its topic id is unknown."""
        return response.name or self.snapshot.topic_name(response.topic_id) or ""


class PreparedProduceRequest(NamedTuple):
    """A request message, the batches in it, and the versions in which it can be sent."""

    message: ProduceRequest
    sent_batches: SentBatches
    versions: VersionRange


def build_produce_request(
    batches: Sequence[ProducerBatch],
    snapshot: ClusterSnapshot,
    config: ProducerConfig,
    transaction: TransactionIdentity | None = None,
) -> PreparedProduceRequest:
    """Build the produce request for the batches that one broker receives.

    The versions with topic ids are allowed only if the ids of all topics in the request are known.

    `snapshot`: the metadata that contains the topic ids.
    `transaction`: the open transaction of the batches; None if the producer has no transactional.id.
    """
    batches_by_topic: defaultdict[str, dict[int, ProducerBatch]] = defaultdict(dict)
    for batch in batches:
        topic, partition = batch.topic_partition
        batches_by_topic[topic][partition] = batch
    topic_data: list[TopicProduceData] = []
    needs_topic_names = False
    for topic, topic_batches in batches_by_topic.items():
        topic_id = snapshot.topic_id(topic)
        needs_topic_names |= topic_id is None
        partition_data = [
            PartitionProduceData(partition, batch.build_wire_segments()) for partition, batch in topic_batches.items()
        ]
        # Set both the name and the id. The version, which is chosen later, determines which of them is sent.
        topic_data.append(TopicProduceData(name=topic, topic_id=topic_id or NO_TOPIC_ID, partition_data=partition_data))
    message = ProduceRequest(
        transactional_id=None if transaction is None else transaction.transactional_id,
        acks=config.acks,
        timeout_ms=config.request_timeout_ms,
        topic_data=topic_data,
    )
    transaction_version = None if transaction is None else transaction.version
    versions = allowed_produce_versions(transaction_version, needs_topic_names=needs_topic_names)
    return PreparedProduceRequest(message, SentBatches(batches_by_topic, snapshot), versions)


_NO_RECORD_MESSAGES: Mapping[int, str] = {}


class PartitionResponse(NamedTuple):
    """The response for one batch. If the broker sent no response, `code` and `cause` say how the request ended.

    An offset of -1 is unknown. A `log_append_time` of -1 means that the records keep their own timestamps.
    """

    code: int
    base_offset: int = -1
    log_append_time: int = -1
    log_start_offset: int = -1
    error_message: str = ""
    record_error_messages: Mapping[int, str] = _NO_RECORD_MESSAGES
    """Error messages for individual records, keyed by the record's index in the batch (KIP-467)."""
    cause: KafkaSinkError | None = None
    """Reason why the broker sent no response for this partition; None if it sent one, or if acks=0."""


def parse_partition_responses(
    response: ClientResponse, sent_batches: SentBatches, acks: int
) -> Iterator[tuple[ProducerBatch, PartitionResponse]]:
    """Yield each batch of a request that has ended, with the response for that batch.

    Batches for which the broker sent no response come last, with a PartitionResponse that says why. Partitions that are
    in the response but were not in the request are ignored.
    """
    message = response.message
    batches_without_response = {topic: dict(batches) for topic, batches in sent_batches.batches.items()}
    if isinstance(message, ProduceResponse):
        for topic_response in message.responses:
            topic_batches = batches_without_response.get(sent_batches.topic_name(topic_response), {})
            for partition_response in topic_response.partition_responses:
                batch = topic_batches.pop(partition_response.index, None)
                if batch is not None:
                    yield batch, parse_partition_response(partition_response)
    for topic_batches in batches_without_response.values():
        for batch in topic_batches.values():
            yield batch, build_missing_response(response, acks)


def parse_partition_response(response: PartitionProduceResponse) -> PartitionResponse:
    """Convert a broker's produce response for one partition.

    The error messages are sanitized, and an invalid base offset is replaced with -1.
    """
    record_error_messages = _NO_RECORD_MESSAGES
    if response.record_errors:
        record_error_messages = {
            error.batch_index: sanitize(error.batch_index_error_message) for error in response.record_errors
        }
    base_offset = response.base_offset if response.base_offset < _MAX_BASE_OFFSET else -1
    error_message = sanitize(response.error_message) if response.error_message else ""
    # Pass the fields by position, because this runs once per batch, and keyword arguments would take twice as long.
    return PartitionResponse(
        response.error_code,
        base_offset,
        response.log_append_time_ms,
        response.log_start_offset,
        error_message,
        record_error_messages,
    )


def build_disconnect_response(reason: str) -> PartitionResponse:
    """Build the response for a batch whose connection was lost. The broker may have stored the batch.

    `reason`: why the connection was lost; empty if it is unknown.
    """
    return PartitionResponse(codes.NETWORK_EXCEPTION, cause=DisconnectedError(reason or "the connection was lost"))


def build_missing_response(response: ClientResponse, acks: int) -> PartitionResponse:
    """Build the response for a batch for which the broker sent none.

    With acks=0, brokers never respond, so the batch counts as stored unless its request failed.

    `response`: the result of the whole request.
    """
    if response.version_error is not None:
        return PartitionResponse(codes.UNSUPPORTED_VERSION, cause=response.version_error)
    if response.disconnected:
        return build_disconnect_response(response.reason)
    if acks == 0:
        return PartitionResponse(codes.NONE)
    return build_disconnect_response("the broker's response does not include this partition")
