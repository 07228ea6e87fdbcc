"""Produce: append each partition's batch. A rejected batch does not affect other partitions.

In transaction version 1, the partition of a transactional batch must already belong to the transaction. In version 2
(Produce v12 and later), the batch itself adds its partition. If the leader has moved, the response contains the new
leader (KIP-951).
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
from spark_kafka_sink.protocol.schema import Records

MIN_VERSION_WITH_TOPIC_IDS = 13
MIN_VERSION_WITH_TRANSACTIONS_V2 = 12
MIN_VERSION_WITH_CURRENT_LEADER = 10
MIN_VERSION_WITH_ABORTABLE_ERROR = 11


def handle(context: RequestContext, request: ProduceRequest) -> HandlerResult:
    """Append the batches, and return each partition's offset or error. With acks=0, return NoResponse."""
    response = ProduceResponse(responses=[_append_topic(context, request, topic) for topic in request.topic_data])
    context.cluster.record_change()
    partitions = [partition for topic in response.responses for partition in topic.partition_responses]
    if request.acks == 0:
        # The client expects no response, so the only way to report an error is to close the connection.
        return NoResponse(should_close=any(partition.error_code for partition in partitions))
    # A response that names new leaders also contains their addresses, so that the client need not request metadata.
    leader_ids = {
        partition.current_leader.leader_id for partition in partitions if partition.current_leader is not None
    }
    nodes = [context.cluster.nodes[leader_id] for leader_id in sorted(leader_ids)]
    response.node_endpoints = [
        ProduceResponseNodeEndpoint(node_id=node.id, host=node.host, port=node.port, rack=node.rack) for node in nodes
    ]
    return response


def _append_topic(
    context: RequestContext, request: ProduceRequest, topic_data: TopicProduceData
) -> TopicProduceResponse:
    """Append the batches of one topic. Topics are identified by id since version 13, and by name in earlier ones."""
    has_topic_id = context.version >= MIN_VERSION_WITH_TOPIC_IDS
    if has_topic_id:
        topic = context.cluster.find_topic_by_id(topic_data.topic_id)
    else:
        topic = context.cluster.find_topic(topic_data.name)
    if topic is None:
        error_code = error_codes.UNKNOWN_TOPIC_ID if has_topic_id else error_codes.UNKNOWN_TOPIC_OR_PARTITION
        results = [
            PartitionProduceResponse(index=partition.index, error_code=error_code, base_offset=-1)
            for partition in topic_data.partition_data
        ]
    else:
        results = [_append_partition(context, request, topic, partition) for partition in topic_data.partition_data]
    return TopicProduceResponse(name=topic_data.name, topic_id=topic_data.topic_id, partition_responses=results)


def _append_partition(
    context: RequestContext, request: ProduceRequest, topic: Topic, partition_data: PartitionProduceData
) -> PartitionProduceResponse:
    """Append a partition's batch. Return the batch's offset, or the error that rejected it."""
    index = partition_data.index
    result = PartitionProduceResponse(index=index, base_offset=-1)
    partition, result.error_code = context.get_partition_or_error_code(topic, index)
    if 0 <= index < len(topic.partitions):
        # The response has the log start offset even if the batch is rejected.
        result.log_start_offset = topic.partitions[index].log.log_start_offset
    if partition is None:
        # A response that names the new leader lets the client retry without requesting metadata.
        if result.error_code == error_codes.NOT_LEADER_OR_FOLLOWER:
            _set_current_leader(context, topic, result)
        return result
    result.error_code = _find_acks_error_code(context, request.acks, topic, partition)
    if result.error_code:
        return result
    try:
        append_result = _check_and_append_batch(context, request, topic, partition, partition_data.records)
    except ApiError as error:
        result.error_code, result.error_message = error.code, error.message
        result.record_errors = [
            BatchIndexAndErrorMessage(batch_index=record_index, batch_index_error_message=message)
            for record_index, message in error.record_errors.items()
        ]
        return result
    result.base_offset, result.log_append_time_ms = append_result.base_offset, append_result.append_time_ms
    return result


