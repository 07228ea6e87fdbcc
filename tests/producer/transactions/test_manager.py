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


def test_init_carries_the_transactional_id_and_the_timeout_and_no_producer_id() -> None:
    talk = Talk()
    talk.manager.init()
    message = talk.answer(InitProducerId).build_message(4)
    assert message == InitProducerIdRequest(transactional_id="x", transaction_timeout_ms=60_000)


def test_the_coordinator_is_looked_up_in_the_layout_of_the_brokers_version() -> None:
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


def test_one_request_is_under_way_at_a_time() -> None:
    talk = Talk()
    talk.manager.init()
    talk.send()
    assert talk.next() is None


def test_a_request_stays_due_until_it_was_sent() -> None:
    talk = Talk().init()
    talk.manager.begin(1)
    talk.manager.admit_batch(T0, is_retry=False)
    assert talk.due().build_message(3) == talk.due().build_message(3)


def test_a_producer_that_is_ready_may_initialise_again_under_another_id() -> None:
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
def test_a_response_about_the_id_before_does_not_initialise_the_producer(code: int) -> None:
    talk, request = requesting_an_epoch_after_an_empty_prepare()
    operation = talk.manager.init("y")
    talk.reply(request, code)
    assert not operation.done_event.is_set()
    talk.settle()
    assert get_error(operation) is None
    assert talk.manager.id_and_epoch == talk.id_and_epoch


def test_a_response_about_the_id_before_leaves_a_transaction_that_was_taken_over() -> None:
    talk, request = requesting_an_epoch_after_an_empty_prepare()
    prepared = TransactionIdentity("y", 80, 5, 1)
    talk.manager.take_over(prepared)
    talk.reply(request)
    assert talk.manager.id_and_epoch == prepared.id_and_epoch
    talk.commit()
    assert talk.asked[-1] is EndTransaction


def test_a_transaction_is_taken_over_without_the_epoch_that_another_id_has_not_requested_yet() -> None:
    talk = Talk(1).started().commit()
    talk.manager.begin(2)
    assert talk.manager.prepare() is None
    talk.manager.take_over(TransactionIdentity("y", 80, 5, 1))
    assert talk.next() is None
    talk.commit()
    assert talk.asked[-1] is EndTransaction


# --- commit and abort


@BOTH
def test_nothing_is_admitted_before_init_and_before_begin(version: int) -> None:
    talk = Talk(version)
    assert not talk.manager.admit_batch(T0, is_retry=False)
    talk.init()
    assert not talk.manager.admit_batch(T0, is_retry=False)
    assert talk.next() is None


def test_in_version_1_partitions_are_added_before_their_batches_may_leave() -> None:
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


def test_in_version_1_a_partition_that_comes_later_is_added_by_itself() -> None:
    talk = Talk(1).started(T0)
    talk.manager.admit_batch(T1, is_retry=False)
    assert adding(talk.answer(AddPartitions)) == {T1}
    assert talk.manager.admit_batch(T1, is_retry=False)


def test_in_version_2_what_is_written_adds_its_partition() -> None:
    talk = Talk(2).begun()
    assert talk.manager.admit_batch(T0, is_retry=False)
    assert talk.next() is None


@BOTH
@pytest.mark.parametrize("commit", [True, False])
def test_the_end_is_asked_for_when_no_record_is_on_its_way(version: int, commit: bool) -> None:
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


def test_in_version_1_the_epoch_stays_and_the_end_is_version_4_at_most() -> None:
    talk = Talk(1).started()
    talk.manager.commit()
    assert talk.answer(EndTransaction).versions == VersionRange(0, 4)
    assert talk.manager.id_and_epoch == initial(talk)


def test_in_version_2_each_end_brings_the_epoch_to_go_on_with() -> None:
    talk = Talk(2).started()
    talk.manager.commit()
    versions = talk.answer(EndTransaction).versions
    assert versions is not None
    assert versions.min == 5
    assert talk.manager.id_and_epoch == ProducerIdAndEpoch(70, initial(talk).epoch + 1)


def test_in_version_2_an_end_after_the_last_epoch_brings_another_producer_id() -> None:
    talk = Talk(2).started()
    talk.manager.commit()
    talk.respond(talk.send(EndTransaction), EndTxnResponse(producer_id=71, producer_epoch=0))
    assert talk.manager.id_and_epoch == ProducerIdAndEpoch(71, 0)


@BOTH
def test_no_batch_is_admitted_once_the_end_was_asked_for(version: int) -> None:
    talk = Talk(version).started()
    talk.manager.commit()
    assert talk.manager.admit_batch(T0, is_retry=False)  # the last batches before the end
    talk.send(EndTransaction)
    assert not talk.manager.admit_batch(T0, is_retry=False)


def test_an_abort_takes_no_new_batches_and_lets_those_end_that_were_sent() -> None:
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


def test_partitions_that_wait_are_added_before_a_commit_ends_the_transaction() -> None:
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


def test_the_version_is_decided_anew_by_each_begin() -> None:
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


def test_a_version_that_is_not_known_leaves_the_one_before() -> None:
    talk = Talk(2).started().commit()
    talk.manager.begin(None)
    assert talk.manager.admit_batch(T0, is_retry=False)


# --- handover between processes


@BOTH
def test_a_prepared_transaction_stays_open_and_says_how_to_end_it(version: int) -> None:
    talk = Talk(version).started()
    prepared = talk.manager.prepare()
    assert prepared == TransactionIdentity("x", *initial(talk), version)
    assert talk.state() is S.PREPARED
    assert not talk.manager.has_abortable_transaction
    assert talk.next() is None
    assert not talk.manager.admit_batch(T0, is_retry=False)


def test_the_producer_that_prepared_may_also_end_it_itself() -> None:
    talk = Talk(2).started()
    talk.manager.prepare()
    operation = talk.manager.commit()
    talk.answer(EndTransaction)
    assert get_error(operation) is None


# --- invalid calls


def test_calls_that_need_a_transaction_say_what_to_call_first() -> None:
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


def test_a_producer_that_cannot_go_on_says_why_whatever_id_it_is_asked_for() -> None:
    talk = Talk().started()
    talk.manager.commit()
    talk.manager.transition_to_fatal_error(KafkaSinkError("the disk is gone"))
    with pytest.raises(KafkaSinkError, match="the disk is gone"):
        talk.manager.init("two")


@pytest.mark.parametrize("call", ["begin", "commit", "abort"])
def test_an_illegal_call_raises_and_changes_nothing(call: str) -> None:
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


def test_a_second_begin_is_refused_and_the_transaction_goes_on() -> None:
    talk = Talk(2).started()
    with pytest.raises(IllegalStateError, match=r"Call commit_transaction\(\) or abort_transaction\(\) first"):
        talk.manager.begin(2)
    assert talk.manager.admit_batch(T0, is_retry=False)


def test_sending_is_refused_while_the_transaction_ends() -> None:
    talk = Talk(2).started()
    talk.manager.commit()
    with pytest.raises(IllegalStateError, match=r"send\(\) is not possible, because the outcome of commit"):
        talk.manager.require_transaction_number()


@pytest.mark.parametrize("call", ["init", "commit", "abort"])
def test_a_call_whose_time_was_up_may_only_be_repeated_and_then_returns_the_first_ones_result(call: str) -> None:
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
