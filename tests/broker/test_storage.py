"""ClusterFiles: the state that a broker restores from its directory."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from spark_kafka_sink.broker.api_error import ApiError
from spark_kafka_sink.broker.cluster import ClusterConfig, EmbeddedCluster
from spark_kafka_sink.broker.offsets import CommittedOffset
from spark_kafka_sink.broker.storage import ClusterFiles
from spark_kafka_sink.errors import ConfigurationError
from spark_kafka_sink.protocol import error_codes
from tests.broker.wire_client import batch
from tests.simulated_cluster import stored_records


class OpenedCluster:
    """A cluster that is loaded from a directory by `with`. It keeps no files open."""

    def __init__(self, directory: Path, topics: dict[str, int] | None = None) -> None:
        self._files = ClusterFiles(directory)
        self._topics = topics

    def __enter__(self) -> EmbeddedCluster:
        return EmbeddedCluster(ClusterConfig(), topics=self._topics, store=self._files)

    def __exit__(self, *_: object) -> None:
        """Nothing to close."""


def test_restart_restores_topics_records_and_settings(tmp_path: Path) -> None:
    with OpenedCluster(tmp_path, {"t": 2}) as cluster:
        cluster.create_topic("small", 1, {"max.message.bytes": "100"})
        cluster.log("t", 1).append(batch(b"a", b"b"), wall_ms=1)
        cluster.log("t", 1).append(batch(b"c"), wall_ms=1)
        topic_id = cluster.topic("t").id
    for _ in range(2):
        with OpenedCluster(tmp_path, {"t": 2}) as cluster:
            assert cluster.topic("t").id == topic_id
            assert cluster.log("small", 0).config.max_message_bytes == 100
            assert stored_records(cluster.log("t", 1)).column("value").to_pylist() == [b"a", b"b", b"c"]
            assert (cluster.log("t", 0).log_end_offset, cluster.log("t", 1).log_end_offset) == (0, 3)


def test_topic_created_after_restart_has_unique_id(tmp_path: Path) -> None:
    with OpenedCluster(tmp_path, {"t": 1, "deleted": 1}) as cluster:
        cluster_id, ids = cluster.cluster_id, [topic.id for topic in cluster.topics.values()]
        cluster.delete_topic("deleted")
    with OpenedCluster(tmp_path) as cluster:
        assert cluster.cluster_id == cluster_id
        new = [cluster.create_topic(name) for name in ("u", "v")]
        assert len({*ids, *(topic.id for topic in new)}) == 4
        assert [cluster.find_topic_by_id(topic.id) for topic in new] == new


def test_restart_restores_sequence_numbers(tmp_path: Path) -> None:
    data = batch(b"a", sequence=0, producer=(7, 0))
    with OpenedCluster(tmp_path, {"t": 1}) as cluster:
        cluster.log("t", 0).append(data, wall_ms=1)
    with OpenedCluster(tmp_path) as cluster:
        assert cluster.log("t", 0).append(data, wall_ms=1).is_duplicate
        assert cluster.log("t", 0).append(batch(b"b", sequence=1, producer=(7, 0)), wall_ms=1).base_offset == 1
        assert cluster.coordinator.allocate_producer_id() == 0


def test_restart_truncates_incomplete_batch(tmp_path: Path) -> None:
    with OpenedCluster(tmp_path, {"t": 1}) as cluster:
        cluster.log("t", 0).append(batch(b"a"), wall_ms=1)
        cluster.log("t", 0).append(batch(b"b"), wall_ms=1)
    path = tmp_path / "t-0.log"
    path.write_bytes(path.read_bytes()[:-3])
    with OpenedCluster(tmp_path) as cluster:
        assert cluster.log("t", 0).append(batch(b"c"), wall_ms=1).base_offset == 1
    with OpenedCluster(tmp_path) as cluster:
        assert stored_records(cluster.log("t", 0)).column("value").to_pylist() == [b"a", b"c"]


def test_restart_aborts_open_transaction_and_keeps_producer_id(tmp_path: Path) -> None:
    with OpenedCluster(tmp_path, {"t": 1}) as cluster, cluster.lock:
        identity = cluster.coordinator.init_producer_id("x", 1000, None)
        cluster.coordinator.add_partitions("x", identity, [("t", 0)], 0, 0, transaction_version=2)
        cluster.save_transactions()
        producer = identity.producer_id, identity.epoch
        cluster.log("t", 0).append(batch(b"a", sequence=0, producer=producer, transactional=True), wall_ms=1)
    with OpenedCluster(tmp_path) as cluster, cluster.lock:
        assert cluster.log("t", 0).last_stable_offset == cluster.log("t", 0).log_end_offset == 2
        assert stored_records(cluster.log("t", 0), committed=True).num_rows == 0
        new_identity = cluster.coordinator.init_producer_id("x", 1000, None)
        assert new_identity.producer_id == identity.producer_id
        assert new_identity.epoch > identity.epoch


def test_rejects_open_transaction_that_is_not_in_cluster_file(tmp_path: Path) -> None:
    with OpenedCluster(tmp_path, {"t": 1}) as cluster:
        cluster.log("t", 0).append(batch(b"a", sequence=0, producer=(7, 0), transactional=True), wall_ms=1)
    with pytest.raises(ConfigurationError, match=r"t-0\.log has an open transaction of producer id 7, which is not in"):
        OpenedCluster(tmp_path).__enter__()


@pytest.mark.parametrize("version", [1, 2])
def test_restart_fences_producer_of_open_transaction(tmp_path: Path, version: int) -> None:
    with OpenedCluster(tmp_path, {"t": 1, "u": 1}) as cluster, cluster.lock:
        identity = cluster.coordinator.init_producer_id("x", 1000, None)
        cluster.coordinator.add_partitions("x", identity, [("t", 0)], 0, 0, transaction_version=version)
        cluster.save_transactions()
        producer = identity.producer_id, identity.epoch
        cluster.log("t", 0).append(batch(b"before", sequence=0, producer=producer, transactional=True), wall_ms=1)
    with OpenedCluster(tmp_path) as cluster, cluster.lock:
        coordinator = cluster.coordinator
        added = coordinator.add_partitions("x", identity, [("u", 0)], 0, 0, transaction_version=version)
        assert added == error_codes.PRODUCER_FENCED
        assert (
            coordinator.end_transaction("x", identity, commit=True, transaction_version=version).error_code
            == error_codes.INVALID_TXN_STATE
        )
        with pytest.raises(ApiError, match="epoch"):
            cluster.log("t", 0).append(batch(b"after", sequence=1, producer=producer, transactional=True), wall_ms=1)


def test_restart_restores_committed_offsets(tmp_path: Path) -> None:
    with OpenedCluster(tmp_path, {"t": 1}) as cluster, cluster.lock:
        cluster.offsets.commit("g", {("t", 0): CommittedOffset(5, 1, "note")})
        cluster.save()
    with OpenedCluster(tmp_path) as cluster:
        assert cluster.offsets.get("g", ("t", 0)) == CommittedOffset(5, 1, "note")


def test_deleting_topic_deletes_its_files(tmp_path: Path) -> None:
    with OpenedCluster(tmp_path, {"t": 1, "kept": 1}) as cluster:
        for name in ("t", "kept"):
            cluster.log(name, 0).append(batch(b"a"), wall_ms=1)
        cluster.delete_topic("t")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["cluster.json", "kept-0.log"]
    assert [topic["name"] for topic in json.loads((tmp_path / "cluster.json").read_text())["topics"]] == ["kept"]


def test_deleting_topic_deletes_its_group_offsets(tmp_path: Path) -> None:
    with OpenedCluster(tmp_path, {"t": 1, "kept": 1}) as cluster:
        for name in ("t", "kept"):
            cluster.offsets.commit("g", {(name, 0): CommittedOffset(5)})
        cluster.delete_topic("t")
        assert cluster.offsets.list_partitions("g") == [("kept", 0)]
    with OpenedCluster(tmp_path, {"t": 1}) as cluster:
        assert cluster.offsets.list_partitions("g") == [("kept", 0)]


def test_rejects_batch_for_topic_deleted_concurrently(tmp_path: Path) -> None:
    with OpenedCluster(tmp_path, {"t": 1}) as cluster:
        log = cluster.log("t", 0)  # a handler may have found the log before the topic was deleted
        cluster.delete_topic("t")
        with pytest.raises(ApiError) as raised:
            log.append(batch(b"a"), wall_ms=1)
        assert raised.value.code == error_codes.UNKNOWN_TOPIC_OR_PARTITION
        cluster.create_topic("t")
