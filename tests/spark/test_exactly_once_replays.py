"""Replays of a batch by exactly-once writers, without a JVM.

A batch is skipped only if it is the one that was decided. If the rows or topics differ, the replay is an error.
"""

from __future__ import annotations

import contextlib
import logging
from functools import partial

import pytest

from spark_kafka_sink.errors import ExactlyOnceError
from spark_kafka_sink.exactly_once import query_transactions
from spark_kafka_sink.exactly_once.batch_summary import BatchSummary
from spark_kafka_sink.exactly_once.entries import Batch, Entry
from spark_kafka_sink.exactly_once.entry_json import encode_entry
from spark_kafka_sink.exactly_once.transaction_names import derive_prefix
from spark_kafka_sink.testing import EmbeddedBroker, read_topic
from tests.exactly_once.embedded_query import LOG, read_values, write_entry_as
from tests.spark.test_exactly_once_writers import Spark, micro_batch, rows
from tests.spark.test_exactly_once_writers import broker as broker


def run_job(broker: EmbeddedBroker, monkeypatch: pytest.MonkeyPatch, values: tuple[str, ...], **options: str) -> None:
    job = Spark(broker, monkeypatch, **options)
    writer = job.job()
    writer.commit([job.task(writer, rows(*values))])


@pytest.fixture
def both_topics(broker: EmbeddedBroker) -> EmbeddedBroker:
    broker.control.create_topic("u", 1)
    return broker


def seen_in(broker: EmbeddedBroker, topic: str) -> list[str]:
    values = read_topic(broker.bootstrap_servers, topic).column("value").to_pylist()
    return sorted(value.decode() for value in values)


@pytest.mark.parametrize("prefix", [{}, {"transactionalIdPrefix": "daily"}])
def test_same_key_for_two_topics_identifies_two_jobs(
    both_topics: EmbeddedBroker, monkeypatch: pytest.MonkeyPatch, prefix: dict[str, str]
) -> None:
    """Many jobs use the date as their key."""
    for topic in ("t", "u", "t", "u"):
        run_job(both_topics, monkeypatch, ("a",), topic=topic, idempotencyKey="2026-11-22", **prefix)
    assert (seen_in(both_topics, "t"), seen_in(both_topics, "u")) == (["a"], ["a"])


def test_rejects_key_of_other_rows_with_both_counts(broker: EmbeddedBroker, monkeypatch: pytest.MonkeyPatch) -> None:
    run_job(broker, monkeypatch, ("a", "b"), idempotencyKey="today")
    run_job(broker, monkeypatch, ("a", "b"), idempotencyKey="today")
    with pytest.raises(ExactlyOnceError) as error:
        run_job(broker, monkeypatch, ("c",), idempotencyKey="today")
    message = str(error.value)
    assert message.startswith("the job with idempotencyKey 'today' is already in Kafka")
    assert "2 rows with 2 bytes in total (t: 2) were committed" in message
    assert "this run has 1 row with 1 byte in total (t: 1)" in message
    assert read_values(broker) == ["a", "b"]


