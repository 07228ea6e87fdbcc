from __future__ import annotations

import json

import pytest

from spark_kafka_sink.errors import DecodeError
from spark_kafka_sink.exactly_once.content import Content
from spark_kafka_sink.exactly_once.entries import (
    DRIVERS_MAX,
    KEYS_MAX,
    VALUE_BYTES_MAX,
    Batch,
    Entry,
    EntryState,
    KeyedJob,
    decoded,
    encoded,
)
from spark_kafka_sink.exactly_once.names import TaskName, task_id
from spark_kafka_sink.producer.producer_ids import ProducerIdAndEpoch
from spark_kafka_sink.producer.transactions.transaction_identity import TransactionIdentity

CONTENT = Content.of({"t": 3, "u": 1}, 40)
TRANSACTION = TransactionIdentity(task_id("p", TaskName(1, 2, 0)), 17, 3, 2)


def test_an_entry_is_read_as_it_was_written() -> None:
    entry = Entry("p").begun("driver-1", "/checkpoint", 900_000).decided(Batch("q", 7), CONTENT, (TRANSACTION,))
    assert decoded(b"p", encoded(entry)) == entry
    assert decoded(b"p", encoded(entry.done())) == entry.done()


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


@pytest.mark.parametrize(
    "value", [b"", b"x", b"[]", b"{}", b'{"format":1}', b'{"format":1,"state":"dead","transactions":[]}', b"\xff"]
)
def test_what_is_no_entry_is_refused(value: bytes) -> None:
    with pytest.raises(DecodeError, match="it is no record of the decision log"):
        decoded(b"p", value)


WHOLE = (
    Entry("p", keys=(KeyedJob("k", "t", CONTENT),))
    .begun("driver-1", "/checkpoint", 900_000, ProducerIdAndEpoch(17, 3))
    .decided(Batch("q", 7, "k", "t"), CONTENT, (TRANSACTION,))
)


UNPROVEN = WHOLE.as_unproven()


@pytest.mark.parametrize("value", [{}, True, 1.5, [[]], ["x", 2], "x" * 5000, -1, 2**63, 2**31])
@pytest.mark.parametrize("field", [name for name in json.loads(encoded(UNPROVEN)) if name != "format"])
def test_a_field_of_another_type_or_size_is_refused(field: str, value: object) -> None:
    if (field, value) in (("batch", 2**31), ("unproven", True)):
        return
    with pytest.raises(DecodeError, match="it is no record of the decision log: "):
        decoded(b"p", json.dumps({**json.loads(encoded(UNPROVEN)), field: value}).encode())


@pytest.mark.parametrize("whole", [WHOLE, UNPROVEN])
def test_an_entry_with_all_its_fields_is_read_as_it_was_written(whole: Entry) -> None:
    assert decoded(b"p", encoded(whole)) == whole


def test_what_is_longer_than_any_entry_is_not_looked_at() -> None:
    with pytest.raises(DecodeError, match=f"{VALUE_BYTES_MAX + 1} bytes, and an entry has at most {VALUE_BYTES_MAX}"):
        decoded(b"p", b"x" * (VALUE_BYTES_MAX + 1))


def test_keys_without_what_was_written_under_them_are_read_as_an_earlier_version_wrote_them() -> None:
    plain = {**json.loads(encoded(WHOLE)), "format": 1, "keys": ["k"], "content": None}
    entry = decoded(b"p", json.dumps(plain).encode())
    assert (entry.keys, entry.content) == ((KeyedJob("k"),), None)
    assert entry.done().has_committed(Batch(key="k", scope="of any topic"))


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
    assert (Entry("p").last_decided, WHOLE.last_decided) == (None, WHOLE.batch)


def test_an_entry_of_a_newer_version_is_refused_as_such() -> None:
    with pytest.raises(DecodeError, match="its format is 3, and this version of the library knows 2"):
        decoded(b"p", b'{"format":3}')


def test_the_greatest_generation_is_followed_by_one_that_can_be_read() -> None:
    greatest = decoded(b"p", encoded(Entry("p", generation=2**31 - 1)))
    following = greatest.begun("driver", "", 60_000)
    assert decoded(b"p", encoded(following)).generation == 1


def test_of_more_keys_and_drivers_than_are_remembered_the_last_ones_count() -> None:
    """A stranger's entry must not grow when a driver writes it again."""
    names = tuple(str(number) for number in range(KEYS_MAX + 5))
    read = decoded(b"p", encoded(Entry("p", drivers=names, keys=tuple(map(KeyedJob, names)))))
    assert [job.key for job in read.keys] == list(names[5:])
    assert read.drivers == names[5:]
