"""Small requests that cause much work: the work is limited, or the request is rejected."""

from __future__ import annotations

import gc
import re
from pathlib import Path
from typing import Any
from uuid import UUID

import pytest

from spark_kafka_sink.broker import kafka_apis
from spark_kafka_sink.broker.cluster import MAX_PARTITIONS
from spark_kafka_sink.broker.context import RequestContext
from spark_kafka_sink.broker.handlers import api_01_fetch, api_66_list_transactions
from spark_kafka_sink.broker.log import PartitionLog
from spark_kafka_sink.broker.offsets import MAX_OFFSETS
from spark_kafka_sink.broker.outcome import ChannelAction, ChannelResponse, DelayedRequest
from spark_kafka_sink.broker.storage import ClusterFiles
from spark_kafka_sink.broker.topics import Topic
from spark_kafka_sink.broker.transaction_coordinator import MAX_TRANSACTIONAL_IDS
from spark_kafka_sink.errors import ConfigurationError
from spark_kafka_sink.protocol import error_codes
from spark_kafka_sink.protocol.headers import RequestHeader
from spark_kafka_sink.protocol.message import ApiKey
from spark_kafka_sink.protocol.messages.create_topics import CreatableTopic, CreateTopicsRequest
from spark_kafka_sink.protocol.messages.describe_transactions import DescribeTransactionsRequest
from spark_kafka_sink.protocol.messages.fetch import FetchPartition, FetchRequest, FetchTopic
from spark_kafka_sink.protocol.messages.init_producer_id import InitProducerIdRequest
from spark_kafka_sink.protocol.messages.list_offsets import ListOffsetsPartition, ListOffsetsRequest, ListOffsetsTopic
from spark_kafka_sink.protocol.messages.list_transactions import ListTransactionsRequest, ListTransactionsResponse
from spark_kafka_sink.protocol.messages.metadata import MetadataRequest, MetadataRequestTopic
from spark_kafka_sink.protocol.messages.offset_commit import (
    OffsetCommitRequest,
    OffsetCommitRequestPartition,
    OffsetCommitRequestTopic,
)
from spark_kafka_sink.protocol.messages.offset_fetch import (
    OffsetFetchRequest,
    OffsetFetchRequestGroup,
    OffsetFetchRequestTopics,
)
from tests.broker.in_process_broker import InProcessBroker
from tests.broker.wire_client import batch

MAX_INT32 = 2**31 - 1
REPETITIONS = 20_000


def fetch(*partitions: int, topics: int = 1, min_bytes: int = 0) -> FetchRequest:
    requested = [FetchPartition(partition=index, partition_max_bytes=MAX_INT32) for index in partitions]
    topic = FetchTopic(topic="t", partitions=requested)
    return FetchRequest(max_wait_ms=MAX_INT32, min_bytes=min_bytes, max_bytes=MAX_INT32, topics=[topic] * topics)


def response_bytes(outcome: ChannelResponse | DelayedRequest) -> int:
    assert isinstance(outcome, ChannelResponse)
    assert outcome.frame is not None
    return sum(len(segment) for segment in outcome.frame)


@pytest.mark.parametrize(
    "request_", [fetch(*[0] * REPETITIONS), fetch(0, topics=REPETITIONS)], ids=["one topic", "many topics"]
)
def test_fetch_reads_repeated_partition_once(request_: FetchRequest) -> None:
    broker = InProcessBroker()
    broker.write(b"x" * 20)
    single_response_bytes = response_bytes(broker.handle(fetch(0), 12))
    assert response_bytes(broker.handle(request_, 12)) - single_response_bytes < 10 * REPETITIONS
    response = broker.request(request_, 12)
    assert sum(len(topic.partitions) for topic in response.responses) == 1


