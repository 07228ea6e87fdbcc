"""Abort transactions that tasks have left open, and fence their ids, so that nothing more is written under them.

A transaction is ended under exactly the epoch that it was listed with. To request the next epoch of its id instead
would abort whatever is open now, since Kafka compares no epochs while a transaction is open; and ids are used again.

In version 2 the end of a transaction moves the epoch on, also where nothing has begun: it fences the attempt. In
version 1 it does not, so the id is fenced by InitProducerId afterwards, and its partitions get a marker of the next
epoch.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Sequence
from dataclasses import replace

from spark_kafka_sink.client.producer_ids import ProducerIdAndEpoch
from spark_kafka_sink.client.topic_partition import TopicPartition
from spark_kafka_sink.errors import BrokerError, KafkaSinkError
from spark_kafka_sink.exactly_once.timeout_marks import fenced_ms, says_fenced
from spark_kafka_sink.protocol import error_codes
from spark_kafka_sink.protocol.messages.add_partitions_to_txn import AddPartitionsToTxnResponse
from spark_kafka_sink.protocol.messages.init_producer_id import InitProducerIdResponse
from spark_kafka_sink.requests.blocking import BlockingClient
from spark_kafka_sink.requests.init_producer_id import InitProducerId, producer_id_and_epoch
from spark_kafka_sink.requests.transaction_admin import describe_transactions, end_transactions, rejections
from spark_kafka_sink.requests.transaction_description import COMPLETE_ABORT, EMPTY, TransactionDescription
from spark_kafka_sink.requests.transaction_identity import TransactionIdentity
from spark_kafka_sink.requests.transactions import AddPartitions, partition_error_codes
from spark_kafka_sink.requests.verdicts import OWNERSHIP_LOST_ERRORS, Verdict

_log = logging.getLogger(__name__)

_NO_PRODUCER = ProducerIdAndEpoch(2**62, 0)
"""No producer has this id."""


def can_write(description: TransactionDescription) -> bool:
    """Is it open, or given to somebody who has begun nothing yet?"""
    if description.state == EMPTY:
        return not says_fenced(description.timeout_ms)
    return description.is_open


def expected_identity(described: TransactionDescription | None) -> ProducerIdAndEpoch:
    """Return what a request for the next epoch of an id expects. `described`: None for an id that brokers do not know.

    If the first record of an id could not be written, brokers know its producer id and no epoch. They reject such a
    half identity as an invalid request, and accept any whole one as long as the id has no epoch. Once it has one, they
    reject that of no producer.
    """
    return _NO_PRODUCER if described is None or described.id_and_epoch.epoch < 0 else described.id_and_epoch


def abort_listed(
    client: BlockingClient, listed: Sequence[TransactionDescription], timeout_ms: float | None = None
) -> None:
    """Abort exactly these transactions, and fence their ids: those that were listed as open, or as given to a producer
    that has begun nothing. What has begun since, under a newer epoch, is left alone.

    `timeout_ms`: how long each step may make no progress; the client's timeout by default.
    """
    version = client.transaction_version
    if version < 2:
        listed = _with_added_partitions(client, listed, timeout_ms)
    endable = listed if version >= 2 else [each for each in listed if each.is_open]
    identities = [TransactionIdentity(each.transactional_id, *each.id_and_epoch, version) for each in endable]
    rejected = end_transactions(client, identities, commit=False, timeout_ms=timeout_ms)
    _warn("a transaction could not be aborted", rejected.values())
    if version < 2:
        ended = [each for each in listed if each.transactional_id not in rejected]
        _fence_in_version_1(client, ended, timeout_ms)


def _with_added_partitions(
    client: BlockingClient, listed: Sequence[TransactionDescription], timeout_ms: float | None
) -> Sequence[TransactionDescription]:
    """Return what was listed, with the partitions that were added since. What has another epoch now stays as it was.

    If a coordinator does not respond, everything stays as it was, so that the transactions of the others end at once.
    """
    try:
        current = describe_transactions(client, [each.transactional_id for each in listed], timeout_ms)
    except KafkaSinkError as error:
        _log.warning("transactions that are to be aborted could not be described again: %s", error)
        return listed
    return [_with_added(each, current.get(each.transactional_id)) for each in listed]


def _fence_in_version_1(
    client: BlockingClient, ended: Sequence[TransactionDescription], timeout_ms: float | None
) -> None:
    """Fence the ids that still have the epoch under which they were listed.

    An end does not fence in version 1, and a transaction that has begun nothing cannot be ended. So the next epoch is
    requested, with a timeout that marks the id as fenced, until the coordinator responds: CONCURRENT_TRANSACTIONS may
    mean the attempt's own first request as well. The coordinator would abort what another attempt has begun between
    the description and this request.

    That alone does not stop a task that has added its partitions already: leaders before Kafka 3.6 verify no
    transaction with its coordinator, and would accept what the task still sends, which no marker ends. So these
    partitions get a marker of the next epoch as well. What a task adds between the end and the fence is aborted by the
    fence, which is rejected then: such an id is fenced once more.
    """
    current = describe_transactions(client, [each.transactional_id for each in ended], timeout_ms)
    unchanged = [
        each
        for each in ended
        if each.transactional_id in current and current[each.transactional_id].id_and_epoch == each.id_and_epoch
    ]
    responses = _fence(client, unchanged, timeout_ms)
    responses |= _fence(client, _aborted_by_fences(client, unchanged, responses, timeout_ms), timeout_ms)
    _fence_at_leaders(client, [each for each in unchanged if each.is_open], responses, timeout_ms)


def _aborted_by_fences(
    client: BlockingClient,
    fenced: Sequence[TransactionDescription],
    responses: dict[str, InitProducerIdResponse],
    timeout_ms: float | None,
) -> list[TransactionDescription]:
    """Return the ids that had a transaction open when their fence came, as they are now: under the next epoch, with
    nothing begun."""
    expected = {
        each.transactional_id: each.id_and_epoch._replace(epoch=each.id_and_epoch.epoch + 1)
        for each in fenced
        if responses[each.transactional_id].error_code in OWNERSHIP_LOST_ERRORS
    }
    current = describe_transactions(client, expected, timeout_ms)
    return [
        each for name, each in current.items() if each.state == COMPLETE_ABORT and each.id_and_epoch == expected[name]
    ]


def _fence(
    client: BlockingClient, described: Sequence[TransactionDescription], timeout_ms: float | None
) -> dict[str, InitProducerIdResponse]:
    fences = [
        InitProducerId(each.transactional_id, fenced_ms(each.timeout_ms), expected_identity(each)) for each in described
    ]
    responses = client.send_all(fences, timeout_ms)
    _warn("an attempt that may still write could not be fenced", rejections(fences, responses).values())
    return responses


def _fence_at_leaders(
    client: BlockingClient,
    ended: Sequence[TransactionDescription],
    responses: dict[str, InitProducerIdResponse],
    timeout_ms: float | None,
) -> None:
    """Abort an empty transaction of the next epoch in the partitions that each of these had."""
    additions: list[_AddExistingPartitions] = []
    for each in ended:
        response = responses.get(each.transactional_id)
        if response is not None and response.error_code == error_codes.NONE:
            following = TransactionIdentity(each.transactional_id, *producer_id_and_epoch(response), version=1)
            partitions = frozenset(TopicPartition(*partition) for partition in each.partitions)
            additions.append(_AddExistingPartitions(following, partitions))
    added = client.send_all(additions, timeout_ms)
    fewer = [each.without_unknown(added[each.transaction.transactional_id]) for each in additions]
    client.send_all([each for each in fewer if each is not None], timeout_ms)
    end_transactions(client, [each.transaction for each in additions], commit=False, timeout_ms=timeout_ms)


class _AddExistingPartitions(AddPartitions):
    """Brokers reject the whole request if they do not know one of its partitions, however often it is sent: the topic
    was deleted."""

    verdicts = AddPartitions.verdicts | {error_codes.UNKNOWN_TOPIC_OR_PARTITION: Verdict.ABORTABLE}

    def without_unknown(self, response: AddPartitionsToTxnResponse) -> _AddExistingPartitions | None:
        """Return the request without the unknown partitions. None if nothing is left, or nothing is unknown."""
        codes = partition_error_codes(response)
        existing = frozenset(
            each for each in self.partitions if codes.get(each) != error_codes.UNKNOWN_TOPIC_OR_PARTITION
        )
        if not existing or existing == self.partitions:
            return None
        return _AddExistingPartitions(self.transaction, existing)


def _with_added(listed: TransactionDescription, current: TransactionDescription | None) -> TransactionDescription:
    """Return the id as it was listed; if it is open under the same epoch, with all partitions that it had or has."""
    if current is None or not current.is_open or current.id_and_epoch != listed.id_and_epoch:
        return listed
    return replace(current, topics=listed.topics + current.topics)


def _warn(context: str, rejected: Iterable[BrokerError]) -> None:
    """Warn of rejections with any other cause than that the id has another epoch or owner by now."""
    for error in rejected:
        if error.code not in OWNERSHIP_LOST_ERRORS:
            _log.warning("%s: %s", context, error)
