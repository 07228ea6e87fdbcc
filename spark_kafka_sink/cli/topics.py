"""`pykafka topics`: list topics, or describe the named topics with their leaders, replicas and offsets."""

from __future__ import annotations

import argparse
import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

from spark_kafka_sink.cli.client_options import (
    add_connection_arguments,
    build_reader_config,
    check_topics_readable,
    parse_client_options,
)
from spark_kafka_sink.cli.tables import print_table
from spark_kafka_sink.protocol.acl_operation import AclOperation

if TYPE_CHECKING:
    from spark_kafka_sink.client.config import ClientConfig
    from spark_kafka_sink.protocol.messages.metadata import MetadataResponse, MetadataResponseTopic

COMMAND_HELP = "list topics, or describe the leaders, replicas and offsets of named topics"

_NO_LEADER = -1


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add_connection_arguments(parser)
    parser.add_argument(
        "topics", nargs="*", metavar="TOPIC", help="describe these topics instead of listing all topics"
    )
    parser.add_argument("--internal", action="store_true", help="also list the internal topics of Kafka")
    parser.add_argument("--json", action="store_true", help="print one JSON document")


@dataclass(frozen=True)
class _PartitionDescription:
    """A row in a topic's description. `first_offset` and `end_offset` are None if the partition has no leader."""

    topic: str
    partition: int
    leader: int | None
    replicas: Sequence[int]
    in_sync: Sequence[int]
    first_offset: int | None
    end_offset: int | None


class _TopicOffsets(NamedTuple):
    """The offsets of a topic, by partition."""

    first_offsets: Mapping[int, int]
    end_offsets: Mapping[int, int]
    """The end offsets include the records of open transactions."""


def run(args: argparse.Namespace) -> int:
    config = build_reader_config(parse_client_options(args))
    check_topics_readable(config, *args.topics, operation=AclOperation.DESCRIBE)
    metadata = _fetch_metadata(config, args.topics or None)
    if args.topics:
        _print_description(config, sorted(metadata.topics, key=lambda topic: topic.name or ""), as_json=args.json)
    else:
        listed_topics = [topic for topic in metadata.topics if args.internal or not topic.is_internal]
        _print_topic_list(sorted(listed_topics, key=lambda topic: topic.name or ""), as_json=args.json)
    return 0


def _fetch_metadata(config: ClientConfig, topics: Sequence[str] | None) -> MetadataResponse:
    """Fetch the metadata of the named topics, or of all topics if `topics` is None."""
    from spark_kafka_sink.requests.blocking import BlockingClient
    from spark_kafka_sink.requests.topics import DescribeTopics

    with BlockingClient(config) as client:
        return client.send(DescribeTopics(None if topics is None else list(dict.fromkeys(topics))))


def _print_topic_list(topics: Sequence[MetadataResponseTopic], *, as_json: bool) -> None:
    """Print the number of partitions of each topic, and the largest number of replicas of a partition."""
    rows = [
        (
            topic.name or "",
            len(topic.partitions),
            max((len(partition.replica_nodes) for partition in topic.partitions), default=0),
        )
        for topic in topics
    ]
    headings = ("topic", "partitions", "replicas")
    if as_json:
        print(json.dumps([dict(zip(headings, row, strict=True)) for row in rows]))
    elif rows:
        print_table(headings, rows)
    else:
        print("There are no topics that this user is authorized to describe.")


def _print_description(config: ClientConfig, topics: Iterable[MetadataResponseTopic], *, as_json: bool) -> None:
    partitions = [partition for topic in topics for partition in _describe_partitions(config, topic)]
    if as_json:
        print(json.dumps([vars(partition) for partition in partitions]))
        return
    headings = ("topic", "partition", "leader", "replicas", "in sync", "first offset", "end offset", "records at most")
    print_table(headings, [_build_row(partition) for partition in partitions])


def _build_row(partition: _PartitionDescription) -> tuple[object, ...]:
    """Build the table row of a partition. Unknown numbers are shown as `?`."""
    first_offset, end_offset = partition.first_offset, partition.end_offset
    # Compaction and transaction markers leave gaps between the offsets, so the difference is only an upper bound.
    max_record_count = None if first_offset is None or end_offset is None else end_offset - first_offset
    offset_cells = ["?" if number is None else number for number in (first_offset, end_offset, max_record_count)]
    return (
        partition.topic,
        partition.partition,
        "none" if partition.leader is None else partition.leader,
        _join_numbers(partition.replicas),
        _join_numbers(partition.in_sync),
        *offset_cells,
    )


def _join_numbers(numbers: Iterable[int]) -> str:
    return ",".join(str(number) for number in numbers)


def _describe_partitions(config: ClientConfig, topic: MetadataResponseTopic) -> list[_PartitionDescription]:
    """Return the partitions in ascending order. Offsets are fetched only for partitions with a leader."""
    name = topic.name or ""
    partitions_with_leader = [
        partition.partition_index for partition in topic.partitions if partition.leader_id != _NO_LEADER
    ]
    offsets = _fetch_offsets(config, name, partitions_with_leader)
    return [
        _PartitionDescription(
            topic=name,
            partition=partition.partition_index,
            leader=None if partition.leader_id == _NO_LEADER else partition.leader_id,
            replicas=partition.replica_nodes,
            in_sync=partition.isr_nodes,
            first_offset=offsets.first_offsets.get(partition.partition_index),
            end_offset=offsets.end_offsets.get(partition.partition_index),
        )
        for partition in sorted(topic.partitions, key=lambda partition: partition.partition_index)
    ]


def _fetch_offsets(config: ClientConfig, topic: str, partitions: Sequence[int]) -> _TopicOffsets:
    """Fetch the first offset and the end offset of each of these partitions."""
    from spark_kafka_sink.reader.reader import TopicReader

    if not partitions:
        return _TopicOffsets({}, {})
    with TopicReader(config, isolation="read_uncommitted") as reader:
        first_offsets = reader.beginning_offsets(topic, partitions)
        end_offsets = reader.end_offsets(topic, partitions)
        return _TopicOffsets(first_offsets, end_offsets)