def test_fetch_response_is_limited_to_max_response_bytes(monkeypatch: pytest.MonkeyPatch) -> None:
    broker = InProcessBroker()
    for _ in range(10):
        broker.cluster.log("t", 0).append(batch(b"x" * 20), wall_ms=1)
    size = broker.cluster.log("t", 0).bytes_appended // 10
    monkeypatch.setattr(api_01_fetch, "MAX_RESPONSE_BYTES", 3 * size)
    (topic,) = broker.request(fetch(0, 1), 12).responses
    assert [len(partition.records) for partition in topic.partitions] == [3 * size, 0]


def test_read_examines_only_returned_batches(monkeypatch: pytest.MonkeyPatch) -> None:
    class CountingList(list[Any]):
        reads = 0

        def __getitem__(self, index: Any) -> Any:
            assert isinstance(index, int), "must not copy a slice of the log"
            CountingList.reads += 1
            return super().__getitem__(index)

    log = PartitionLog(InProcessBroker().cluster.log("t", 0).config)
    for _ in range(1000):
        log.append(batch(b"a"), wall_ms=1)
    monkeypatch.setattr(log, "_batches", CountingList(log._batches))
    assert len(log.read(500, 1).batches) == 1
    assert CountingList.reads < 10


@pytest.mark.parametrize(
    ("partitions", "message"),
    [
        (MAX_INT32, f"only {MAX_PARTITIONS - 2} more can be created"),
        (MAX_PARTITIONS, f"only {MAX_PARTITIONS - 2} more can be created"),
        (0, "at least one partition"),
        (-2, "at least one partition"),
    ],
)
def test_rejects_partition_count_out_of_range(partitions: int, message: str) -> None:
    broker = InProcessBroker()
    topic = CreatableTopic(name="u", num_partitions=partitions, replication_factor=-1)
    (result,) = broker.request(CreateTopicsRequest(topics=[topic]), 5).topics
    assert result.error_code == error_codes.INVALID_PARTITIONS
    assert message in result.error_message
    for attempt in (
        lambda: broker.cluster.create_topic("u", partitions),
        lambda: broker.cluster.add_partitions("t", max(partitions, MAX_PARTITIONS + 1)),
    ):
        with pytest.raises(ConfigurationError, match="partition"):
            attempt()
    assert [len(topic.partitions) for topic in broker.cluster.topics.values()] == [2]


def test_topics_of_one_request_share_available_partitions() -> None:
    broker = InProcessBroker(max_partitions=5)
    requested = [CreatableTopic(name=name, num_partitions=2, replication_factor=-1) for name in "uvw"]
    results = broker.request(CreateTopicsRequest(topics=requested), 5).topics
    too_many = error_codes.INVALID_PARTITIONS
    assert [result.error_code for result in results] == [0, too_many, too_many]
    assert sorted(broker.cluster.topics) == ["t", "u"]


class CountingTopics(dict[str, Topic]):
    """Topics that count iterations over all of them."""

    lookups = 0

    def values(self) -> Any:
        CountingTopics.lookups += 1
        return super().values()


def test_topic_cost_does_not_grow_with_number_of_topics(monkeypatch: pytest.MonkeyPatch) -> None:
    broker = InProcessBroker()
    monkeypatch.setattr(CountingTopics, "lookups", 0)
    broker.cluster.topics = CountingTopics(broker.cluster.topics)
    requested = [CreatableTopic(name=f"t{number}", num_partitions=1, replication_factor=-1) for number in range(500)]
    ids = [result.topic_id for result in broker.request(CreateTopicsRequest(topics=requested), 7).topics]
    unknown = [UUID(int=number) for number in range(500)]
    broker.request(FetchRequest(topics=[FetchTopic(topic_id=topic_id) for topic_id in [*ids, *unknown]]), 13)
    assert CountingTopics.lookups < 10


class CountingInt(int):
    """An integer that counts its comparisons."""

    lookups = 0
    __hash__ = int.__hash__

    def __eq__(self, other: object) -> bool:
        CountingInt.lookups += 1
        return super().__eq__(other)


