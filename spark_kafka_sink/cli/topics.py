"""`pykafka topics`: which topics there are; of those that are named, leaders, replicas and offsets."""

from __future__ import annotations

import argparse
import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from spark_kafka_sink.cli.client_options import add_connection_arguments, given_options, reach, reading_config
from spark_kafka_sink.cli.tables import print_table

if TYPE_CHECKING:
    from spark_kafka_sink.client.config import ClientConfig
    from spark_kafka_sink.protocol.messages.metadata import MetadataResponse, MetadataResponseTopic

HELP = "list topics, or describe those that are named: leaders, replicas, offsets"

_NO_LEADER = -1


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add_connection_arguments(parser)
    add = parser.add_argument
    add("topics", nargs="*", metavar="TOPIC", help="describe this topic, instead of listing all")
    add("--internal", action="store_true", help="list Kafka's own topics, too")
    add("--json", action="store_true", help="print one JSON document")


@dataclass(frozen=True)
class _Partition:
    """`first_offset` and `end_offset` are None where there is no leader to ask."""

    topic: str
    partition: int
    leader: int | None
    replicas: Sequence[int]
    in_sync: Sequence[int]
    first_offset: int | None
    end_offset: int | None


def run(chosen: argparse.Namespace) -> int:
    config = reading_config(given_options(chosen))
    reach(config, *chosen.topics)
    found = _metadata(config, chosen.topics or None)
    if chosen.topics:
        _describe(config, sorted(found.topics, key=lambda topic: topic.name or ""), as_json=chosen.json)
    else:
        listed = [topic for topic in found.topics if chosen.internal or not topic.is_internal]
        _list(sorted(listed, key=lambda topic: topic.name or ""), as_json=chosen.json)
    return 0


def _metadata(config: ClientConfig, topics: Sequence[str] | None) -> MetadataResponse:
    from spark_kafka_sink.requests.blocking import BlockingClient
    from spark_kafka_sink.requests.topics import DescribeTopics

    with BlockingClient(config) as client:
        return client.send(DescribeTopics(None if topics is None else list(dict.fromkeys(topics))))


def _list(topics: Sequence[MetadataResponseTopic], *, as_json: bool) -> None:
    rows = [
        (
            topic.name or "",
            len(topic.partitions),
            max((len(part.replica_nodes) for part in topic.partitions), default=0),
        )
        for topic in topics
    ]
    names = ("topic", "partitions", "replicas")
    if as_json:
        print(json.dumps([dict(zip(names, row, strict=True)) for row in rows]))
    elif rows:
        print_table(names, rows)
    else:
        print("There are no topics that this user may see.")


def _describe(config: ClientConfig, topics: Iterable[MetadataResponseTopic], *, as_json: bool) -> None:
    partitions = [each for topic in topics for each in _partitions(config, topic)]
    if as_json:
        print(json.dumps([vars(each) for each in partitions]))
        return
    names = ("topic", "partition", "leader", "replicas", "in sync", "first offset", "end offset", "records at most")
    print_table(names, [_row(each) for each in partitions])


def _row(each: _Partition) -> tuple[object, ...]:
    ends = (each.first_offset, each.end_offset)
    records = None if each.first_offset is None or each.end_offset is None else each.end_offset - each.first_offset
    leader = "none" if each.leader is None else each.leader
    known = ["?" if number is None else number for number in (*ends, records)]
    return each.topic, each.partition, leader, _joined(each.replicas), _joined(each.in_sync), *known


def _joined(numbers: Iterable[int]) -> str:
    return ",".join(str(number) for number in numbers)


def _partitions(config: ClientConfig, topic: MetadataResponseTopic) -> list[_Partition]:
    name = topic.name or ""
    led = [part.partition_index for part in topic.partitions if part.leader_id != _NO_LEADER]
    first, end = _offsets(config, name, led)
    return [
        _Partition(
            name,
            part.partition_index,
            part.leader_id if part.leader_id != _NO_LEADER else None,
            part.replica_nodes,
            part.isr_nodes,
            first.get(part.partition_index),
            end.get(part.partition_index),
        )
        for part in sorted(topic.partitions, key=lambda part: part.partition_index)
    ]


def _offsets(
    config: ClientConfig, topic: str, partitions: Sequence[int]
) -> tuple[Mapping[int, int], Mapping[int, int]]:
    from spark_kafka_sink.reader.reader import TopicReader

    if not partitions:
        return {}, {}
    with TopicReader(config, isolation="read_uncommitted") as reader:
        return reader.beginning_offsets(topic, partitions), reader.end_offsets(topic, partitions)
