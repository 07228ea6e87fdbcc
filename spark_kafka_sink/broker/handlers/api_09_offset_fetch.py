"""OffsetFetch: where groups have read to; one group up to v7, several from v8 on."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import TypeVar

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

Row = TypeVar("Row", OffsetFetchResponsePartition, OffsetFetchResponsePartitions)
Found = tuple[int, CommittedOffset, int]
"""(partition, its offset, error)"""

GROUPS_VERSION = 8
NONE_COMMITTED = CommittedOffset(-1, -1, "")


def handle(context: RequestContext, request: OffsetFetchRequest) -> HandlerResult:
    if context.version >= GROUPS_VERSION:
        asked_for = {group.group_id: group for group in request.groups}
        groups = [_group(context, group, request.require_stable) for group in asked_for.values()]
        return OffsetFetchResponse(groups=groups)
    error = context.coordinator_error(request.group_id)
    if error:
        return OffsetFetchResponse(error_code=error)
    asked = None if request.topics is None else [(t.name, t.partition_indexes) for t in request.topics]
    topics = [
        OffsetFetchResponseTopic(name=name, partitions=_rows(OffsetFetchResponsePartition, partitions))
        for name, partitions in _look_up(context, request.group_id, asked, request.require_stable)
    ]
    return OffsetFetchResponse(topics=topics)


def _group(context: RequestContext, group: OffsetFetchRequestGroup, stable: bool) -> OffsetFetchResponseGroup:
    error = context.coordinator_error(group.group_id)
    if error:
        return OffsetFetchResponseGroup(group_id=group.group_id, error_code=error)
    asked = None if group.topics is None else [(t.name, t.partition_indexes) for t in group.topics]
    topics = [
        OffsetFetchResponseTopics(name=name, partitions=_rows(OffsetFetchResponsePartitions, partitions))
        for name, partitions in _look_up(context, group.group_id, asked, stable)
    ]
    return OffsetFetchResponseGroup(group_id=group.group_id, topics=topics)


def _rows(row: Callable[..., Row], found: Iterable[Found]) -> list[Row]:
    return [
        row(
            partition_index=index,
            committed_offset=committed.offset,
            committed_leader_epoch=committed.leader_epoch,
            metadata=committed.metadata,
            error_code=code,
        )
        for index, committed, code in found
    ]


def _look_up(
    context: RequestContext, group: str, asked: Iterable[tuple[str, list[int]]] | None, stable: bool
) -> list[tuple[str, list[Found]]]:
    """By topic, each partition once. None asks for all that the group has."""
    with context.cluster.lock:
        offsets = context.cluster.offsets
        if asked is None:
            by_topic: dict[str, list[int]] = {}
            for topic, index in offsets.all_of(group):
                by_topic.setdefault(topic, []).append(index)
            asked = by_topic.items()
        wanted: dict[str, dict[int, None]] = {}
        for topic, indexes in asked:
            wanted.setdefault(topic, {}).update(dict.fromkeys(indexes))
        found = []
        for topic, each in wanted.items():
            rows = []
            for index in each:
                waits = stable and offsets.is_pending(group, (topic, index))
                code = error_codes.UNSTABLE_OFFSET_COMMIT if waits else 0
                rows.append((index, offsets.get(group, (topic, index)) or NONE_COMMITTED, code))
            found.append((topic, rows))
        return found
