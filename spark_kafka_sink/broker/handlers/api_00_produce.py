"""Produce: each partition's batch is appended, or refused by itself.

Batches of a transaction are let in if the coordinator says so: in version 1 the partition must have been added before;
from Produce v12 on (version 2) the batch adds it. A leader that has moved is named in the answer (KIP-951).
"""

from __future__ import annotations

from spark_kafka_sink.broker.api_error import ApiError
from spark_kafka_sink.broker.batch_validation import parse_batch_header
from spark_kafka_sink.broker.context import HandlerResult, NoResponse, RequestContext
from spark_kafka_sink.broker.log import AppendResult
from spark_kafka_sink.broker.topics import Partition, Topic
from spark_kafka_sink.broker.transaction_coordinator import ProducerIdentity
from spark_kafka_sink.network.system import Buffer
from spark_kafka_sink.protocol import error_codes
from spark_kafka_sink.protocol.messages.produce import (
    BatchIndexAndErrorMessage,
    PartitionProduceData,
    PartitionProduceResponse,
    ProduceRequest,
    ProduceResponse,
    ProduceResponseLeaderIdAndEpoch,
    ProduceResponseNodeEndpoint,
    TopicProduceData,
    TopicProduceResponse,
)

TOPIC_ID_VERSION = 13
TRANSACTIONS_V2_VERSION = 12
LEADER_HINT_VERSION = 10
ABORTABLE_ERROR_VERSION = 11


def handle(context: RequestContext, request: ProduceRequest) -> HandlerResult:
    response = ProduceResponse(responses=[_topic(context, request, topic) for topic in request.topic_data])
    context.cluster.record_change()
    results = [each for topic in response.responses for each in topic.partition_responses]
    if request.acks == 0:
        # There is no other way to say that something went wrong.
        return NoResponse(close=any(each.error_code for each in results))
    leaders = {each.current_leader.leader_id for each in results if each.current_leader is not None}
    nodes = [context.cluster.nodes[number] for number in sorted(leaders)]
    response.node_endpoints = [
        ProduceResponseNodeEndpoint(node_id=node.id, host=node.host, port=node.port) for node in nodes
    ]
    return response


def _topic(context: RequestContext, request: ProduceRequest, data: TopicProduceData) -> TopicProduceResponse:
    by_id = context.version >= TOPIC_ID_VERSION
    topic = context.cluster.find_topic_by_id(data.topic_id) if by_id else context.cluster.find_topic(data.name)
    results = []
    for each in data.partition_data:
        if topic is None and by_id:
            results.append(
                PartitionProduceResponse(index=each.index, error_code=error_codes.UNKNOWN_TOPIC_ID, base_offset=-1)
            )
        else:
            results.append(_partition(context, request, topic, each))
    return TopicProduceResponse(name=data.name, topic_id=data.topic_id, partition_responses=results)


def _partition(
    context: RequestContext, request: ProduceRequest, topic: Topic | None, data: PartitionProduceData
) -> PartitionProduceResponse:
    result = PartitionProduceResponse(index=data.index, base_offset=-1)
    partition, result.error_code = context.find_partition(topic, data.index)
    if topic is not None and 0 <= data.index < len(topic.partitions):
        result.log_start_offset = topic.partitions[data.index].log.log_start_offset
    if topic is None or partition is None:
        if result.error_code == error_codes.NOT_LEADER_OR_FOLLOWER and topic is not None:
            _hint(context, topic, result)
        return result
    result.error_code = _acks_error(context, request.acks, topic, partition)
    if result.error_code:
        return result
    try:
        appended = _append(context, request, topic, partition, data)
    except ApiError as refusal:
        result.error_code, result.error_message = refusal.code, refusal.reason
        result.record_errors = [
            BatchIndexAndErrorMessage(batch_index=index, batch_index_error_message=words)
            for index, words in refusal.records.items()
        ]
        return result
    result.base_offset, result.log_append_time_ms = appended.base_offset, appended.log_append_time
    return result


def _hint(context: RequestContext, topic: Topic, result: PartitionProduceResponse) -> None:
    partition = topic.partitions[result.index]
    if context.version < LEADER_HINT_VERSION:
        return
    # A scripted error says nothing of the leader: the leader has not moved.
    if partition.leader is not None and not context.injected(topic.name, result.index):
        result.current_leader = ProduceResponseLeaderIdAndEpoch(
            leader_id=partition.leader, leader_epoch=partition.leader_epoch
        )


def _acks_error(context: RequestContext, acks: int, topic: Topic, partition: Partition) -> int:
    if acks not in (-1, 0, 1):
        return error_codes.INVALID_REQUIRED_ACKS
    if acks == -1 and len(context.cluster.in_sync_replicas(topic, partition)) < topic.min_in_sync_replicas:
        return error_codes.NOT_ENOUGH_REPLICAS
    return 0


def _append(
    context: RequestContext, request: ProduceRequest, topic: Topic, partition: Partition, data: PartitionProduceData
) -> AppendResult:
    records = data.records
    if not isinstance(records, Buffer):
        raise ApiError(error_codes.INVALID_RECORD, "no records")
    header = parse_batch_header(records)
    if header.is_transactional:
        identity = ProducerIdentity(header.producer_id, header.producer_epoch)
        # Under one lock, so that the transaction cannot end between the permission and the append.
        with context.cluster.lock:
            _let_in(context, request.transactional_id or "", identity, (topic.name, partition.index))
            return _store(context, partition, records, requires_sequence_zero=_is_version_2(context))
    return _store(context, partition, records, requires_sequence_zero=False)


def _store(
    context: RequestContext, partition: Partition, records: Buffer, *, requires_sequence_zero: bool
) -> AppendResult:
    return partition.log.append(
        records,
        wall_ms=context.cluster.wall_ms(),
        leader_epoch=partition.leader_epoch,
        requires_sequence_zero=requires_sequence_zero,
    )


def _is_version_2(context: RequestContext) -> bool:
    return context.version >= TRANSACTIONS_V2_VERSION and context.cluster.coordinator.version >= 2


def _let_in(
    context: RequestContext, transactional_id: str, identity: ProducerIdentity, partition: tuple[str, int]
) -> None:
    """Refusal, unless the batch belongs to a transaction that goes on (or begins with it)."""
    cluster = context.cluster
    if _is_version_2(context):
        error = cluster.coordinator.add_partitions(
            transactional_id, identity, [partition], context.now, cluster.wall_ms(), version=2
        )
        if not error:
            cluster.save_transactions()
    else:
        error = cluster.coordinator.verify_partition(transactional_id, identity, partition)
    if error == error_codes.TRANSACTION_ABORTABLE and context.version < ABORTABLE_ERROR_VERSION:
        error = error_codes.INVALID_TXN_STATE
    if error == error_codes.PRODUCER_FENCED:
        error = error_codes.INVALID_PRODUCER_EPOCH
    if error:
        raise ApiError(error, f"the batch is not let into the transaction of {transactional_id}")