def _set_current_leader(context: RequestContext, topic: Topic, result: PartitionProduceResponse) -> None:
    """Add the current leader, if any, unless the version lacks the field or the error was injected."""
    partition = topic.partitions[result.index]
    if context.version < MIN_VERSION_WITH_CURRENT_LEADER:
        return
    # An injected NOT_LEADER_OR_FOLLOWER does not mean that the leader has moved.
    if partition.leader is not None and not context.find_injected_error_code(topic.name, result.index):
        result.current_leader = ProduceResponseLeaderIdAndEpoch(
            leader_id=partition.leader, leader_epoch=partition.leader_epoch
        )


def _find_acks_error_code(context: RequestContext, acks: int, topic: Topic, partition: Partition) -> int:
    """Return 0 if `acks` is valid and enough replicas are in sync for it, else the error code."""
    if acks not in (-1, 0, 1):
        return error_codes.INVALID_REQUIRED_ACKS
    # As in Kafka's Partition.appendRecordsToLeader, at most the replication factor is required.
    required_count = min(topic.min_in_sync_replicas, len(partition.replicas))
    if acks == -1 and len(context.cluster.find_in_sync_replicas(topic, partition)) < required_count:
        return error_codes.NOT_ENOUGH_REPLICAS
    return 0


def _check_and_append_batch(
    context: RequestContext, request: ProduceRequest, topic: Topic, partition: Partition, records: Records
) -> AppendResult:
    """Check that a batch belongs to its producer's transaction, if any, and append it.

    Raise ApiError if it does not belong to the transaction, or if it is rejected for another reason.
    """
    if not isinstance(records, Buffer):
        raise ApiError(error_codes.INVALID_RECORD, "The request has no records for the partition.")
    header = parse_batch_header(records)
    if header.is_transactional:
        identity = ProducerIdentity(header.producer_id, header.producer_epoch)
        # Hold the lock so that the transaction cannot end between the check and the append.
        with context.cluster.lock:
            topic_partition = (topic.name, partition.index)
            _join_or_verify_transaction(context, request.transactional_id or "", identity, topic_partition)
            return _append_to_log(
                context, partition, records, new_producer_must_start_at_zero=_uses_transaction_version_2(context)
            )
    return _append_to_log(context, partition, records, new_producer_must_start_at_zero=False)


def _append_to_log(
    context: RequestContext, partition: Partition, records: Buffer, *, new_producer_must_start_at_zero: bool
) -> AppendResult:
    """Append a batch without checking its transaction. Raise ApiError if the log rejects the batch."""
    return partition.log.append(
        records,
        wall_ms=context.cluster.wall_ms(),
        leader_epoch=partition.leader_epoch,
        new_producer_must_start_at_zero=new_producer_must_start_at_zero,
    )


def _uses_transaction_version_2(context: RequestContext) -> bool:
    return context.version >= MIN_VERSION_WITH_TRANSACTIONS_V2 and context.cluster.coordinator.version >= 2


def _join_or_verify_transaction(
    context: RequestContext, transactional_id: str, identity: ProducerIdentity, topic_partition: tuple[str, int]
) -> None:
    """Add the batch's partition to the producer's transaction, or check that the producer has done so.

    In transaction version 2, the batch itself adds the partition, and begins the transaction if necessary. In version
    1, the producer must have added it before. Raise ApiError if the batch does not belong to the transaction.
    """
    cluster = context.cluster
    if _uses_transaction_version_2(context):
        error_code = cluster.coordinator.add_partitions(
            transactional_id, identity, [topic_partition], context.now_ms, cluster.wall_ms(), transaction_version=2
        )
        if not error_code:
            cluster.save_transactions()
    elif cluster.config.verifies_transactions:
        error_code = cluster.coordinator.verify_partition(transactional_id, identity, topic_partition)
    else:
        return
    # Replace the coordinator's newer error codes with those that clients expect in a Produce response.
    if error_code == error_codes.TRANSACTION_ABORTABLE and context.version < MIN_VERSION_WITH_ABORTABLE_ERROR:
        error_code = error_codes.INVALID_TXN_STATE
    if error_code == error_codes.PRODUCER_FENCED:
        error_code = error_codes.INVALID_PRODUCER_EPOCH
    if error_code:
        raise ApiError(error_code, f"The batch does not belong to the open transaction of {transactional_id}.")
