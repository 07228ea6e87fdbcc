"""Aborts transactions that tasks have left open, and fences their transactional ids against further writes.

A transaction is ended under exactly the epoch that it was listed with. InitProducerId could not replace this: Kafka
does not compare epochs while a transaction is open, and ids are reused, so the request would abort whatever is open
now.

In version 2, EndTxn bumps the epoch, even if no transaction has begun, and so fences the attempt. In version 1 it does
not. There the id is fenced by InitProducerId afterwards, and its partitions get a marker of the next epoch.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Sequence
from dataclasses import replace

from spark_kafka_sink.client.producer_ids import UNUSED_IDENTITY, ProducerIdAndEpoch
from spark_kafka_sink.client.topic_partition import TopicPartition
from spark_kafka_sink.errors import BrokerError, KafkaSinkError
from spark_kafka_sink.exactly_once.timeout_marks import is_marked_fenced, mark_fenced
from spark_kafka_sink.protocol import error_codes
from spark_kafka_sink.protocol.messages.add_partitions_to_txn import AddPartitionsToTxnResponse
from spark_kafka_sink.protocol.messages.init_producer_id import InitProducerIdResponse
from spark_kafka_sink.requests.blocking import BlockingClient
from spark_kafka_sink.requests.init_producer_id import InitProducerId, parse_producer_id_and_epoch
from spark_kafka_sink.requests.transaction_admin import (
    collect_rejection_errors,
    describe_transactions,
    end_transactions,
)
from spark_kafka_sink.requests.transaction_description import COMPLETE_ABORT, EMPTY, TransactionDescription
from spark_kafka_sink.requests.transaction_identity import TransactionIdentity
from spark_kafka_sink.requests.transactions import AddPartitions, parse_partition_error_codes
from spark_kafka_sink.requests.verdicts import OWNERSHIP_LOST_ERRORS, Verdict

_log = logging.getLogger(__name__)


def can_write(description: TransactionDescription) -> bool:
    """Return whether a transaction is open, or a producer that owns the id may still begin one."""
    if description.state == EMPTY:
        return not is_marked_fenced(description.timeout_ms)
    return description.is_open


def choose_expected_identity(description: TransactionDescription | None) -> ProducerIdAndEpoch:
    """Return the identity that a request for the next epoch must expect. None: the brokers do not know the id.

    If the first record of an id could not be written, brokers know its producer id and no epoch. They reject such a
    partial identity as an invalid request, and accept any complete one as long as the id has no epoch. Once it has an
    epoch, they reject the identity of a producer that does not exist.
    """
    if description is None or description.id_and_epoch.epoch < 0:
        return UNUSED_IDENTITY
    return description.id_and_epoch


def abort_transactions(
    client: BlockingClient, descriptions: Sequence[TransactionDescription], timeout_ms: float | None = None
) -> None:
    """Abort exactly these transactions and fence their ids.

    `descriptions`: the open transactions, and the ids whose producers have not begun a transaction. Transactions that
    have begun since under a newer epoch are not affected. `timeout_ms`: the maximum time without progress of each step;
    defaults to the client's timeout.
    """
    version = client.transaction_version
    if version < 2:
        descriptions = _refresh_partitions(client, descriptions, timeout_ms)
    endable_descriptions = (
        descriptions if version >= 2 else [description for description in descriptions if description.is_open]
    )
    transactions = [
        TransactionIdentity(description.transactional_id, *description.id_and_epoch, version)
        for description in endable_descriptions
    ]
    rejections = end_transactions(client, transactions, commit=False, timeout_ms=timeout_ms)
    _log_rejections("Could not abort a transaction", rejections.values())
    if version < 2:
        ended_descriptions = [
            description for description in descriptions if description.transactional_id not in rejections
        ]
        _fence_in_version_1(client, ended_descriptions, timeout_ms)


def _refresh_partitions(
    client: BlockingClient, descriptions: Sequence[TransactionDescription], timeout_ms: float | None
) -> Sequence[TransactionDescription]:
    """Return the listed transactions with the partitions that were added since.

    A transaction that has another epoch now is returned unchanged. If a coordinator does not respond, all are returned
    unchanged, so that the transactions of the other coordinators end at once.
    """
    try:
        current = describe_transactions(
            client, [description.transactional_id for description in descriptions], timeout_ms
        )
    except KafkaSinkError as error:
        _log.warning("Could not describe the transactions to abort again: %s", error)
        return descriptions
    return [_merge_partitions(description, current.get(description.transactional_id)) for description in descriptions]


def _merge_partitions(
    description: TransactionDescription, current: TransactionDescription | None
) -> TransactionDescription:
    """Return the listing unchanged, or the current state with all partitions of both if the epoch is the same."""
    if current is None or not current.is_open or current.id_and_epoch != description.id_and_epoch:
        return description
    return replace(current, topics=description.topics + current.topics)


def _fence_in_version_1(
    client: BlockingClient, ended_descriptions: Sequence[TransactionDescription], timeout_ms: float | None
) -> None:
    """Fence the ids that still have the epoch under which they were listed.

    In version 1, EndTxn does not fence, and an id without a transaction cannot be ended. So InitProducerId requests the
    next epoch, with a timeout that marks the id as fenced, until the coordinator responds: CONCURRENT_TRANSACTIONS may
    also mean that the attempt's own first request is in progress. If another attempt has begun a transaction between
    the description and this request, the coordinator aborts that.

    The new epoch does not stop a task that has added its partitions already: leaders before Kafka 3.6 do not verify
    transactions with the coordinator, and would accept late records of the task, which no marker ends. So these
    partitions get a marker of the next epoch as well. If a task adds partitions between EndTxn and InitProducerId,
    InitProducerId aborts them and is rejected; such an id is fenced once more.
    """
    current = describe_transactions(
        client, [description.transactional_id for description in ended_descriptions], timeout_ms
    )
    unchanged_descriptions = [
        description
        for description in ended_descriptions
        if description.transactional_id in current
        and current[description.transactional_id].id_and_epoch == description.id_and_epoch
    ]
    responses = _send_fences(client, unchanged_descriptions, timeout_ms)
    responses |= _send_fences(
        client, _find_aborted_by_fences(client, unchanged_descriptions, responses, timeout_ms), timeout_ms
    )
    _fence_at_leaders(
        client, [description for description in unchanged_descriptions if description.is_open], responses, timeout_ms
    )


def _find_aborted_by_fences(
    client: BlockingClient,
    fenced_descriptions: Sequence[TransactionDescription],
    responses: dict[str, InitProducerIdResponse],
    timeout_ms: float | None,
) -> list[TransactionDescription]:
    """Return the ids whose InitProducerId request has aborted an open transaction and was rejected.

    The descriptions are current: the id has the next epoch, and no transaction has begun under it.
    """
    expected = {
        description.transactional_id: description.id_and_epoch._replace(epoch=description.id_and_epoch.epoch + 1)
        for description in fenced_descriptions
        if responses[description.transactional_id].error_code in OWNERSHIP_LOST_ERRORS
    }
    current = describe_transactions(client, expected, timeout_ms)
    return [
        description
        for name, description in current.items()
        if description.state == COMPLETE_ABORT and description.id_and_epoch == expected[name]
    ]


def _send_fences(
    client: BlockingClient, descriptions: Sequence[TransactionDescription], timeout_ms: float | None
) -> dict[str, InitProducerIdResponse]:
    fences = [
        InitProducerId(
            description.transactional_id, mark_fenced(description.timeout_ms), choose_expected_identity(description)
        )
        for description in descriptions
    ]
    responses = client.send_all(fences, timeout_ms)
    _log_rejections(
        "Could not fence a task attempt that may still write", collect_rejection_errors(fences, responses).values()
    )
    return responses


def _fence_at_leaders(
    client: BlockingClient,
    ended_descriptions: Sequence[TransactionDescription],
    responses: dict[str, InitProducerIdResponse],
    timeout_ms: float | None,
) -> None:
    """Abort an empty transaction of the next epoch in all partitions of the ended transactions.

    The leaders then have a marker of that epoch and reject records of the previous one.
    """
    additions: list[_AddExistingPartitions] = []
    for description in ended_descriptions:
        response = responses.get(description.transactional_id)
        if response is not None and response.error_code == error_codes.NONE:
            next_identity = parse_producer_id_and_epoch(response)
            transaction = TransactionIdentity(description.transactional_id, *next_identity, version=1)
            partitions = frozenset(TopicPartition(*partition) for partition in description.partitions)
            additions.append(_AddExistingPartitions(transaction, partitions))
    added = client.send_all(additions, timeout_ms)
    retries = [
        addition.remove_unknown_partitions(added[addition.transaction.transactional_id]) for addition in additions
    ]
    client.send_all([retry for retry in retries if retry is not None], timeout_ms)
    transactions = [addition.transaction for addition in additions]
    end_transactions(client, transactions, commit=False, timeout_ms=timeout_ms)


class _AddExistingPartitions(AddPartitions):
    """Add partitions to a transaction, some of which may belong to a deleted topic.

    Brokers reject the whole request if they do not know a partition, so it is not retried with the same partitions.
    """

    verdicts = AddPartitions.verdicts | {error_codes.UNKNOWN_TOPIC_OR_PARTITION: Verdict.ABORTABLE}

    def remove_unknown_partitions(self, response: AddPartitionsToTxnResponse) -> _AddExistingPartitions | None:
        """Return the request without the unknown partitions. None if all or none of the partitions are unknown."""
        codes = parse_partition_error_codes(response)
        existing = frozenset(
            partition for partition in self.partitions if codes.get(partition) != error_codes.UNKNOWN_TOPIC_OR_PARTITION
        )
        if not existing or existing == self.partitions:
            return None
        return _AddExistingPartitions(self.transaction, existing)


def _log_rejections(context: str, errors: Iterable[BrokerError]) -> None:
    """Log rejections, except those which mean that the id has another epoch or owner by now."""
    for error in errors:
        if error.code not in OWNERSHIP_LOST_ERRORS:
            _log.warning("%s: %s", context, error)
