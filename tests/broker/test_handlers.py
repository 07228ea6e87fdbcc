"""Request handlers: every API in every supported version, and the behavior of single APIs."""

from __future__ import annotations

from uuid import UUID

import pytest

from spark_kafka_sink.broker.control import Control
from spark_kafka_sink.broker.handlers import list_handled_api_keys
from spark_kafka_sink.broker.supported_versions import SUPPORTED_VERSIONS
from spark_kafka_sink.broker.topics import TOPIC_SETTINGS, SettingType
from spark_kafka_sink.protocol import error_codes
from spark_kafka_sink.protocol.message import ApiKey
from spark_kafka_sink.protocol.messages import list_supported_api_keys
from spark_kafka_sink.protocol.messages.add_offsets_to_txn import AddOffsetsToTxnRequest
from spark_kafka_sink.protocol.messages.add_partitions_to_txn import AddPartitionsToTxnRequest, AddPartitionsToTxnTopic
from spark_kafka_sink.protocol.messages.api_versions import ApiVersionsRequest, ApiVersionsResponse
from spark_kafka_sink.protocol.messages.create_topics import CreatableTopic, CreatableTopicConfig, CreateTopicsRequest
from spark_kafka_sink.protocol.messages.describe_configs import (
    TOPIC_RESOURCE,
    DescribeConfigsRequest,
    DescribeConfigsResource,
)
from spark_kafka_sink.protocol.messages.describe_transactions import DescribeTransactionsRequest
from spark_kafka_sink.protocol.messages.end_txn import EndTxnRequest
from spark_kafka_sink.protocol.messages.fetch import FetchPartition, FetchRequest, FetchTopic
from spark_kafka_sink.protocol.messages.init_producer_id import InitProducerIdRequest
from spark_kafka_sink.protocol.messages.list_offsets import ListOffsetsPartition, ListOffsetsRequest, ListOffsetsTopic
from spark_kafka_sink.protocol.messages.list_transactions import ListTransactionsRequest
from spark_kafka_sink.protocol.messages.metadata import MetadataRequest, MetadataRequestTopic
from spark_kafka_sink.protocol.messages.offset_fetch import (
    OffsetFetchRequest,
    OffsetFetchRequestGroup,
    OffsetFetchRequestTopics,
)
from spark_kafka_sink.protocol.messages.txn_offset_commit import (
    TxnOffsetCommitRequest,
    TxnOffsetCommitRequestPartition,
    TxnOffsetCommitRequestTopic,
)
from tests.broker.sample_requests import every_api, request_each_version
from tests.broker.wire_client import WireClient, batch, partition_response, produce_request
from tests.fake_system import FakeSystem
from tests.simulated_cluster import SimulatedCluster


@pytest.fixture
def system() -> FakeSystem:
    return FakeSystem()


@pytest.fixture
def cluster(system: FakeSystem) -> SimulatedCluster:
    return SimulatedCluster(system, topics={"t": 2})


@pytest.fixture
def client(system: FakeSystem, cluster: SimulatedCluster) -> WireClient:
    return WireClient(system)


@every_api
def test_responds_to_every_supported_version(client: WireClient, cluster: SimulatedCluster, api: ApiKey) -> None:
    assert list(request_each_version(client, cluster, api))


def test_every_api_with_messages_has_a_handler() -> None:
    assert set(list_handled_api_keys()) == set(list_supported_api_keys()) == set(SUPPORTED_VERSIONS)


@pytest.mark.parametrize(
    ("cluster_id", "node_id", "error_code"),
    [
        (None, -1, error_codes.NONE),
        ("{own}", 0, error_codes.NONE),
        ("{own}", 1, error_codes.REBOOTSTRAP_REQUIRED),
        ("another", 0, error_codes.REBOOTSTRAP_REQUIRED),
        ("{own}", -1, error_codes.INVALID_REQUEST),
        (None, 0, error_codes.INVALID_REQUEST),
    ],
)
def test_rejects_connection_that_was_meant_for_another_cluster_or_node(
    client: WireClient, cluster: SimulatedCluster, cluster_id: str | None, node_id: int, error_code: int
) -> None:
    own_id = cluster.core.cluster_id
    request = ApiVersionsRequest(
        cluster_id=None if cluster_id is None else cluster_id.format(own=own_id), node_id=node_id
    )
    response = client.request(request, 5)
    assert isinstance(response, ApiVersionsResponse)
    assert response.error_code == error_code


