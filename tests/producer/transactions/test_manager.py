"""Successful transactions: their requests and order, and the producer id and epoch of the next transaction."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from spark_kafka_sink.client.producer_ids import ProducerIdAndEpoch
from spark_kafka_sink.errors import IllegalStateError, KafkaSinkError
from spark_kafka_sink.producer.transactions.states import Operation
from spark_kafka_sink.protocol import error_codes as codes
from spark_kafka_sink.protocol.messages.end_txn import EndTxnRequest, EndTxnResponse
from spark_kafka_sink.protocol.messages.find_coordinator import (
    FindCoordinatorRequest,
)
from spark_kafka_sink.protocol.messages.init_producer_id import InitProducerIdRequest
from spark_kafka_sink.protocol.schema import VersionRange
from spark_kafka_sink.requests.init_producer_id import InitProducerId
from spark_kafka_sink.requests.request import TRANSACTION_KEY_TYPE, CoordinatorRoute
from spark_kafka_sink.requests.transaction_identity import TransactionIdentity
from spark_kafka_sink.requests.transactions import AddPartitions, EndTransaction
from tests.producer.transactions.transaction_cases import (
    GROUP,
    OFFSETS,
    T0,
    T1,
    Request,
    S,
    Talk,
    adding,
    get_error,
    initial,
    looked_up,
)

BOTH = pytest.mark.parametrize("version", [1, 2])


# --- init


def test_init_requests_producer_id_with_transactional_id_and_timeout() -> None:
    talk = Talk()
    talk.manager.init()
    message = talk.answer(InitProducerId).build_message(4)
    assert message == InitProducerIdRequest(transactional_id="x", transaction_timeout_ms=60_000)


def test_coordinator_lookup_uses_layout_of_request_version() -> None:
    talk = Talk()
    talk.manager.init()
    lookup = talk.due()
    assert lookup.versions is not None
    assert 0 not in lookup.versions  # version 0 supports only groups
    assert lookup.build_message(3) == FindCoordinatorRequest(key="x", key_type=1)
    assert lookup.build_message(4) == FindCoordinatorRequest(coordinator_keys=["x"], key_type=1)


def test_requests_nothing_before_init() -> None:
    assert Talk().next() is None


def test_repeats_first_request_whose_response_was_lost() -> None:
    talk = Talk()
    operation = talk.manager.init()
    talk.lose(InitProducerId)
    talk.answer(InitProducerId)
    assert get_error(operation) is None


def test_sends_one_request_at_a_time() -> None:
    talk = Talk()
    talk.manager.init()
    talk.send()
    assert talk.next() is None


def test_request_is_due_until_it_is_sent() -> None:
    talk = Talk().init()
    talk.manager.begin(1)
    talk.manager.admit_batch(T0, is_retry=False)
    assert talk.due().build_message(3) == talk.due().build_message(3)


def test_ready_producer_can_be_initialized_with_another_id() -> None:
    talk = Talk().init()
    operation = talk.manager.init("y")
    assert looked_up(talk.due()) == CoordinatorRoute(TRANSACTION_KEY_TYPE, "y")
    message = talk.answer(InitProducerId).build_message(4)
    assert isinstance(message, InitProducerIdRequest)
    assert message.transactional_id == talk.manager.transactional_id == "y"
    assert get_error(operation) is None


def requesting_an_epoch_after_an_empty_prepare() -> tuple[Talk, Request]:
    """Create a ready Talk. An empty transaction has requested the next epoch of id "x", which is in flight."""
    talk = Talk(1).started().commit()
    talk.manager.begin(2)
    request = talk.send(InitProducerId)
    assert talk.manager.prepare() is None
    return talk, request


@pytest.mark.parametrize("code", [codes.NONE, codes.PRODUCER_FENCED])
def test_response_for_previous_id_does_not_initialize_the_producer(code: int) -> None:
    talk, request = requesting_an_epoch_after_an_empty_prepare()
    operation = talk.manager.init("y")
    talk.reply(request, code)
    assert not operation.done_event.is_set()
    talk.settle()
    assert get_error(operation) is None
    assert talk.manager.id_and_epoch == talk.id_and_epoch


def test_response_for_previous_id_does_not_change_taken_over_transaction() -> None:
    talk, request = requesting_an_epoch_after_an_empty_prepare()
    prepared = TransactionIdentity("y", 80, 5, 1)
    talk.manager.take_over(prepared)
    talk.reply(request)
    assert talk.manager.id_and_epoch == prepared.id_and_epoch
    talk.commit()
    assert talk.asked[-1] is EndTransaction


def test_take_over_cancels_unsent_epoch_request_of_previous_id() -> None:
    talk = Talk(1).started().commit()
    talk.manager.begin(2)
    assert talk.manager.prepare() is None
    talk.manager.take_over(TransactionIdentity("y", 80, 5, 1))
    assert talk.next() is None
    talk.commit()
    assert talk.asked[-1] is EndTransaction


# --- commit and abort


@BOTH
def test_admits_no_batch_before_init_and_begin(version: int) -> None:
    talk = Talk(version)
    assert not talk.manager.admit_batch(T0, is_retry=False)
    talk.init()
    assert not talk.manager.admit_batch(T0, is_retry=False)
    assert talk.next() is None


def test_version_1_adds_partitions_before_their_batches_are_admitted() -> None:
    talk = Talk(1).begun()
    assert not talk.manager.admit_batch(T0, is_retry=False)
    assert not talk.manager.admit_batch(T1, is_retry=False)
    request = talk.send(AddPartitions)
    assert adding(request) == {T0, T1}
    assert request.versions == VersionRange(0, 3)
    assert not talk.manager.admit_batch(T0, is_retry=False)
    talk.reply(request)
    assert talk.manager.admit_batch(T0, is_retry=False)
    assert talk.manager.admit_batch(T1, is_retry=False)
    assert talk.next() is None


def test_version_1_adds_only_new_partition_to_open_transaction() -> None:
    talk = Talk(1).started(T0)
    talk.manager.admit_batch(T1, is_retry=False)
    assert adding(talk.answer(AddPartitions)) == {T1}
    assert talk.manager.admit_batch(T1, is_retry=False)


def test_version_2_admits_batch_without_adding_its_partition() -> None:
    talk = Talk(2).begun()
    assert talk.manager.admit_batch(T0, is_retry=False)
    assert talk.next() is None


@BOTH
@pytest.mark.parametrize("commit", [True, False])
def test_sends_end_txn_only_after_flush(version: int, commit: bool) -> None:
    talk = Talk(version).started()
    talk.is_flushed = False
    operation = talk.manager.commit() if commit else talk.manager.abort()
    assert talk.next() is None
    talk.is_flushed = True
    end = talk.send(EndTransaction)
    assert end.build_message(5) == EndTxnRequest(
        transactional_id="x", producer_id=70, producer_epoch=initial(talk).epoch, committed=commit
    )
    assert not operation.done_event.is_set()
    talk.reply(end)
    assert get_error(operation) is None
    assert talk.state() is S.READY


def test_version_1_commit_keeps_epoch_and_uses_end_txn_version_of_at_most_4() -> None:
    talk = Talk(1).started()
    talk.manager.commit()
    assert talk.answer(EndTransaction).versions == VersionRange(0, 4)
    assert talk.manager.id_and_epoch == initial(talk)


def test_version_2_commit_uses_epoch_from_end_txn_response() -> None:
    talk = Talk(2).started()
    talk.manager.commit()
    versions = talk.answer(EndTransaction).versions
    assert versions is not None
    assert versions.min == 5
    assert talk.manager.id_and_epoch == ProducerIdAndEpoch(70, initial(talk).epoch + 1)


def test_version_2_commit_uses_new_producer_id_from_end_txn_response() -> None:
    talk = Talk(2).started()
    talk.manager.commit()
    talk.respond(talk.send(EndTransaction), EndTxnResponse(producer_id=71, producer_epoch=0))
    assert talk.manager.id_and_epoch == ProducerIdAndEpoch(71, 0)


@BOTH
def test_admits_no_batch_after_end_txn_was_sent(version: int) -> None:
    talk = Talk(version).started()
    talk.manager.commit()
    assert talk.manager.admit_batch(T0, is_retry=False)  # the last batches before the end
    talk.send(EndTransaction)
    assert not talk.manager.admit_batch(T0, is_retry=False)


def test_abort_admits_only_retries_of_added_partitions() -> None:
    talk = Talk(1).started(T0)
    talk.manager.admit_batch(T1, is_retry=False)
    talk.is_flushed = False
    talk.manager.abort()
    assert talk.manager.should_drop_unsent_batches
    assert talk.manager.admit_batch(T0, is_retry=True)
    assert not talk.manager.admit_batch(T0, is_retry=False)
    assert not talk.manager.admit_batch(T1, is_retry=True)
    assert talk.next() is None  # the pending partition is not added
    talk.is_flushed = True
    talk.answer(EndTransaction)


def test_commit_adds_pending_partitions_before_it_ends_the_transaction() -> None:
    talk = Talk(1).begun()
    talk.manager.admit_batch(T0, is_retry=False)
    talk.is_flushed = False
    talk.manager.commit()
    talk.answer(AddPartitions)
    assert talk.manager.admit_batch(T0, is_retry=False)
    talk.is_flushed = True
    talk.answer(EndTransaction)
    assert talk.state() is S.READY


# --- versions


def test_each_begin_determines_transaction_version() -> None:
    talk = Talk(1).started().commit()
    talk.version = 2
    talk.manager.begin(2)
    # Version 2 begins with a new epoch. The request has the current one, so that no other producer is fenced.
    assert not talk.manager.admit_batch(T0, is_retry=False)
    message = talk.answer(InitProducerId).build_message(4)
    assert isinstance(message, InitProducerIdRequest)
    assert (message.producer_id, message.producer_epoch) == initial(talk)
    assert talk.manager.admit_batch(T0, is_retry=False)
    talk.manager.commit()
    assert talk.answer(EndTransaction).versions == VersionRange(5, 32767)
    talk.manager.commit().read_result()
    talk.version = 1
    talk.manager.begin(1)
    assert not talk.manager.admit_batch(T0, is_retry=False)
    assert type(talk.due()) is AddPartitions


def test_begin_without_known_version_keeps_previous_version() -> None:
    talk = Talk(2).started().commit()
    talk.manager.begin(None)
    assert talk.manager.admit_batch(T0, is_retry=False)


# --- handover between processes


@BOTH
def test_prepare_returns_identity_and_keeps_transaction_open(version: int) -> None:
    talk = Talk(version).started()
    prepared = talk.manager.prepare()
    assert prepared == TransactionIdentity("x", *initial(talk), version)
    assert talk.state() is S.PREPARED
    assert not talk.manager.has_abortable_transaction
    assert talk.next() is None
    assert not talk.manager.admit_batch(T0, is_retry=False)


def test_producer_can_commit_transaction_it_has_prepared() -> None:
    talk = Talk(2).started()
    talk.manager.prepare()
    operation = talk.manager.commit()
    talk.answer(EndTransaction)
    assert get_error(operation) is None


# --- invalid calls


def test_calls_without_transaction_fail_and_name_required_call() -> None:
    talk = Talk()
    calls: tuple[Callable[[], object], ...] = (
        talk.manager.require_transaction_number,
        talk.manager.prepare,
        lambda: talk.manager.send_offsets(OFFSETS, GROUP),
    )
    for call in calls:
        with pytest.raises(IllegalStateError, match=r"is 'uninitialized'\. Call init_transactions\(\) first"):
            call()
    talk.init()
    with pytest.raises(
        IllegalStateError, match=r"send\(\) requires an open .* is 'ready'\. Call begin_transaction\(\) first"
    ):
        talk.manager.require_transaction_number()


def test_init_after_fatal_error_raises_that_error() -> None:
    talk = Talk().started()
    talk.manager.commit()
    talk.manager.transition_to_fatal_error(KafkaSinkError("the disk is gone"))
    with pytest.raises(KafkaSinkError, match="the disk is gone"):
        talk.manager.init("two")


@pytest.mark.parametrize("call", ["begin", "commit", "abort"])
def test_call_before_init_raises_and_keeps_state(call: str) -> None:
    talk = Talk()
    calls: dict[str, Callable[[], object]] = {
        "begin": lambda: talk.manager.begin(1),
        "commit": talk.manager.commit,
        "abort": talk.manager.abort,
    }
    with pytest.raises(
        IllegalStateError, match=r"invalid transition from 'uninitialized' .* Call init_transactions\(\) first"
    ):
        calls[call]()
    assert talk.state() is S.UNINITIALIZED
    talk.init()
    assert talk.state() is S.READY


def test_second_begin_raises_and_keeps_transaction_open() -> None:
    talk = Talk(2).started()
    with pytest.raises(IllegalStateError, match=r"Call commit_transaction\(\) or abort_transaction\(\) first"):
        talk.manager.begin(2)
    assert talk.manager.admit_batch(T0, is_retry=False)


def test_rejects_records_during_commit() -> None:
    talk = Talk(2).started()
    talk.manager.commit()
    with pytest.raises(IllegalStateError, match=r"send\(\) is not possible, because the outcome of commit"):
        talk.manager.require_transaction_number()


@pytest.mark.parametrize("call", ["init", "commit", "abort"])
def test_only_the_same_call_is_allowed_while_outcome_is_unread(call: str) -> None:
    talk = Talk(2) if call == "init" else Talk(2).started()
    calls: dict[str, Callable[[], Operation]] = {
        "init": talk.manager.init,
        "commit": talk.manager.commit,
        "abort": talk.manager.abort,
    }
    first = calls[call]()
    end_txn = talk.send(EndTransaction) if call == "commit" else None
    others: list[Callable[[], object]] = [other for name, other in calls.items() if name != call]
    others.append(lambda: talk.manager.begin(2))
    for other in others:
        with pytest.raises(IllegalStateError, match=r"the outcome of .* is unknown"):
            other()
    assert calls[call]() is first
    if end_txn is not None:
        talk.reply(end_txn)
    talk.settle()
    assert first.done_event.is_set()
    assert calls[call]() is first  # also after the operation has ended
    with pytest.raises(IllegalStateError):
        talk.manager.begin(2)
    assert get_error(first) is None
    talk.manager.begin(2)


# --- records of calls that end late


def test_does_not_add_record_to_later_transaction() -> None:
    talk = Talk().begun()
    number = talk.manager.require_transaction_number()
    talk.commit()
    talk.manager.begin(talk.version)
    with pytest.raises(IllegalStateError, match=r"send\(\)"):
        talk.manager.require_transaction_number(number)
    assert talk.manager.require_transaction_number() != number


def test_adds_no_record_while_transaction_is_being_prepared() -> None:
    talk = Talk().begun()
    talk.manager.stop_accepting_records()
    with pytest.raises(IllegalStateError, match=r"send\(\)"):
        talk.manager.require_transaction_number()
