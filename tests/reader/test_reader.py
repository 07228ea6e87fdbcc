from __future__ import annotations

import pytest

from spark_kafka_sink.client.config import ClientConfig
from spark_kafka_sink.errors import (
    AuthorizationError,
    BrokerError,
    ConfigurationError,
    InvalidRecordError,
    KafkaSinkError,
    MetadataTimeoutError,
    NetworkError,
    UnsupportedVersionError,
)
from spark_kafka_sink.protocol import error_codes
from spark_kafka_sink.protocol.message import ApiKey
from spark_kafka_sink.protocol.schema import VersionRange
from spark_kafka_sink.reader.fetch import MAX_FETCH_BYTES
from spark_kafka_sink.reader.reader import TopicReader, read_topic_table
from tests.client.metadata_responses import metadata_response, topic
from tests.fake_system import FakeSystem
from tests.reader.scripted_cluster import Cluster, Log, rows
from tests.reader.stored_batches import batch, marker


def test_reads_whole_topic_by_partition_and_offset() -> None:
    cluster = Cluster(Log([batch(0, b"a", b"b"), batch(2, b"c")]), Log([batch(0, b"d")], leader=1), Log())
    with cluster.reader() as reader:
        assert reader.partitions("t") == [0, 1, 2]
        assert rows(reader.read("t")) == [(0, 0, b"a"), (0, 1, b"b"), (0, 2, b"c"), (1, 0, b"d")]
    assert not cluster.system.open_sockets


def test_stops_at_given_end_offsets() -> None:
    log = Log([batch(0, b"a")])
    cluster = Cluster(log)
    with cluster.reader() as reader:
        ends = reader.end_offsets("t")
        log.batches.append(batch(1, b"b"))
        assert rows(reader.read("t", stop=ends)) == [(0, 0, b"a")]
        assert rows(reader.read("t", start=ends)) == [(0, 1, b"b")]


def test_empty_topic_gives_empty_table() -> None:
    with Cluster(Log(start=7)).reader() as reader:
        table = reader.read("t")
        assert table.num_rows == 0
        assert "timestampType" in table.column_names
        assert reader.beginning_offsets("t") == reader.end_offsets("t") == {0: 7}


def test_reads_selected_partitions() -> None:
    cluster = Cluster(Log([batch(0, b"a")]), Log([batch(0, b"b")]))
    with cluster.reader() as reader:
        assert rows(reader.read("t", partitions=[1])) == [(1, 0, b"b")]
        with pytest.raises(InvalidRecordError, match=r"topic t has no partition 5: it has 2, numbered from 0"):
            reader.read("t", partitions=[1, 5])


def test_isolation_level_hides_aborted_and_open_transactions() -> None:
    log = Log(
        [
            batch(0, b"gone", producer_id=1, transactional=True),
            marker(1, 1, commit=False),
            batch(2, b"kept", producer_id=1, transactional=True),
            marker(3, 1, commit=True),
            batch(4, b"open", producer_id=1, transactional=True),
        ],
        aborted=[(1, 0, 1)],
        stable=4,
    )
    cluster = Cluster(log)
    with cluster.reader() as reader:
        assert rows(reader.read("t")) == [(0, 2, b"kept")]
    assert cluster.isolations == {1}
    with cluster.reader(isolation="read_uncommitted") as reader:
        assert [value for _, _, value in rows(reader.read("t"))] == [b"gone", b"kept", b"open"]
    with pytest.raises(ConfigurationError, match="read_commited"):
        cluster.reader(isolation="read_commited")


def test_follows_leader_that_moves_during_read() -> None:
    log = Log([batch(offset, b"v%d" % offset) for offset in range(6)])
    cluster = Cluster(log)
    read = []
    with cluster.reader() as reader:
        for table in reader.batches("t"):
            read += rows(table)
            if len(read) == 3:
                log.leader = 1
    assert read == [(0, offset, b"v%d" % offset) for offset in range(6)]
    assert cluster.brokers[1].find_requests(ApiKey.FETCH)


def test_continues_at_new_leader_when_broker_dies() -> None:
    log = Log([batch(offset, b"v%d" % offset) for offset in range(6)])
    cluster = Cluster(log)
    read = []
    with cluster.reader() as reader:
        for table in reader.batches("t"):
            read += rows(table)
            if len(read) == 2:
                log.leader = 1
                cluster.system.refuse("b0", 9092)
                cluster.system.listen("b0", 9092, cluster.brokers[1])
                for connection in cluster.system.connections:
                    connection.reset()
    assert [offset for _, offset, _ in read] == list(range(6))


def test_waits_for_partition_without_leader() -> None:
    log = Log([batch(0, b"a"), batch(1, b"b")])
    cluster = Cluster(log)
    with cluster.reader() as reader:
        tables = reader.batches("t", start={0: 0}, follow=True)
        assert rows(next(tables)) == [(0, 0, b"a")]
        log.leader = -1
        log.errors = [error_codes.NOT_LEADER_OR_FOLLOWER]
        cluster.system.after(3_000, lambda: setattr(log, "leader", 1))
        assert rows(next(tables)) == [(0, 1, b"b")]
    assert cluster.brokers[1].find_requests(ApiKey.FETCH)