@pytest.mark.parametrize(("version", "names"), [(3, []), (4, ["transaction.version"])])
def test_api_versions_below_4_omit_features_with_minimum_level_0(
    client: WireClient, version: int, names: list[str]
) -> None:
    """Some Java clients before 3.9 cannot connect otherwise (KAFKA-17011)."""
    response = client.request(ApiVersionsRequest(), version)
    assert isinstance(response, ApiVersionsResponse)
    assert [feature.name for feature in response.supported_features] == names


def test_acks_0_gets_no_response_and_error_closes_connection(client: WireClient, cluster: SimulatedCluster) -> None:
    client.send(produce_request(batch(b"a"), acks=0), 9)
    for _ in range(3):
        client.selector.poll(10)
    assert (client.selector.completed_receives, cluster.values("t")) == ([], [b"a"])
    assert client.request(produce_request(b"nonsense", acks=0), 9) is None


def test_min_insync_replicas_is_capped_at_replication_factor(client: WireClient, cluster: SimulatedCluster) -> None:
    assert [len(partition.replicas) for partition in cluster.core.topic("t").partitions] == [1, 1]
    cluster.control.create_topic("strict", 1, {"min.insync.replicas": "2"})
    assert partition_response(client.request(produce_request(batch(b"a"), "strict"), 9)).error_code == 0


def test_fetch_waits_for_records_at_most_max_wait_ms(
    client: WireClient, cluster: SimulatedCluster, system: FakeSystem
) -> None:
    request = fetch(max_wait_ms=5_000)
    start = system.now()
    response = client.request(request, 12)
    assert (response.responses[0].partitions[0].records, system.now() - start) == (b"", 5_000)
    writer = WireClient(system)
    client.send(request, 12)
    client.selector.poll(0)
    start = system.now()
    writer.request(produce_request(batch(b"a")), 9)
    assert client.wait() is not None
    assert system.now() - start < 100


def test_rejects_fetch_offset_outside_the_log(client: WireClient, cluster: SimulatedCluster) -> None:
    response = client.request(fetch(offset=1, max_wait_ms=5_000), 12)
    assert response.responses[0].partitions[0].error_code == error_codes.OFFSET_OUT_OF_RANGE


def test_creates_missing_topic_only_if_request_allows_it(system: FakeSystem) -> None:
    creating_request = MetadataRequest(topics=[MetadataRequestTopic(name="new")], allow_auto_topic_creation=True)
    SimulatedCluster(system, auto_create_topics=True, default_partitions=2)
    client = WireClient(system)
    plain_request = MetadataRequest(topics=[MetadataRequestTopic(name="new")], allow_auto_topic_creation=False)
    assert client.request(plain_request, 9).topics[0].error_code == error_codes.UNKNOWN_TOPIC_OR_PARTITION
    assert len(client.request(creating_request, 9).topics[0].partitions) == 2


@pytest.mark.parametrize("version", [10, 11])
@pytest.mark.parametrize("known_id", [True, False])
def test_rejects_metadata_request_by_topic_id_before_version_12(
    client: WireClient, cluster: SimulatedCluster, version: int, known_id: bool
) -> None:
    topic_id = cluster.core.topic("t").id if known_id else UUID(int=7)
    named = MetadataRequestTopic(name="t")
    for topics in ([named, MetadataRequestTopic(name=None)], [MetadataRequestTopic(name=None, topic_id=topic_id)]):
        response = client.request(MetadataRequest(topics=topics), version)
        assert {topic.error_code for topic in response.topics} == {error_codes.INVALID_REQUEST}
    assert client.request(MetadataRequest(topics=[named]), version).topics[0].error_code == 0


@pytest.mark.parametrize(("timestamp", "expected"), [(-1, (1, 0)), (-3, (0, 0)), (1000, (0, 0)), (1001, (-1, -1))])
def test_lists_leader_epoch_only_with_an_offset(client: WireClient, timestamp: int, expected: tuple[int, int]) -> None:
    client.request(produce_request(batch(b"a")), 9)
    partition = ListOffsetsPartition(partition_index=0, timestamp=timestamp)
    request = ListOffsetsRequest(topics=[ListOffsetsTopic(name="t", partitions=[partition])])
    (topic,) = client.request(request).topics
    assert (topic.partitions[0].offset, topic.partitions[0].leader_epoch) == expected


