"""OffsetStore: deletion of a topic's offsets."""

from __future__ import annotations

import pytest

from spark_kafka_sink.broker import offsets
from spark_kafka_sink.broker.offsets import CommittedOffset, OffsetStore
from spark_kafka_sink.protocol import error_codes


def test_deletes_committed_and_pending_offsets_of_a_topic() -> None:
    store = OffsetStore()
    store.commit("g", {("t", 0): CommittedOffset(5), ("other", 0): CommittedOffset(6)})
    store.commit_in_transaction(7, "g", {("t", 1): CommittedOffset(8), ("other", 1): CommittedOffset(9)})
    store.delete_topic("t")
    assert not store.has_pending("g", ("t", 1))
    store.end_transaction(7, "g", commit=True)
    assert store.committed == {"g": {("other", 0): CommittedOffset(6), ("other", 1): CommittedOffset(9)}}


def test_deleted_offsets_do_not_count_toward_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(offsets, "MAX_OFFSETS", 2)
    store = OffsetStore()
    store.commit("g", {("t", 0): CommittedOffset(5)})
    store.commit_in_transaction(7, "g", {("t", 1): CommittedOffset(8)})
    assert store.find_commit_error_code("g", ("other", 0), None) == error_codes.POLICY_VIOLATION
    store.delete_topic("t")
    store.commit("g", {("other", 0): CommittedOffset(5)})
    assert store.find_commit_error_code("g", ("other", 1), None) == 0