def test_listing_cost_does_not_grow_with_number_of_filters() -> None:
    broker = InProcessBroker()
    for number in range(100):
        broker.cluster.coordinator.init_producer_id(f"x{number}", 1000, None)
    context = RequestContext(broker.cluster, 0, RequestHeader(ApiKey.LIST_TRANSACTIONS, 2, 0, None), 0, 0)
    request = ListTransactionsRequest(producer_id_filters=[*map(CountingInt, range(99, 1000))])
    response = api_66_list_transactions.handle(context, request)
    assert isinstance(response, ListTransactionsResponse)
    assert [state.transactional_id for state in response.transaction_states] == ["x99"]
    assert CountingInt.lookups < 1000


def test_does_not_create_topic_repeated_in_request() -> None:
    broker = InProcessBroker()
    requested = [CreatableTopic(name=name, num_partitions=1, replication_factor=-1) for name in "uvu"]
    results = broker.request(CreateTopicsRequest(topics=requested), 5).topics
    assert [result.error_code for result in results] == [error_codes.INVALID_REQUEST, 0, error_codes.INVALID_REQUEST]
    assert sorted(broker.cluster.topics) == ["t", "v"]


def test_metadata_describes_repeated_topic_once() -> None:
    broker = InProcessBroker()
    by_name = [MetadataRequestTopic(name="t")] * REPETITIONS
    by_id = [MetadataRequestTopic(topic_id=broker.cluster.topic("t").id)] * REPETITIONS
    unknown = [MetadataRequestTopic(name="unknown")] * REPETITIONS
    response = broker.request(MetadataRequest(topics=by_name + by_id + unknown), 12)
    assert len(response.topics) == 3