@pytest.mark.parametrize(
    ("name", "settings", "code"),
    [
        ("t", {}, error_codes.TOPIC_ALREADY_EXISTS),
        ("not a name", {}, error_codes.INVALID_TOPIC_EXCEPTION),
        ("new", {"max.message.bytes": "many"}, error_codes.INVALID_CONFIG),
        ("new", {"no.such.setting": "1"}, error_codes.INVALID_CONFIG),
        ("new", {"max.message.bytes": "100", "message.timestamp.type": "LogAppendTime"}, 0),
    ],
)
def test_creates_topic_with_settings_or_rejects_it_with_message(
    client: WireClient, cluster: SimulatedCluster, name: str, settings: dict[str, str], code: int
) -> None:
    configs = [CreatableTopicConfig(name=key, value=value) for key, value in settings.items()]
    topic = CreatableTopic(name=name, num_partitions=1, replication_factor=1, configs=configs)
    (response,) = client.request(CreateTopicsRequest(topics=[topic]), 7).topics
    assert (response.error_code, bool(response.error_message)) == (code, bool(code))
    if not code:
        assert (
            partition_response(client.request(produce_request(batch(b"a" * 40), name), 9)).error_code
            == error_codes.MESSAGE_TOO_LARGE
        )
        stamped = partition_response(client.request(produce_request(batch(b"a"), name), 9))
        assert stamped.log_append_time_ms > 0


def test_rejects_topic_whose_name_collides_with_another(client: WireClient, cluster: SimulatedCluster) -> None:
    cluster.control.create_topic("a.b")
    names = ["a_b", "c.d_e", "c_d.e", "a-b"]
    topics = [CreatableTopic(name=name, num_partitions=1, replication_factor=1) for name in names]
    results = client.request(CreateTopicsRequest(topics=topics), 7).topics
    assert {result.name: (result.error_code, result.error_message) for result in results} == {
        "a_b": (error_codes.INVALID_TOPIC_EXCEPTION, "Topic 'a_b' collides with existing topic: a.b"),
        "c.d_e": (0, None),
        "c_d.e": (error_codes.INVALID_TOPIC_EXCEPTION, "Topic 'c_d.e' collides with existing topic: c.d_e"),
        "a-b": (0, None),
    }
    assert set(cluster.core.topics) == {"t", "a.b", "c.d_e", "a-b"}


def test_does_not_auto_create_topic_whose_name_collides_with_another(
    system: FakeSystem, caplog: pytest.LogCaptureFixture
) -> None:
    SimulatedCluster(system, topics={"a.b": 1}, auto_create_topics=True)
    requested_topics = [MetadataRequestTopic(name=name) for name in ("a_b", "c.d", "c_d")]
    request = MetadataRequest(topics=requested_topics, allow_auto_topic_creation=True)
    response = WireClient(system).request(request, 9)
    assert {topic.name: topic.error_code for topic in response.topics} == {
        "a_b": error_codes.UNKNOWN_TOPIC_OR_PARTITION,
        "c.d": 0,
        "c_d": error_codes.UNKNOWN_TOPIC_OR_PARTITION,
    }
    assert "Did not create 2 topics: their names differ" in caplog.text


def test_accepts_and_describes_every_topic_setting_with_source_and_type(client: WireClient) -> None:
    examples = {
        SettingType.BOOLEAN: "true",
        SettingType.STRING: "",
        SettingType.INT: "7",
        SettingType.LONG: "7",
        SettingType.DOUBLE: "0.25",
        SettingType.LIST: "",
    }
    created = {
        name: setting.allowed_values[0] if setting.allowed_values else examples[setting.type]
        for name, setting in TOPIC_SETTINGS.items()
        if name != "max.message.bytes"
    }
    assert create_topic(client, created) == 0
    resource = DescribeConfigsResource(resource_type=TOPIC_RESOURCE, resource_name="new", configuration_keys=None)
    (described,) = client.request(DescribeConfigsRequest(resources=[resource])).results
    configs = {config.name: (config.value, config.config_source, config.config_type) for config in described.configs}
    assert configs.pop("max.message.bytes")[1:] == (5, 3)
    assert configs == {name: (value, 1, TOPIC_SETTINGS[name].type) for name, value in created.items()}


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("retention.ms", "-2"),
        ("retention.ms", "a week"),
        ("segment.bytes", "2147483648"),
        ("retention.bytes", "9223372036854775808"),
        ("min.cleanable.dirty.ratio", "nan"),
        ("preallocate", "1"),
        ("compression.type", "brotli"),
        ("cleanup.policy", "delete,shrink"),
        ("min.insync.replicas", "0"),
        ("message.timestamp.type", "createtime"),
    ],
)
def test_rejects_topic_setting_with_a_value_of_another_type(client: WireClient, name: str, value: str) -> None:
    assert create_topic(client, {name: value}) == error_codes.INVALID_CONFIG