def test_job_whose_source_has_grown_is_completed_by_its_missing_rows(
    broker: EmbeddedBroker, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A scheduler runs the job again. With another key, all of its rows would be written, and two of them twice."""
    run_job(broker, monkeypatch, ("a", "b"), idempotencyKey="today")
    with pytest.raises(
        ExactlyOnceError, match=r"(?s)All rows are there: set onReplayMismatch .* write the missing ones .*only then"
    ):
        run_job(broker, monkeypatch, ("a", "b", "c"), idempotencyKey="today")
    run_job(broker, monkeypatch, ("c",), idempotencyKey="today, the rest")
    run_job(broker, monkeypatch, ("a", "b", "c"), idempotencyKey="today", onReplayMismatch="warn")
    assert read_values(broker) == ["a", "b", "c"]


@pytest.mark.parametrize("is_stream", [False, True], ids=["job", "stream"])
def test_failed_replay_error_names_earlier_committed_run(
    broker: EmbeddedBroker, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, *, is_stream: bool
) -> None:
    """Nobody has taken over, and no start has anything left to complete."""
    options = {"checkpointLocation": "/checkpoint"} if is_stream else {"idempotencyKey": "today"}
    for values in (("a",), ("a", "b")):
        spark = Spark(broker, monkeypatch, **options)
        writer = spark.batch() if is_stream else spark.job()
        message = spark.task(writer, rows(*values), **({"query_id": "q", "batch_id": "0"} if is_stream else {}))
        committing, batch_id = (spark.committing(), [0]) if is_stream else (writer, [])
        with contextlib.suppress(ExactlyOnceError):
            committing.commit([message], *batch_id)
            continue
        committing.abort([message], *batch_id)
    assert (
        "The write failed: the decision log says that an earlier run has committed this batch; this run wrote nothing"
        in caplog.text
    )
    assert "has taken over" not in caplog.text
    assert read_values(broker) == ["a"]


def test_does_not_trust_commit_of_key_that_no_driver_wrote(
    broker: EmbeddedBroker, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The writer may write to the log, but this user may not describe the writer's transactional id."""
    job = partial(run_job, broker, monkeypatch, ("a", "b"), decisionLogTopic=LOG)
    job(idempotencyKey="yesterday")  # creates the log
    prefix, batch, summary = (
        derive_prefix("key", "t\ntoday"),
        Batch(key="today", scope="t"),
        BatchSummary.from_row_counts({"t": 2}, 2),
    )
    write_entry_as(broker, "evil", prefix, encode_entry(Entry(prefix).with_decision(batch, summary, ()).as_done()))
    monkeypatch.setattr(query_transactions, "fetch_ids_by_producer", lambda client: {})
    for _ in range(2):
        with pytest.raises(ExactlyOnceError, match="is not known who wrote this log entry"):
            job(idempotencyKey="today")
    job(idempotencyKey="today", onReplayMismatch="warn")
    assert read_values(broker) == ["a", "b"], "of yesterday"


def test_rejects_batch_number_as_key_after_new_checkpoint_restarts_at_0(
    broker: EmbeddedBroker, monkeypatch: pytest.MonkeyPatch
) -> None:
    """If keys contain the query's id, as the documentation recommends, the rows of all batches are written."""
    for number in range(2):
        run_job(broker, monkeypatch, ("a",), transactionalIdPrefix="mine", idempotencyKey=str(number))
    with pytest.raises(ExactlyOnceError, match="the key is used for another job"):
        run_job(broker, monkeypatch, ("b", "c"), transactionalIdPrefix="mine", idempotencyKey="0")
    for query in ("q1", "q2"):
        run_job(broker, monkeypatch, ("d",), transactionalIdPrefix="mine", idempotencyKey=f"{query}-0")
    assert read_values(broker) == ["a", "a", "d", "d"]


def test_checkpoint_copy_with_other_topic_and_original_write_all_rows(
    both_topics: EmbeddedBroker, monkeypatch: pytest.MonkeyPatch
) -> None:
    original = Spark(both_topics, monkeypatch, checkpointLocation="/original", topic="t")
    micro_batch(original, 0, "0")
    copy = Spark(both_topics, monkeypatch, checkpointLocation="/copy", topic="u")
    for number in (1, 2):
        micro_batch(copy, number, f"{number}")
        micro_batch(original, number, f"{number}")
    assert (seen_in(both_topics, "t"), seen_in(both_topics, "u")) == (["0", "1", "2"], ["1", "2"])


def test_replay_with_other_rows_is_an_error(broker: EmbeddedBroker, monkeypatch: pytest.MonkeyPatch) -> None:
    """The checkpoint was restored from a backup, and the source has new rows."""
    before = Spark(broker, monkeypatch, checkpointLocation="/checkpoint")
    micro_batch(before, 0, "y1")
    micro_batch(before, 1, "y2")
    restored = Spark(broker, monkeypatch, checkpointLocation="/checkpoint")
    with pytest.raises(ExactlyOnceError, match=r"batch 1 of query q is already in Kafka .*1 row .*2 rows.*restored"):
        micro_batch(restored, 1, "y2", "y3")
    assert read_values(broker) == ["y1", "y2"]


def test_replay_to_another_topic_is_an_error(both_topics: EmbeddedBroker, monkeypatch: pytest.MonkeyPatch) -> None:
    micro_batch(Spark(both_topics, monkeypatch, checkpointLocation="/checkpoint", topic="t"), 0, "a")
    moved = Spark(both_topics, monkeypatch, checkpointLocation="/checkpoint", topic="u")
    with pytest.raises(ExactlyOnceError, match=r"\(t: 1\) were committed, and this run has .*\(u: 1\)"):
        micro_batch(moved, 0, "a")


def test_replay_with_other_rows_only_warns_with_on_replay_mismatch_warn(
    broker: EmbeddedBroker, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    sink_options = {"checkpointLocation": "/checkpoint", "onReplayMismatch": "warn"}
    micro_batch(Spark(broker, monkeypatch, **sink_options), 0, "a", "b")
    again = Spark(broker, monkeypatch, **sink_options)
    micro_batch(again, 0, "a")
    micro_batch(again, 1, "c")
    assert read_values(broker) == ["a", "b", "c"], "what was committed first stands"
    (warning,) = [record.getMessage() for record in caplog.records if record.levelno == logging.WARNING]
    assert "2 rows with 2 bytes in total (t: 2) were committed, and this run has 1 row" in warning


def test_replay_with_same_rows_logs_no_warning(
    broker: EmbeddedBroker, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """The rows may be split into tasks differently, and a value such as a time may have another length."""
    batch_options = {"query_id": "q", "batch_id": "0"}
    before = Spark(broker, monkeypatch, checkpointLocation="/checkpoint")
    writer = before.batch()
    messages = [
        before.task(writer, rows(*part), partition_id=at, **batch_options) for at, part in enumerate(["ab", "c"])
    ]
    before.committing().commit(messages, 0)
    again = Spark(broker, monkeypatch, checkpointLocation="/checkpoint")
    writer = again.batch()
    messages = [
        again.task(writer, rows(*part), partition_id=at, **batch_options) for at, part in enumerate(["a", ["b", "cc"]])
    ]
    again.committing().commit([*messages, again.task(writer, rows(), partition_id=2, **batch_options)], 0)
    assert read_values(broker, "read_uncommitted") == ["a", "b", "c"]
    assert not [record for record in caplog.records if record.levelno >= logging.WARNING]
