"""The check that transactions have enough of their timeout left to be committed."""

from __future__ import annotations

from spark_kafka_sink.client.producer_ids import ProducerIdAndEpoch
from spark_kafka_sink.exactly_once.commit_checks import find_transaction_deadline_error
from spark_kafka_sink.exactly_once.entries import Entry
from spark_kafka_sink.requests.transaction_description import ONGOING, TransactionDescription

NOW_MS = 1_000_000


def test_names_transaction_that_may_time_out_before_it_is_committed() -> None:
    in_time = describe("p-1-0-0", started_ms=NOW_MS - 1_000)
    late = describe("p-1-1-0", started_ms=NOW_MS - 59_000)
    error = find_transaction_deadline_error(Entry("p"), [in_time, late], NOW_MS)
    assert "p-1-1-0" in str(error)
    assert find_transaction_deadline_error(Entry("p"), [in_time], NOW_MS) is None


def test_transaction_with_unknown_start_has_no_deadline() -> None:
    unknown, late = describe("p-1-0-0", started_ms=-1), describe("p-1-1-0", started_ms=NOW_MS - 59_000)
    assert find_transaction_deadline_error(Entry("p"), [unknown], NOW_MS) is None
    assert "p-1-1-0" in str(find_transaction_deadline_error(Entry("p"), [unknown, late], NOW_MS))


def describe(transactional_id: str, started_ms: int) -> TransactionDescription:
    return TransactionDescription(
        transactional_id, ONGOING, ProducerIdAndEpoch(7, 0), timeout_ms=60_000, started_ms=started_ms
    )
