"""What a broker with a directory answers when its disk is full, and that nothing is lost that it has acknowledged."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from spark_kafka_sink.errors import ConfigurationError
from spark_kafka_sink.protocol import error_codes
from spark_kafka_sink.protocol.messages.add_partitions_to_txn import AddPartitionsToTxnRequest, AddPartitionsToTxnTopic
from spark_kafka_sink.protocol.messages.create_topics import CreatableTopic, CreateTopicsRequest
from spark_kafka_sink.protocol.messages.end_txn import EndTxnRequest
from spark_kafka_sink.protocol.messages.init_producer_id import InitProducerIdRequest
from spark_kafka_sink.protocol.messages.metadata import MetadataRequest, MetadataRequestTopic
from tests.broker.asked import Broker
from tests.broker.full_disk import files_end_at
from tests.broker.wire import batch, produce, result

FULL = error_codes.KAFKA_STORAGE_ERROR


def test_an_append_that_fails_in_the_middle_is_refused_and_leaves_nothing_in_the_file(tmp_path: Path) -> None:
    broker, file = Broker(tmp_path), tmp_path / "t-0.log"
    assert broker.write(b"a") == (0, 0)
    before = file.read_bytes()
    with files_end_at(len(before) + 30):
        assert broker.write(b"b") == (FULL, -1)
    assert file.read_bytes() == before


def test_what_was_acknowledged_after_a_failed_append_is_there_after_a_restart(tmp_path: Path) -> None:
    broker = Broker(tmp_path)
    with files_end_at(30):
        assert broker.write(b"refused") == (FULL, -1)
    assert [broker.write(b"a"), broker.write(b"b")] == [(0, 0), (0, 1)]
    assert broker.values() == Broker(tmp_path).values() == [b"a", b"b"]


def test_where_a_failed_append_cannot_be_cut_off_the_next_one_does_it_first(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: object) -> None:
        raise OSError("this file cannot be cut")

    broker = Broker(tmp_path)
    assert broker.write(b"a") == (0, 0)
    size = (tmp_path / "t-0.log").stat().st_size
    with monkeypatch.context() as patch:
        patch.setattr(os, "ftruncate", refuse)
        with files_end_at(size + 30):
            assert broker.write(b"refused") == (FULL, -1)
        assert (tmp_path / "t-0.log").stat().st_size == size + 30
        assert broker.write(b"refused, too") == (FULL, -1)
    assert broker.write(b"b") == (0, 1)
    assert Broker(tmp_path).values() == [b"a", b"b"]


def test_a_batch_that_was_refused_for_the_disk_can_be_sent_again_under_its_sequence(tmp_path: Path) -> None:
    broker = Broker(tmp_path)
    data = batch(b"a", sequence=0, producer=(7, 0))
    with files_end_at(30):
        assert result(broker.ask(produce(data), 9)).error_code == FULL
    assert result(broker.ask(produce(data), 9)).error_code == 0
    assert broker.values() == [b"a"]


def began_a_transaction(broker: Broker) -> tuple[int, int]:
    """Begin a transaction with a record in both partitions of t. Returns the producer's id and epoch."""
    given = broker.ask(InitProducerIdRequest(transactional_id="x", transaction_timeout_ms=1000), 4)
    identity: tuple[int, int] = given.producer_id, given.producer_epoch
    adding = AddPartitionsToTxnRequest(
        v3_and_below_transactional_id="x",
        v3_and_below_producer_id=identity[0],
        v3_and_below_producer_epoch=identity[1],
        v3_and_below_topics=[AddPartitionsToTxnTopic(name="t", partitions=[0, 1])],
    )
    broker.ask(adding, 3)
    for partition in range(2):
        data = batch(b"a", sequence=0, producer=identity, transactional=True)
        request = produce(data, partition=partition, transactional_id="x")
        assert result(broker.ask(request, 9)).error_code == 0
    return identity


@pytest.mark.parametrize("version", [4, 5])
def test_a_commit_that_the_disk_refuses_is_not_acknowledged_and_can_be_repeated(tmp_path: Path, version: int) -> None:
    broker = Broker(tmp_path)
    identity = began_a_transaction(broker)
    ending = EndTxnRequest(transactional_id="x", producer_id=identity[0], producer_epoch=identity[1], committed=True)
    with files_end_at((tmp_path / "t-0.log").stat().st_size + 10):
        assert broker.ask(ending, version).error_code == FULL
    assert broker.values(committed=True) == broker.values(1, committed=True) == []
    assert broker.ask(ending, version).error_code == 0
    again = Broker(tmp_path)
    for each in (broker, again):
        assert each.values(committed=True) == each.values(1, committed=True) == [b"a"]


def test_an_overdue_transaction_is_aborted_once_the_disk_has_room(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    broker = Broker(tmp_path)
    began_a_transaction(broker)
    log = broker.cluster.log("t", 0)
    with files_end_at((tmp_path / "t-0.log").stat().st_size + 10):
        broker.cluster.tick(2000)
        assert broker.ask(MetadataRequest(topics=None), 9, now=2000) is not None
        assert log.last_stable_offset == 0
    assert "Could not store" in caplog.text
    broker.cluster.tick(3000)
    assert log.last_stable_offset == log.log_end_offset == 2


def test_a_topic_that_the_disk_refuses_is_not_there_and_can_be_created_later(tmp_path: Path) -> None:
    broker = Broker(tmp_path, auto_create_topics=True)
    creating = CreateTopicsRequest(
        topics=[CreatableTopic(name=n, num_partitions=1, replication_factor=-1) for n in ("u", "v")]
    )
    asking = MetadataRequest(topics=[MetadataRequestTopic(name="w")])
    with files_end_at(10):
        assert [each.error_code for each in broker.ask(creating, 5).topics] == [FULL, FULL]
        assert [each.error_code for each in broker.ask(asking, 9).topics] == [FULL]
        assert sorted(broker.cluster.topics) == ["t"]
    assert [each.error_code for each in broker.ask(creating, 5).topics] == [0, 0]
    assert [each.error_code for each in broker.ask(asking, 9).topics] == [0]
    assert sorted(Broker(tmp_path).cluster.topics) == ["t", "u", "v", "w"]


def test_an_identity_that_could_not_be_kept_is_not_given(tmp_path: Path) -> None:
    broker = Broker(tmp_path)
    with files_end_at(10):
        assert broker.ask(InitProducerIdRequest(transactional_id=None), 4).error_code == FULL
    assert broker.ask(InitProducerIdRequest(transactional_id=None), 4).error_code == 0


def test_bytes_that_are_cut_off_at_the_start_are_logged(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    Broker(tmp_path).write(b"a")
    with (tmp_path / "t-0.log").open("ab") as file:
        file.write(b"half")
    assert Broker(tmp_path).values() == [b"a"]
    assert "its last 4 bytes were not a complete batch" in caplog.text


@pytest.mark.parametrize("content", ["", "{", "[]", "{}", '{"topics": [{"name": "../../x"}]}'])
def test_a_file_that_no_broker_wrote_is_refused_with_a_sentence(tmp_path: Path, content: str) -> None:
    (tmp_path / "cluster.json").write_text(content)
    with pytest.raises(ConfigurationError, match=r"cluster\.json was not written by an embedded broker"):
        Broker(tmp_path)
