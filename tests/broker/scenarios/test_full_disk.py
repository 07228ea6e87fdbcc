"""A broker with a full disk: it rejects requests, loses no acknowledged record, and recovers."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from spark_kafka_sink.broker.api_error import ApiError
from spark_kafka_sink.broker.offsets import CommittedOffset
from spark_kafka_sink.errors import ConfigurationError
from spark_kafka_sink.protocol import error_codes
from spark_kafka_sink.protocol.messages.add_partitions_to_txn import AddPartitionsToTxnRequest, AddPartitionsToTxnTopic
from spark_kafka_sink.protocol.messages.create_topics import CreatableTopic, CreateTopicsRequest
from spark_kafka_sink.protocol.messages.end_txn import EndTxnRequest
from spark_kafka_sink.protocol.messages.init_producer_id import InitProducerIdRequest
from spark_kafka_sink.protocol.messages.metadata import MetadataRequest, MetadataRequestTopic
from tests.broker.full_disk import limit_file_size
from tests.broker.in_process_broker import InProcessBroker
from tests.broker.wire_client import batch, partition_response, produce_request

FULL = error_codes.KAFKA_STORAGE_ERROR


def test_truncates_file_after_partial_append(tmp_path: Path) -> None:
    broker, file = InProcessBroker(tmp_path), tmp_path / "t-0.log"
    assert broker.write(b"a") == (0, 0)
    content = file.read_bytes()
    with limit_file_size(len(content) + 30):
        assert broker.write(b"b") == (FULL, -1)
    assert file.read_bytes() == content


def test_restart_restores_batches_acknowledged_after_failed_append(tmp_path: Path) -> None:
    broker = InProcessBroker(tmp_path)
    with limit_file_size(30):
        assert broker.write(b"rejected") == (FULL, -1)
    assert [broker.write(b"a"), broker.write(b"b")] == [(0, 0), (0, 1)]
    assert broker.values() == InProcessBroker(tmp_path).values() == [b"a", b"b"]


def test_next_append_truncates_when_truncation_failed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: object) -> None:
        raise OSError("truncation failed")

    broker = InProcessBroker(tmp_path)
    assert broker.write(b"a") == (0, 0)
    size = (tmp_path / "t-0.log").stat().st_size
    with monkeypatch.context() as patch:
        patch.setattr(os, "ftruncate", fail)
        with limit_file_size(size + 30):
            assert broker.write(b"rejected") == (FULL, -1)
        assert (tmp_path / "t-0.log").stat().st_size == size + 30
        assert broker.write(b"also rejected") == (FULL, -1)
    assert broker.write(b"b") == (0, 1)
    assert InProcessBroker(tmp_path).values() == [b"a", b"b"]


def test_accepts_same_sequence_after_full_disk(tmp_path: Path) -> None:
    broker = InProcessBroker(tmp_path)
    data = batch(b"a", sequence=0, producer=(7, 0))
    with limit_file_size(30):
        assert partition_response(broker.request(produce_request(data), 9)).error_code == FULL
    assert partition_response(broker.request(produce_request(data), 9)).error_code == 0
    assert broker.values() == [b"a"]


def begin_transaction(broker: InProcessBroker) -> tuple[int, int]:
    """Begin a transaction with a record in each partition of t. Return the producer id and epoch."""
    response = broker.request(InitProducerIdRequest(transactional_id="x", transaction_timeout_ms=1000), 4)
    identity: tuple[int, int] = response.producer_id, response.producer_epoch
    add_request = AddPartitionsToTxnRequest(
        v3_and_below_transactional_id="x",
        v3_and_below_producer_id=identity[0],
        v3_and_below_producer_epoch=identity[1],
        v3_and_below_topics=[AddPartitionsToTxnTopic(name="t", partitions=[0, 1])],
    )
    broker.request(add_request, 3)
    for partition in range(2):
        data = batch(b"a", sequence=0, producer=identity, transactional=True)
        request = produce_request(data, partition=partition, transactional_id="x")
        assert partition_response(broker.request(request, 9)).error_code == 0
    return identity


@pytest.mark.parametrize("version", [4, 5])
def test_commit_can_be_repeated_after_full_disk(tmp_path: Path, version: int) -> None:
    broker = InProcessBroker(tmp_path)
    identity = begin_transaction(broker)
    end_request = EndTxnRequest(
        transactional_id="x", producer_id=identity[0], producer_epoch=identity[1], committed=True
    )
    with limit_file_size((tmp_path / "t-0.log").stat().st_size + 10):
        assert broker.request(end_request, version).error_code == FULL
    assert broker.values(committed=True) == broker.values(1, committed=True) == []
    assert broker.request(end_request, version).error_code == 0
    restarted = InProcessBroker(tmp_path)
    for instance in (broker, restarted):
        assert instance.values(committed=True) == instance.values(1, committed=True) == [b"a"]


def test_aborts_timed_out_transaction_once_disk_has_space(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    broker = InProcessBroker(tmp_path)
    begin_transaction(broker)
    log = broker.cluster.log("t", 0)
    with limit_file_size((tmp_path / "t-0.log").stat().st_size + 10):
        broker.cluster.abort_due_transactions(2000)
        assert broker.request(MetadataRequest(topics=None), 9, now_ms=2000) is not None
        assert log.last_stable_offset == 0
    assert "Could not store" in caplog.text
    broker.cluster.abort_due_transactions(3000)
    assert log.last_stable_offset == log.log_end_offset == 2


def test_topic_creation_can_be_repeated_after_full_disk(tmp_path: Path) -> None:
    broker = InProcessBroker(tmp_path, auto_create_topics=True)
    create_request = CreateTopicsRequest(
        topics=[CreatableTopic(name=n, num_partitions=1, replication_factor=-1) for n in ("u", "v")]
    )
    metadata_request = MetadataRequest(topics=[MetadataRequestTopic(name="w")])
    with limit_file_size(10):
        assert [topic.error_code for topic in broker.request(create_request, 5).topics] == [FULL, FULL]
        assert [topic.error_code for topic in broker.request(metadata_request, 9).topics] == [FULL]
        assert sorted(broker.cluster.topics) == ["t"]
    assert [topic.error_code for topic in broker.request(create_request, 5).topics] == [0, 0]
    assert [topic.error_code for topic in broker.request(metadata_request, 9).topics] == [0]
    assert sorted(InProcessBroker(tmp_path).cluster.topics) == ["t", "u", "v", "w"]


def test_topic_that_cannot_be_deleted_keeps_its_group_offsets(tmp_path: Path) -> None:
    cluster = InProcessBroker(tmp_path).cluster
    with cluster.lock:
        cluster.offsets.commit("g", {("t", 0): CommittedOffset(5)})
        with limit_file_size(10), pytest.raises(ApiError, match="Could not store"):
            cluster.delete_topic("t")
        cluster.save()
        assert cluster.offsets.list_partitions("g") == [("t", 0)]
    assert InProcessBroker(tmp_path).cluster.offsets.list_partitions("g") == [("t", 0)]


def test_assigns_no_producer_id_that_cannot_be_saved(tmp_path: Path) -> None:
    broker = InProcessBroker(tmp_path)
    with limit_file_size(10):
        assert broker.request(InitProducerIdRequest(transactional_id=None), 4).error_code == FULL
    assert broker.request(InitProducerIdRequest(transactional_id=None), 4).error_code == 0


def test_logs_truncation_of_incomplete_batch_at_start(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    InProcessBroker(tmp_path).write(b"a")
    with (tmp_path / "t-0.log").open("ab") as file:
        file.write(b"half")
    assert InProcessBroker(tmp_path).values() == [b"a"]
    assert "its last 4 bytes were not a complete batch" in caplog.text


@pytest.mark.parametrize("content", ["", "{", "[]", "{}", '{"topics": [{"name": "../../x"}]}'])
def test_rejects_cluster_file_of_another_program(tmp_path: Path, content: str) -> None:
    (tmp_path / "cluster.json").write_text(content)
    with pytest.raises(ConfigurationError, match=r"cluster\.json was not written by an embedded broker"):
        InProcessBroker(tmp_path)
