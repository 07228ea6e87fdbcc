"""What an entry of the decision log says: what is decided, and by which driver."""

from __future__ import annotations

from spark_kafka_sink.exactly_once.content import Content
from spark_kafka_sink.exactly_once.entries import DRIVERS_MAX, KEYS_MAX, Batch, Entry, EntryState
from spark_kafka_sink.exactly_once.entry_json import decoded, encoded
from spark_kafka_sink.exactly_once.transaction_names import TaskName, task_id
from spark_kafka_sink.requests.transaction_identity import TransactionIdentity

CONTENT = Content.of({"t": 3, "u": 1}, 40)
TRANSACTION = TransactionIdentity(task_id("p", TaskName(1, 2, 0)), 17, 3, 2)


def test_what_is_done_has_no_transactions_and_remembers_its_batch() -> None:
    entry = Entry("p").decided(Batch("q", 7), CONTENT, (TRANSACTION,)).done()
    assert (entry.state, entry.transactions) == (EntryState.DONE, ())
    assert entry.has_committed(Batch("q", 7))
    assert not entry.has_committed(Batch("q", 8))
    assert not entry.has_committed(Batch("other", 7))


def test_a_key_counts_from_the_decision_on_and_the_last_ones_are_remembered() -> None:
    entry = Entry("p")
    assert not entry.has_committed(Batch(key="0"))
    for number in range(KEYS_MAX + 5):
        entry = entry.decided(Batch(key=str(number)), CONTENT, (TRANSACTION,))
        assert entry.has_committed(Batch(key=str(number)))
        entry = entry.done()
    assert len(entry.keys) == KEYS_MAX
    assert entry.has_committed(Batch(key="5"))
    assert not entry.has_committed(Batch(key="4"))


def test_a_job_without_a_key_is_never_committed_already() -> None:
    assert not Entry("p").decided(Batch(), CONTENT, (TRANSACTION,)).done().has_committed(Batch())


def test_the_last_drivers_are_remembered_and_the_newest_of_them_drives() -> None:
    entry = Entry("p")
    for number in range(DRIVERS_MAX + 5):
        entry = entry.begun(f"driver-{number}", "", 1)
    assert len(entry.drivers) == DRIVERS_MAX
    assert entry.generation == DRIVERS_MAX + 5
    assert entry.has_superseded("driver-20")
    assert not entry.has_superseded(f"driver-{DRIVERS_MAX + 4}")
    assert not entry.has_superseded("driver-of-tomorrow")


def test_a_hundred_drivers_take_little_room_and_names_of_an_earlier_version_are_known() -> None:
    entry = Entry("p", drivers=("host-of-a-driver/of-an-earlier-version", "host-of-its-successor/1"))
    for number in range(DRIVERS_MAX - 2):
        entry = entry.begun(f"host-of-a-driver-with-a-long-name/{number}", "", 1)
    assert entry.driver == f"host-of-a-driver-with-a-long-name/{DRIVERS_MAX - 3}"
    assert decoded(b"p", encoded(entry)).has_superseded("host-of-a-driver/of-an-earlier-version")
    assert len(encoded(entry)) < 2_000


def test_the_content_of_each_batch_that_is_remembered_is_known() -> None:
    other = Content.of({"t": 4}, 50)
    entry = Entry("p").decided(Batch(key="a"), CONTENT, ()).done().decided(Batch(key="b"), other, ())
    assert [entry.content_of(Batch(key=key)) for key in "abc"] == [CONTENT, other, None]
    assert Entry("p").decided(Batch("q", 7), CONTENT, ()).content_of(Batch("q", 7)) == CONTENT


def test_what_an_unknown_writer_has_decided_stays_unproven_and_what_its_successor_decides_is_not() -> None:
    first, second = Batch(key="a"), Batch(key="b")
    unknown = Entry("p").decided(first, CONTENT, ()).done().as_unproven()
    again = decoded(b"p", encoded(unknown.begun("driver-1", "", 1)))
    assert again.has_committed(first)
    assert not again.is_proven(first)
    after = decoded(b"p", encoded(again.decided(second, CONTENT, ()).done()))
    assert [after.is_proven(each) for each in (first, second)] == [False, True]


def test_a_decision_of_an_unknown_writer_that_is_finished_stays_unproven() -> None:
    for batch in (Batch("q", 7), Batch(key="a")):
        found = Entry("p").decided(batch, CONTENT, (TRANSACTION,))
        assert found.is_proven(batch)
        assert found.done().is_proven(batch)
        assert not found.as_unproven().done().is_proven(batch)
        assert not found.as_unproven().done().decided(Batch("q", 8), CONTENT, ()).is_proven(Batch(key="a"))


def test_a_batch_and_what_was_decided_last_are_shown_in_words() -> None:
    assert [str(each) for each in (Batch("q", 7), Batch(), Batch(key="k"))] == [
        "batch 7 of query q",
        "the job",
        "the job with the idempotencyKey 'k'",
    ]
    decided = Entry("p").decided(Batch("q", 7), CONTENT, ())
    assert (Entry("p").last_decided, decided.last_decided) == (None, Batch("q", 7))
