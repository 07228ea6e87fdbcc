"""OffsetFetch: return the committed offsets of one consumer group (up to v7) or several groups (from v8 on)."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import NamedTuple, TypeVar

from spark_kafka_sink.broker.context import HandlerResult, RequestContext
from spark_kafka_sink.broker.offsets import CommittedOffset
from spark_kafka_sink.protocol import error_codes
from spark_kafka_sink.protocol.messages.offset_fetch import (
    OffsetFetchRequest,
    OffsetFetchRequestGroup,
    OffsetFetchResponse,
    OffsetFetchResponseGroup,
    OffsetFetchResponsePartition,
    OffsetFetchResponsePartitions,
    OffsetFetchResponseTopic,
    OffsetFetchResponseTopics,
)

PartitionResponseT = TypeVar("PartitionResponseT", OffsetFetchResponsePartition, OffsetFetchResponsePartitions)

MIN_VERSION_WITH_SEVERAL_GROUPS = 8
NO_COMMITTED_OFFSET = CommittedOffset(offset=-1, leader_epoch=-1, metadata="")


class _PartitionOffset(NamedTuple):
    """A partition's committed offset and its error code in the response."""

    partition: int
    committed: CommittedOffset
    error_code: int


def handle(context: RequestContext, request: OffsetFetchRequest) -> HandlerResult:
    """Return the committed offsets, in the layout of the request's version (for one group, or for several)."""
    if context.version >= MIN_VERSION_WITH_SEVERAL_GROUPS:
        # If a group is listed twice, the last one wins.
        requested_groups = {group.group_id: group for group in request.groups}
        groups = [_fetch_group(context, group, request.require_stable) for group in requested_groups.values()]
        return OffsetFetchResponse(groups=groups)
    error_code = context.find_coordinator_error_code(request.group_id)
    if error_code:
        return OffsetFetchResponse(error_code=error_code)
    requested_topics = (
        None if request.topics is None else [(topic.name, topic.partition_indexes) for topic in request.topics]
    )
    topics = [
        OffsetFetchResponseTopic(
            name=name, partitions=_build_response_partitions(OffsetFetchResponsePartition, offsets)
        )
        for name, offsets in _find_offsets(context, request.group_id, requested_topics, request.require_stable)
    ]
    return OffsetFetchResponse(topics=topics)


def _fetch_group(
    context: RequestContext, group: OffsetFetchRequestGroup, requires_stable: bool
) -> OffsetFetchResponseGroup:
    """Return a group's offsets for the requested partitions, or for all partitions if the request names none."""
    error_code = context.find_coordinator_error_code(group.group_id)
    if error_code:
        return OffsetFetchResponseGroup(group_id=group.group_id, error_code=error_code)
    requested_topics = (
        None if group.topics is None else [(topic.name, topic.partition_indexes) for topic in group.topics]
    )
    topics = [
        OffsetFetchResponseTopics(
            name=name, partitions=_build_response_partitions(OffsetFetchResponsePartitions, offsets)
        )
        for name, offsets in _find_offsets(context, group.group_id, requested_topics, requires_stable)
    ]
    return OffsetFetchResponseGroup(group_id=group.group_id, topics=topics)


def _build_response_partitions(
    response_type: Callable[..., PartitionResponseT], offsets: Iterable[_PartitionOffset]
) -> list[PartitionResponseT]:
    """Build the partitions of a response.

    `response_type`: the class for versions up to 7, or the one for later versions. Both have the same fields.
    """
    return [
        response_type(
            partition_index=offset.partition,
            committed_offset=offset.committed.offset,
            committed_leader_epoch=offset.committed.leader_epoch,
            metadata=offset.committed.metadata,
            error_code=offset.error_code,
        )
        for offset in offsets
    ]


def _find_offsets(
    context: RequestContext,
    group: str,
    requested_topics: Iterable[tuple[str, list[int]]] | None,
    requires_stable: bool,
) -> list[tuple[str, list[_PartitionOffset]]]:
    """Return the offsets of the requested partitions (None: all partitions), by topic. Each partition occurs once."""
    with context.cluster.lock:
        store = context.cluster.offsets
        if requested_topics is None:
            requested_topics = [(topic, [index]) for topic, index in store.list_partitions(group)]
        partitions_by_topic: dict[str, dict[int, None]] = {}  # the inner dict is an ordered set of partition indexes
        for topic, indexes in requested_topics:
            partitions_by_topic.setdefault(topic, {}).update(dict.fromkeys(indexes))
        result = []
        for topic, partitions in partitions_by_topic.items():
            offsets = []
            for index in partitions:
                is_unstable = requires_stable and store.has_pending(group, (topic, index))
                error_code = error_codes.UNSTABLE_OFFSET_COMMIT if is_unstable else 0
                committed = store.get(group, (topic, index)) or NO_COMMITTED_OFFSET
                offsets.append(_PartitionOffset(index, committed, error_code))
            result.append((topic, offsets))
        return result
