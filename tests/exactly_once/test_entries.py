"""Entries of the decision log: decided batches, and the drivers that decided them."""

from __future__ import annotations

from spark_kafka_sink.exactly_once.batch_summary import BatchSummary
from spark_kafka_sink.exactly_once.entries import (
    MAX_DRIVER_NAMES,
    MAX_KEYED_JOBS,
    Batch,
    Entry,
    EntryState,
    build_batch_driver_name,
    build_operator_name,
)
from spark_kafka_sink.exactly_once.entry_json import decode_entry, encode_entry
from spark_kafka_sink.exactly_once.transaction_names import TaskAttempt, build_task_id
from spark_kafka_sink.requests.transaction_identity import TransactionIdentity

SUMMARY = BatchSummary.from_row_counts({"t": 3, "u": 1}, 40)
TRANSACTION = TransactionIdentity(build_task_id("p", TaskAttempt(1, 2, 0)), 17, 3, 2)


def test_done_entry_keeps_batch_without_transactions() -> None:
    entry = Entry("p").with_decision(Batch("q", 7), SUMMARY, (TRANSACTION,)).as_done()
    assert (entry.state, entry.transactions) == (EntryState.DONE, ())
    assert entry.has_decided(Batch("q", 7))
    assert not entry.has_decided(Batch("q", 8))
    assert not entry.has_decided(Batch("other", 7))


def test_key_is_decided_with_its_job_and_last_keys_are_kept() -> None:
    entry = Entry("p")
    assert not entry.has_decided(Batch(key="0"))
    for number in range(MAX_KEYED_JOBS + 5):
        entry = entry.with_decision(Batch(key=str(number)), SUMMARY, (TRANSACTION,))
        assert entry.has_decided(Batch(key=str(number)))
        entry = entry.as_done()
    assert len(entry.keyed_jobs) == MAX_KEYED_JOBS
    assert entry.has_decided(Batch(key="5"))
    assert not entry.has_decided(Batch(key="4"))


def test_job_without_key_is_never_recognized_as_decided() -> None:
    assert not Entry("p").with_decision(Batch(), SUMMARY, (TRANSACTION,)).as_done().has_decided(Batch())


def test_keeps_last_driver_names_newest_last() -> None:
    entry = Entry("p")
    for number in range(MAX_DRIVER_NAMES + 5):
        entry = entry.with_claim(f"driver-{number}", "", 1)
    assert len(entry.driver_names) == MAX_DRIVER_NAMES
    assert entry.generation == MAX_DRIVER_NAMES + 5
    assert entry.has_superseded("driver-20")
    assert not entry.has_superseded(f"driver-{MAX_DRIVER_NAMES + 4}")
    assert not entry.has_superseded("driver-of-tomorrow")


def test_hundred_driver_names_are_short_and_earlier_names_recognized() -> None:
    entry = Entry("p", driver_names=("host-of-a-driver/of-an-earlier-version", "host-of-its-successor/1"))
    for number in range(MAX_DRIVER_NAMES - 2):
        entry = entry.with_claim(f"host-of-a-driver-with-a-long-name/{number}", "", 1)
    assert entry.claimant_name == f"host-of-a-driver-with-a-long-name/{MAX_DRIVER_NAMES - 3}"
    assert decode_entry(b"p", encode_entry(entry)).has_superseded("host-of-a-driver/of-an-earlier-version")
    assert len(encode_entry(entry)) < 2_000


def test_finds_content_of_each_kept_batch() -> None:
    other = BatchSummary.from_row_counts({"t": 4}, 50)
    entry = Entry("p").with_decision(Batch(key="a"), SUMMARY, ()).as_done().with_decision(Batch(key="b"), other, ())
    assert [entry.find_summary(Batch(key=key)) for key in "abc"] == [SUMMARY, other, None]
    assert Entry("p").with_decision(Batch("q", 7), SUMMARY, ()).find_summary(Batch("q", 7)) == SUMMARY


def test_unproven_mark_stays_with_its_decision() -> None:
    first, second = Batch(key="a"), Batch(key="b")
    unknown = Entry("p").with_decision(first, SUMMARY, ()).as_done().as_unproven()
    again = decode_entry(b"p", encode_entry(unknown.with_claim("driver-1", "", 1)))
    assert again.has_decided(first)
    assert not again.has_proven_decision(first)
    after = decode_entry(b"p", encode_entry(again.with_decision(second, SUMMARY, ()).as_done()))
    assert [after.has_proven_decision(batch) for batch in (first, second)] == [False, True]


def test_finished_unproven_decision_stays_unproven() -> None:
    for batch in (Batch("q", 7), Batch(key="a")):
        found = Entry("p").with_decision(batch, SUMMARY, (TRANSACTION,))
        assert found.has_proven_decision(batch)
        assert found.as_done().has_proven_decision(batch)
        assert not found.as_unproven().as_done().has_proven_decision(batch)
        assert (
            not found.as_unproven()
            .as_done()
            .with_decision(Batch("q", 8), SUMMARY, ())
            .has_proven_decision(Batch(key="a"))
        )


def test_str_of_batch_and_last_decided_batch() -> None:
    assert [str(batch) for batch in (Batch("q", 7), Batch(), Batch(batch_id=7), Batch(key="k"))] == [
        "batch 7 of query q",
        "the job",
        "job number 7",
        "the job with idempotencyKey 'k'",
    ]
    decided = Entry("p").with_decision(Batch("q", 7), SUMMARY, ())
    assert (Entry("p").last_decided_batch, decided.last_decided_batch) == (None, Batch("q", 7))


def test_only_micro_batches_and_jobs_with_key_are_idempotent() -> None:
    assert [batch.is_idempotent for batch in (Batch("q", 7), Batch(key="k"), Batch())] == [True, True, False]


def test_given_up_entry_is_done_and_proven() -> None:
    entry = Entry("p").with_decision(Batch("q", 7), SUMMARY, (TRANSACTION,)).as_unproven().as_given_up()
    assert (entry.state, entry.transactions, entry.has_proven_decision(Batch("q", 7))) == (EntryState.DONE, (), True)


def test_operator_leaves_name_of_newest_driver_in_the_entry() -> None:
    entry = Entry("p").with_claim("driver-1", "", 1).with_claim("driver-2", "", 1)
    for number in range(2):
        entry = entry.with_claim(build_operator_name("host", str(number)), "", 0)
        assert entry.claimant_name == f"`pykafka transactions` on host, {number}"
        assert (entry.driver_name, len(entry.driver_names)) == ("driver-2", 3)
        assert (entry.has_superseded("driver-1"), entry.has_superseded("driver-2")) == (True, False)
    entry = entry.with_claim("driver-2", "", 1)
    assert (entry.claimant_name, len(entry.driver_names)) == ("driver-2", 2)
    assert Entry("p").with_claim(build_operator_name("host", "0"), "", 0).driver_name == ""


def test_drivers_of_several_batches_belong_to_the_same_start() -> None:
    names = [build_batch_driver_name("host/1", suffix) for suffix in ("a", "b")]
    entry = Entry("p").with_claim(names[0], "", 1)
    assert len(set(names)) == 2
    assert entry.is_same_start(names[1])
    assert not entry.has_superseded(names[1])
    assert not entry.is_same_start(build_batch_driver_name("host/2", "a"))