def create_topic(client: WireClient, settings: dict[str, str]) -> int:
    configs = [CreatableTopicConfig(name=name, value=value) for name, value in settings.items()]
    topic = CreatableTopic(name="new", num_partitions=1, replication_factor=1, configs=configs)
    (result,) = client.request(CreateTopicsRequest(topics=[topic])).topics
    code: int = result.error_code
    return code


def test_version_1_rejects_batch_until_its_partition_is_added(client: WireClient, cluster: SimulatedCluster) -> None:
    identity = init_producer(client)
    data = batch(b"a", sequence=0, producer=identity, transactional=True)
    rejections = {
        version: partition_response(client.request(produce_request(data, transactional_id="x"), version))
        for version in (10, 11)
    }
    assert rejections[10].error_code == error_codes.INVALID_TXN_STATE
    assert rejections[11].error_code == error_codes.TRANSACTION_ABORTABLE
    add = AddPartitionsToTxnRequest(
        v3_and_below_transactional_id="x",
        v3_and_below_producer_id=identity[0],
        v3_and_below_producer_epoch=identity[1],
        v3_and_below_topics=[AddPartitionsToTxnTopic(name="t", partitions=[0])],
    )
    added = client.request(add, 3).results_by_topic_v3_and_below[0].results_by_partition[0]
    assert added.partition_error_code == 0
    assert partition_response(client.request(produce_request(data, transactional_id="x"), 11)).error_code == 0
    assert cluster.values("t", committed=True) == []
    assert client.request(end_request(identity, commit=True), 4).error_code == 0
    assert cluster.values("t", committed=True) == [b"a"]


def test_version_2_batch_adds_its_partition_and_end_increments_epoch(
    client: WireClient, cluster: SimulatedCluster
) -> None:
    identity = init_producer(client)
    data = batch(b"a", sequence=0, producer=identity, transactional=True)
    assert partition_response(client.request(produce_request(data, transactional_id="x"), 12)).error_code == 0
    ended = client.request(end_request(identity, commit=False), 5)
    assert (ended.error_code, ended.producer_epoch) == (0, identity[1] + 1)
    late_batch = batch(b"late", sequence=1, producer=identity, transactional=True)
    assert (
        partition_response(client.request(produce_request(late_batch, transactional_id="x"), 12)).error_code
        == error_codes.INVALID_PRODUCER_EPOCH
    )
    assert cluster.values("t", committed=True) == []
    assert cluster.values("t") == [b"a"]


def test_aborts_transaction_after_its_timeout(
    client: WireClient, cluster: SimulatedCluster, system: FakeSystem
) -> None:
    identity = init_producer(client)
    data = batch(b"a", sequence=0, producer=identity, transactional=True)
    client.request(produce_request(data, transactional_id="x"), 12)
    system.advance(999)
    assert cluster.log("t").last_stable_offset == 0
    system.advance(2)
    assert cluster.log("t").last_stable_offset == cluster.log("t").log_end_offset
    assert client.request(end_request(identity, commit=True), 5).error_code == error_codes.INVALID_TXN_STATE


def test_lists_and_describes_transactions(client: WireClient, cluster: SimulatedCluster) -> None:
    identity = init_producer(client)
    data = batch(b"a", sequence=0, producer=identity, transactional=True)
    client.request(produce_request(data, transactional_id="x"), 12)
    described = client.request(DescribeTransactionsRequest(transactional_ids=["x", "y"]), 0).transaction_states
    assert [(state.transaction_state, state.error_code) for state in described] == [
        ("Ongoing", 0),
        ("", error_codes.TRANSACTIONAL_ID_NOT_FOUND),
    ]
    assert [(topic.topic, topic.partitions) for topic in described[0].topics] == [("t", [0])]
    for pattern, expected in (("x.*", ["x"]), ("z.*", [])):
        list_response = client.request(ListTransactionsRequest(transactional_id_pattern=pattern), 2)
        assert [state.transactional_id for state in list_response.transaction_states] == expected
    response = client.request(ListTransactionsRequest(transactional_id_pattern="("), 2)
    assert response.error_code == error_codes.INVALID_REGULAR_EXPRESSION