def test_fetches_from_leaders_concurrently_and_shares_byte_limit() -> None:
    cluster = Cluster(Log([batch(0, b"a")]), Log([batch(0, b"b")], leader=1))
    with cluster.reader() as reader:
        assert rows(reader.read("t")) == [(0, 0, b"a"), (1, 0, b"b")]
    fetches = [broker.find_requests(ApiKey.FETCH) for broker in cluster.brokers]
    assert [len(requests) for requests in fetches] == [1, 1]
    assert [requests[0].message.max_bytes for requests in fetches] == [MAX_FETCH_BYTES // 2] * 2  # type: ignore[attr-defined]


def test_reads_other_partitions_while_one_broker_is_down() -> None:
    logs = [Log([batch(offset, b"a") for offset in range(3)], leader=leader) for leader in (0, 1)]
    cluster = Cluster(*logs)
    read: list[tuple[int, int, bytes]] = []

    def read_all(reader: TopicReader) -> None:
        for table in reader.batches("t"):
            read.extend(rows(table))
            if len(read) == 2:
                cluster.system.refuse("b1", 9092)
                for connection in cluster.system.connections:
                    connection.reset()

    with cluster.reader(timeout_ms=5_000) as reader, pytest.raises(KafkaSinkError, match="b1:9092"):
        read_all(reader)
    assert [row[:2] for row in read] == [(0, 0), (1, 0), (0, 1), (0, 2)]


@pytest.mark.parametrize("api", ["offsets", "fetch"])
def test_retries_temporary_errors(api: str) -> None:
    log = Log([batch(0, b"a")])
    temporary_errors = [
        error_codes.NOT_LEADER_OR_FOLLOWER,
        error_codes.LEADER_NOT_AVAILABLE,
        error_codes.KAFKA_STORAGE_ERROR,
    ]
    with Cluster(log).reader() as reader:
        starts, ends = {0: 0}, {0: 1}
        log.errors = list(temporary_errors) if api == "offsets" else [0, 0, *temporary_errors]
        assert rows(reader.read("t", start=starts, stop=ends)) == [(0, 0, b"a")]
    assert log.errors == []


def test_raises_permanent_errors_with_topic_and_partition() -> None:
    log = Log([batch(0, b"a")])
    with Cluster(log).reader() as reader:
        log.errors = [error_codes.TOPIC_AUTHORIZATION_FAILED]
        with pytest.raises(AuthorizationError, match="topic t, partition 0"):
            reader.read("t")
        log.errors = [0, 0, error_codes.OFFSET_OUT_OF_RANGE]
        with pytest.raises(BrokerError, match=r"topic t, partition 0: .*OFFSET_OUT_OF_RANGE"):
            reader.read("t")


def test_persistent_error_ends_at_timeout_with_last_error() -> None:
    log = Log([batch(0, b"a")], errors=[error_codes.KAFKA_STORAGE_ERROR] * 10_000)
    with Cluster(log).reader(timeout_ms=5_000) as reader, pytest.raises(MetadataTimeoutError) as failure:
        reader.read("t")
    assert "timed out after 5000 ms" in str(failure.value)
    assert "KAFKA_STORAGE_ERROR" in str(failure.value)


def test_missing_topic_fails_within_seconds() -> None:
    cluster = Cluster(Log())
    cluster.brokers[0].metadata = metadata_response(
        topic("t", 0, error=error_codes.UNKNOWN_TOPIC_OR_PARTITION), nodes=1
    )
    cluster.brokers[0].on_request = lambda received: False
    started = cluster.system.now()
    with cluster.reader() as reader, pytest.raises(BrokerError, match="topic t: UNKNOWN_TOPIC_OR_PARTITION"):
        reader.read("t")
    assert 5_000 <= cluster.system.now() - started <= 7_000
    request = cluster.brokers[0].last_request(ApiKey.METADATA).message
    assert request.allow_auto_topic_creation is False  # type: ignore[attr-defined]


def test_error_names_all_unreachable_addresses() -> None:
    system = FakeSystem()
    reader = TopicReader(ClientConfig(("b0:9092", "b1:9093")), system=system, timeout_ms=3_000)
    with reader, pytest.raises((MetadataTimeoutError, NetworkError)) as failure:
        reader.read("t")
    for message in ("b0:9092: Connection refused", "b1:9093: Connection refused"):
        assert message in str(failure.value)


def test_reads_by_topic_name_from_old_broker() -> None:
    cluster = Cluster(Log([batch(0, b"a")]))
    for broker in cluster.brokers:
        broker.versions[ApiKey.FETCH] = VersionRange(0, 4)
        broker.versions[ApiKey.LIST_OFFSETS] = VersionRange(0, 2)
    with cluster.reader() as reader:
        assert rows(reader.read("t")) == [(0, 0, b"a")]
    assert cluster.brokers[0].last_request(ApiKey.FETCH).header.api_version == 4


def test_broker_without_common_version_fails_immediately() -> None:
    cluster = Cluster(Log([batch(0, b"a")]))
    cluster.brokers[0].versions[ApiKey.FETCH] = VersionRange(90, 91)
    with cluster.reader() as reader, pytest.raises(UnsupportedVersionError, match=r"broker 0 .* FETCH"):
        reader.read("t")


def test_read_topic_table_reads_whole_topic() -> None:
    cluster = Cluster(Log([batch(0, b"a")]))
    assert rows(read_topic_table("b0:9092", "t", system=cluster.system)) == [(0, 0, b"a")]
    with pytest.raises(ConfigurationError, match=r"retry\.backof\.ms"):
        read_topic_table("b0:9092", "t", options={"retry.backof.ms": 1}, system=cluster.system)
