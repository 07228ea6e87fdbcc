"""Batches that a driver skips, rejects or writes, given its entry at the start."""

from __future__ import annotations

import dataclasses

import pytest

from spark_kafka_sink.client.producer_ids import ProducerIdAndEpoch
from spark_kafka_sink.errors import ExactlyOnceError
from spark_kafka_sink.exactly_once.batch_start import BatchStart
from spark_kafka_sink.exactly_once.batch_summary import BatchSummary
from spark_kafka_sink.exactly_once.decision_errors import COMPARISON_HINT
from spark_kafka_sink.exactly_once.entries import Batch, Entry
from spark_kafka_sink.requests.transaction_description import EMPTY, ONGOING, TransactionDescription

SUMMARY, OTHER = BatchSummary.from_row_counts({"t": 3}, 30), BatchSummary.from_row_counts({"t": 4}, 40)


def start_after(batch: Batch | None, *, has_user_prefix: bool = True) -> BatchStart:
    entry = Entry("p") if batch is None else Entry("p").with_decision(batch, SUMMARY, ()).as_done()
    return BatchStart(entry, ProducerIdAndEpoch(7, 1), has_user_prefix)


def test_last_decided_batch_is_committed() -> None:
    assert not start_after(None).is_decided(Batch("q", 0))
    assert start_after(Batch("q", 7)).is_decided(Batch("q", 7))
    assert not start_after(Batch("q", 7)).is_decided(Batch("q", 8))
    assert start_after(Batch(key="k", scope="t")).is_decided(Batch(key="k", scope="t"))
    assert not start_after(Batch(key="k", scope="t")).is_decided(Batch(key="k", scope="u"))
    assert not start_after(Batch()).is_decided(Batch())


def test_rejects_older_batch_and_other_query() -> None:
    with pytest.raises(ExactlyOnceError, match="batch 6 of query q must not be written: batch 7 of query q"):
        start_after(Batch("q", 7)).is_decided(Batch("q", 6))
    with pytest.raises(ExactlyOnceError, match="belongs to another query"):
        start_after(Batch("q", 7)).is_decided(Batch("other", 8))
    assert not start_after(Batch("q", 7), has_user_prefix=False).is_decided(Batch("other", 0))


def test_mismatch_is_error_or_warning_with_both_counts(
    caplog: pytest.LogCaptureFixture,
) -> None:
    start = start_after(Batch("q", 7))
    start.check_skipped_batch(Batch("q", 7), SUMMARY, tolerate_mismatch=False)
    assert caplog.text == ""
    with pytest.raises(ExactlyOnceError, match=r"3 rows with 30 bytes in total.*4 rows with 40 bytes in total"):
        start.check_skipped_batch(Batch("q", 7), OTHER, tolerate_mismatch=False)
    start.check_skipped_batch(Batch("q", 7), OTHER, tolerate_mismatch=True)
    assert "3 rows with 30 bytes in total" in caplog.text
    assert "4 rows with 40 bytes in total" in caplog.text


@pytest.mark.parametrize("is_unproven", [False, True])
@pytest.mark.parametrize("batch", [Batch("q", 7), Batch(key="k", scope="t")], ids=["stream", "job"])
def test_tolerated_mismatch_warns_of_skipped_rows(
    batch: Batch, is_unproven: bool, caplog: pytest.LogCaptureFixture
) -> None:
    """The batch does not fail, so the remedies of the error do not apply."""
    start = start_after(batch)
    if is_unproven:
        start = dataclasses.replace(start, entry=start.entry.as_unproven())
    start.check_skipped_batch(batch, OTHER, tolerate_mismatch=True)
    (message,) = caplog.messages
    assert "this run has 4 rows" in message
    assert message.endswith(
        "The rows of this run were skipped, because onReplayMismatch is 'warn'. If some of them are not in Kafka, "
        f"write those with a separate job. {COMPARISON_HINT}"
    )
    for remedy in ("ompare the rows", "start with another", "set onReplayMismatch"):
        assert remedy not in message


@pytest.mark.parametrize(("key", "warns"), [("7", True), ("q1-7", False), ("2026-11-22", False)])
def test_warns_if_key_of_skipped_job_is_a_number(key: str, warns: bool, caplog: pytest.LogCaptureFixture) -> None:
    batch = Batch(key=key, scope="t")
    start_after(batch).check_skipped_batch(batch, SUMMARY, tolerate_mismatch=False)
    assert (f"idempotencyKey '{key}' and the same number of rows was already committed" in caplog.text) == warns


def test_driver_waits_for_tasks_until_its_epoch_or_state_changes() -> None:
    start = start_after(None)
    current = TransactionDescription("p-driver", EMPTY, start.driver_identity)
    assert start.is_waiting_for_tasks(current)
    assert not start.is_waiting_for_tasks(dataclasses.replace(current, state=ONGOING))
    assert not start.is_waiting_for_tasks(dataclasses.replace(current, id_and_epoch=ProducerIdAndEpoch(7, 2)))
    assert not start.is_waiting_for_tasks(None), "the brokers do not know the driver id"