def test_transactional_offsets_are_committed_with_transaction(client: WireClient, cluster: SimulatedCluster) -> None:
    identity = init_producer(client)
    commit = txn_offset_commit(identity, ("t", 0))
    assert client.request(commit, 5).topics[0].partitions[0].error_code == 0
    assert fetch_committed(client) == (-1, error_codes.UNSTABLE_OFFSET_COMMIT)
    client.request(end_request(identity, commit=True), 5)
    assert fetch_committed(client) == (7, 0)


@pytest.mark.parametrize("version", [3, 5])
def test_rejects_transactional_offset_of_missing_partition(
    client: WireClient, cluster: SimulatedCluster, version: int
) -> None:
    identity = init_producer(client)
    if version < 5:
        add = AddOffsetsToTxnRequest(
            transactional_id="x", producer_id=identity[0], producer_epoch=identity[1], group_id="g"
        )
        assert client.request(add, 3).error_code == 0
    commit = txn_offset_commit(identity, ("missing", 0), ("t", 2), ("t", -1), ("t", 0))
    missing = error_codes.UNKNOWN_TOPIC_OR_PARTITION
    response = client.request(commit, version)
    assert [topic.partitions[0].error_code for topic in response.topics] == [missing, missing, missing, 0]
    client.request(end_request(identity, commit=True), 4)
    assert cluster.core.offsets.list_partitions("g") == [("t", 0)]


def test_rejects_only_the_transactional_offset_whose_metadata_is_too_large(
    client: WireClient, cluster: SimulatedCluster
) -> None:
    identity = init_producer(client)
    commit = txn_offset_commit(identity, ("t", 0), ("t", 1))
    commit.topics[0].partitions[0].committed_metadata = "x" * 4097
    response = client.request(commit, 5)
    codes = [topic.partitions[0].error_code for topic in response.topics]
    assert codes == [error_codes.OFFSET_METADATA_TOO_LARGE, 0]
    client.request(end_request(identity, commit=True), 4)
    assert cluster.core.offsets.list_partitions("g") == [("t", 1)]


def test_transactional_offsets_of_missing_partitions_do_not_begin_transaction(client: WireClient) -> None:
    identity = init_producer(client)
    client.request(txn_offset_commit(identity, ("missing", 0)), 5)
    (state,) = client.request(DescribeTransactionsRequest(transactional_ids=["x"]), 0).transaction_states
    assert state.transaction_state == "Empty"


def test_control_docstring_lists_every_method() -> None:
    from spark_kafka_sink.broker import control

    operations = [
        name
        for name in vars(Control)
        if not name.startswith("_") and name not in ("add", "collect_effects", "has_rules")
    ]
    faults = [name for name in vars(control.FaultBuilder) if not name.startswith("_")]
    assert control.__doc__ is not None
    assert [name for name in operations + faults if name not in control.__doc__] == []


def fetch(offset: int = 0, max_wait_ms: int = 0) -> FetchRequest:
    partition = FetchPartition(partition=0, fetch_offset=offset, partition_max_bytes=1000)
    return FetchRequest(max_wait_ms=max_wait_ms, min_bytes=1, topics=[FetchTopic(topic="t", partitions=[partition])])


def init_producer(client: WireClient) -> tuple[int, int]:
    response = client.request(InitProducerIdRequest(transactional_id="x", transaction_timeout_ms=1000), 5)
    return response.producer_id, response.producer_epoch


def txn_offset_commit(identity: tuple[int, int], *topic_partitions: tuple[str, int]) -> TxnOffsetCommitRequest:
    topics = [
        TxnOffsetCommitRequestTopic(
            name=name, partitions=[TxnOffsetCommitRequestPartition(partition_index=index, committed_offset=7)]
        )
        for name, index in topic_partitions
    ]
    return TxnOffsetCommitRequest(
        transactional_id="x", group_id="g", producer_id=identity[0], producer_epoch=identity[1], topics=topics
    )


def end_request(identity: tuple[int, int], *, commit: bool) -> EndTxnRequest:
    return EndTxnRequest(transactional_id="x", producer_id=identity[0], producer_epoch=identity[1], committed=commit)


def fetch_committed(client: WireClient) -> tuple[int, int]:
    topics = [OffsetFetchRequestTopics(name="t", partition_indexes=[0])]
    request = OffsetFetchRequest(groups=[OffsetFetchRequestGroup(group_id="g", topics=topics)], require_stable=True)
    (partition,) = client.request(request, 9).groups[0].topics[0].partitions
    return partition.committed_offset, partition.error_code