def test_creating_2000_topics_saves_once_and_opens_no_descriptors(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def count_open_descriptors() -> int:
        return len(list(Path("/proc/self/fd").iterdir()))

    broker = InProcessBroker(tmp_path, auto_create_topics=True)
    saves: list[int] = []
    monkeypatch.setattr(ClusterFiles, "save", lambda files, cluster: saves.append(len(cluster.topics)))
    count_before = count_open_descriptors()
    names = [f"u{number}" for number in range(2000)]
    response = broker.request(MetadataRequest(topics=[MetadataRequestTopic(name=name) for name in names]), 12)
    assert [topic.error_code for topic in response.topics] == [0] * 2000
    assert (saves, count_open_descriptors() - count_before) == ([2001], 0)


def test_does_not_auto_create_topics_beyond_partition_limit(
    caplog: pytest.LogCaptureFixture,
) -> None:
    broker = InProcessBroker(auto_create_topics=True, max_partitions=4)
    requested = [MetadataRequestTopic(name=name) for name in "uvwx"]
    response = broker.request(MetadataRequest(topics=requested), 12)
    assert [topic.error_code for topic in response.topics] == [0, 0] + [error_codes.POLICY_VIOLATION] * 2
    assert "Did not create 2 topics" in caplog.text


def test_request_with_too_many_elements_closes_connection(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(kafka_apis, "MAX_ARRAY_ELEMENTS", 100)
    broker = InProcessBroker()
    assert broker.request(MetadataRequest(topics=[MetadataRequestTopic(name="t")] * 100), 12) is not None
    assert broker.request(MetadataRequest(topics=[MetadataRequestTopic(name="t")] * 101), 12) is None


def test_response_longer_than_a_frame_closes_connection_and_is_logged(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(kafka_apis, "DEFAULT_MAX_FRAME_BYTES", 100)
    outcome = InProcessBroker().handle(MetadataRequest(topics=None), 12)
    assert isinstance(outcome, ChannelResponse)
    assert (outcome.frame, outcome.action) == (None, ChannelAction.CLOSE)
    assert re.search(r"METADATA response of \d+ bytes", caplog.text)


def test_delayed_request_keeps_frame_instead_of_decoded_request() -> None:
    def count_decoded_partitions() -> int:
        return sum(isinstance(item, FetchPartition) for item in gc.get_objects())

    broker, request = InProcessBroker(), fetch(*range(1000), min_bytes=1)
    broker.cluster.add_partitions("t", 1000)
    count_before = count_decoded_partitions()
    outcome = broker.handle(request, 12)
    assert isinstance(outcome, DelayedRequest)
    assert count_decoded_partitions() == count_before
    assert isinstance(outcome.resume(10.0**9), ChannelResponse)


def test_list_offsets_rejects_repeated_partitions() -> None:
    requested = [ListOffsetsPartition(partition_index=index, timestamp=0) for index in (0, 1, 0)]
    response = InProcessBroker().request(
        ListOffsetsRequest(topics=[ListOffsetsTopic(name="t", partitions=requested)]), 5
    )
    codes = [partition.error_code for partition in response.topics[0].partitions]
    assert codes == [error_codes.INVALID_REQUEST, 0, error_codes.INVALID_REQUEST]


def test_offset_fetch_returns_repeated_groups_and_partitions_once() -> None:
    topics = [OffsetFetchRequestTopics(name="t", partition_indexes=[0] * 2_000)] * 2
    groups = [OffsetFetchRequestGroup(group_id="g", topics=topics)] * 5
    response = InProcessBroker().request(OffsetFetchRequest(groups=groups), 8)
    assert [[len(topic.partitions) for topic in group.topics] for group in response.groups] == [[1]]


def test_describes_repeated_transactional_id_once() -> None:
    response = InProcessBroker().request(DescribeTransactionsRequest(transactional_ids=["x"] * REPETITIONS), 0)
    assert len(response.transaction_states) == 1


def test_matches_exponential_pattern_in_linear_time() -> None:
    broker = InProcessBroker()
    for name in ("a" * 64 + "!", "abc"):
        broker.request(InitProducerIdRequest(transactional_id=name, transaction_timeout_ms=1000), 4)
    list_request = ListTransactionsRequest(transactional_id_pattern="(a+)+b?c?")
    assert [state.transactional_id for state in broker.request(list_request, 2).transaction_states] == ["abc"]
    response = broker.request(ListTransactionsRequest(transactional_id_pattern="(("), 2)
    assert response.error_code == error_codes.INVALID_REGULAR_EXPRESSION


def build_commit(group: str, metadata: str = "", partition: int = 0) -> OffsetCommitRequest:
    offset = OffsetCommitRequestPartition(partition_index=partition, committed_offset=1, committed_metadata=metadata)
    return OffsetCommitRequest(group_id=group, topics=[OffsetCommitRequestTopic(name="t", partitions=[offset])])


def test_rejects_offset_metadata_longer_than_4096_characters() -> None:
    broker = InProcessBroker()
    codes = [
        broker.request(build_commit("g", "x" * size), 8).topics[0].partitions[0].error_code for size in (4096, 4097)
    ]
    assert codes == [0, error_codes.OFFSET_METADATA_TOO_LARGE]


def test_limits_number_of_offsets_and_transactional_ids(monkeypatch: pytest.MonkeyPatch) -> None:
    assert (MAX_OFFSETS, MAX_TRANSACTIONAL_IDS) == (100_000, 10_000)
    monkeypatch.setattr("spark_kafka_sink.broker.offsets.MAX_OFFSETS", 2)
    monkeypatch.setattr("spark_kafka_sink.broker.transaction_coordinator.MAX_TRANSACTIONAL_IDS", 2)
    broker = InProcessBroker()
    full = error_codes.POLICY_VIOLATION
    codes = [broker.request(build_commit(group), 8).topics[0].partitions[0].error_code for group in "abca"]
    assert codes == [0, 0, full, 0]
    codes = [
        broker.request(InitProducerIdRequest(transactional_id=name, transaction_timeout_ms=1000), 4).error_code
        for name in "abca"
    ]
    assert codes == [0, 0, full, 0]
