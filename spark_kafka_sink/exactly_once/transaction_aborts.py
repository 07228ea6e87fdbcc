"""Aborts of transactions that tasks have left open, and fencing of their ids, so that nothing more can be written.

A driver lists the transactions of its query's tasks, and calls `abort_transactions` with their descriptions. Each
transaction is aborted by an EndTxn request under the epoch that it had when it was listed. Tasks reuse transactional
ids, so a newer transaction may have begun under the same id. EndTxn does not affect it, because its epoch is newer.
InitProducerId could abort it, because Kafka does not compare epochs while a transaction is open.

To fence an id is to give it a new epoch, so that brokers reject the task attempt that still uses the old one. How this
is done depends on the transaction version:

    version 2 (KIP-890)    EndTxn itself bumps the epoch, even if no transaction has begun.
    version 1              EndTxn does not bump the epoch, so InitProducerId follows. It also sets a transaction timeout
                           that marks the id as fenced (timeout_marks.py). Leaders before Kafka 3.6 may still accept
                           late records, so the transaction's partitions also get a marker with the next epoch.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Sequence
from dataclasses import replace

from spark_kafka_sink.client.producer_ids import UNUSED_IDENTITY, ProducerIdAndEpoch
from spark_kafka_sink.client.topic_partition import TopicPartition
from spark_kafka_sink.errors import BrokerError, KafkaSinkError
from spark_kafka_sink.exactly_once.timeout_marks import compute_task_fenced_timeout_ms, is_marked_fenced
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
    """Return whether the task with this transactional id has an open transaction, or may still begin one.

    It cannot begin one if a driver has fenced the id. The mark in the id's transaction timeout shows this
    (timeout_marks.py).
    """
    if description.state == EMPTY:
        return not is_marked_fenced(description.timeout_ms)
    return description.is_open


def choose_expected_identity(description: TransactionDescription | None) -> ProducerIdAndEpoch:
    """Return the producer id and epoch to name as the current ones in a request for a transactional id's next epoch.

    `description`: the description of the transactional id; None if the brokers do not know the id.
    """
    # If a coordinator could not write an id's first record, it knows the id's producer id, but no epoch. It rejects a
    # request that names a producer id without an epoch, so name a complete identity. It accepts any such identity as
    # long as the id has no epoch. UNUSED_IDENTITY belongs to no producer, so it is rejected once the id has an epoch.
    if description is None or description.id_and_epoch.epoch < 0:
        return UNUSED_IDENTITY
    return description.id_and_epoch


def abort_transactions(
    client: BlockingClient, descriptions: Sequence[TransactionDescription], timeout_ms: float | None = None
) -> dict[str, BrokerError]:
    """Abort exactly these transactions, and fence their transactional ids, so that their producers cannot write again.

    Transactions that have since begun under a newer epoch are not affected. Rejected requests are logged. Return their
    errors by transactional id: these transactions may still be open, or their producers may still begin one. Ids that
    another producer has taken over are omitted, because nothing is left to abort or fence there.

    `descriptions`: the open transactions, and the transactional ids whose producers have not begun one yet.
    `timeout_ms`: how long each step may go without progress; defaults to the client's timeout.
    """
    version = client.transaction_version  # read once, because an upgrade may change it between the requests below
    if version >= 2:
        # Send EndTxn for ids without a transaction, too. It bumps their epochs, which fences their producers.
        return _omit_lost_ownership(_send_aborts(client, descriptions, version, timeout_ms))
    # In version 1, each partition of these transactions gets another marker below, including partitions that a producer
    # has added since its transaction was listed.
    descriptions = _refresh_partitions(client, descriptions, timeout_ms)
    open_descriptions = [description for description in descriptions if description.is_open]
    abort_errors = _send_aborts(client, open_descriptions, version, timeout_ms)
    ended_descriptions = [
        description for description in descriptions if description.transactional_id not in abort_errors
    ]
    fence_errors = _fence_in_version_1(client, ended_descriptions, timeout_ms)
    return _omit_lost_ownership(abort_errors | fence_errors)


def _send_aborts(
    client: BlockingClient, descriptions: Sequence[TransactionDescription], version: int, timeout_ms: float | None
) -> dict[str, BrokerError]:
    """Abort these transactions with EndTxn. Log rejections, and return their errors by transactional id.

    `version`: the transaction version, which determines the form of the requests.
    """
    transactions = [
        TransactionIdentity(description.transactional_id, *description.id_and_epoch, version)
        for description in descriptions
    ]
    errors_by_id = end_transactions(client, transactions, commit=False, timeout_ms=timeout_ms)
    _log_rejections("Could not abort a transaction", errors_by_id.values())
    return errors_by_id


def _refresh_partitions(
    client: BlockingClient, descriptions: Sequence[TransactionDescription], timeout_ms: float | None
) -> Sequence[TransactionDescription]:
    """Return the descriptions, including partitions that were added to the transactions after they were listed.

    If a transaction has ended or has a new epoch, return its old description. If any coordinator does not respond,
    return all of the old descriptions, so that the transactions on the other coordinators can be ended without delay.
    """
    try:
        current_by_id = describe_transactions(
            client, [description.transactional_id for description in descriptions], timeout_ms
        )
    except KafkaSinkError as error:
        _log.warning("Could not describe the transactions again before aborting them: %s", error)
        return descriptions
    return [
        _merge_partitions(description, current_by_id.get(description.transactional_id)) for description in descriptions
    ]


def _merge_partitions(
    description: TransactionDescription, current_description: TransactionDescription | None
) -> TransactionDescription:
    """Return the current description of a transaction, with the partitions of an older description added.

    If that transaction is no longer open, return the older description unchanged.
    """
    if (
        current_description is None
        or not current_description.is_open
        or current_description.id_and_epoch != description.id_and_epoch
    ):
        return description
    return replace(current_description, topics=description.topics + current_description.topics)


def _fence_in_version_1(
    client: BlockingClient, ended_descriptions: Sequence[TransactionDescription], timeout_ms: float | None
) -> dict[str, BrokerError]:
    """Fence those transactional ids whose epoch has not changed since they were listed.

    Return the errors of rejected requests by transactional id.

    `ended_descriptions`: the listed transactions, which EndTxn has ended, and the listed ids without a transaction.
    """
    # In version 1, EndTxn does not fence an id, and there is nothing to end for an id without a transaction. Request
    # the next epoch with InitProducerId instead, with a timeout that marks the id as fenced. If another attempt begins
    # a transaction between this description and InitProducerId, the coordinator aborts that transaction.
    current_by_id = describe_transactions(
        client, [description.transactional_id for description in ended_descriptions], timeout_ms
    )
    unchanged_descriptions = [
        description
        for description in ended_descriptions
        if description.transactional_id in current_by_id
        and current_by_id[description.transactional_id].id_and_epoch == description.id_and_epoch
    ]
    responses, errors_by_id = _send_fences(client, unchanged_descriptions, timeout_ms)
    # If a task adds partitions between EndTxn and InitProducerId, InitProducerId aborts that transaction, but is itself
    # rejected. Send it again for such an id, to mark the id and to learn the epoch for the markers.
    aborted_descriptions = _find_transactions_aborted_despite_rejection(
        client, unchanged_descriptions, responses, timeout_ms
    )
    repeated_responses, repeated_errors = _send_fences(client, aborted_descriptions, timeout_ms)
    responses |= repeated_responses
    # The new epoch does not stop a task that has already added its partitions, because leaders before Kafka 3.6 do not
    # verify transactions with the coordinator. They would accept late records from the task, and no marker would ever
    # end the transaction of these records. Therefore, write a marker with the next epoch to these partitions.
    ended_transactions = [description for description in unchanged_descriptions if description.is_open]
    _fence_at_leaders(client, ended_transactions, responses, timeout_ms)
    return errors_by_id | repeated_errors


def _find_transactions_aborted_despite_rejection(
    client: BlockingClient,
    fenced_descriptions: Sequence[TransactionDescription],
    responses: dict[str, InitProducerIdResponse],
    timeout_ms: float | None,
) -> list[TransactionDescription]:
    """Return the current descriptions of transactions that were aborted although InitProducerId was rejected.

    InitProducerId can abort a transaction and still be rejected:

        1. Just before the request arrives, the task begins another transaction under the same epoch.
        2. Kafka aborts this transaction, bumps the epoch, and tells the client to retry the request.
        3. The retry names the epoch before the bump, and is rejected.

    The epoch is then one higher, and the state is CompleteAbort. The state also shows that no transaction has begun
    since.

    `fenced_descriptions`: the descriptions of the ids for which InitProducerId was sent.
    `responses`: the responses by transactional id.
    """
    expected_identities = {
        description.transactional_id: description.id_and_epoch.with_next_epoch()
        for description in fenced_descriptions
        if responses[description.transactional_id].error_code in OWNERSHIP_LOST_ERRORS
    }
    current_descriptions = describe_transactions(client, list(expected_identities), timeout_ms)
    return [
        description
        for transactional_id, description in current_descriptions.items()
        if description.state == COMPLETE_ABORT and description.id_and_epoch == expected_identities[transactional_id]
    ]


def _send_fences(
    client: BlockingClient, descriptions: Sequence[TransactionDescription], timeout_ms: float | None
) -> tuple[dict[str, InitProducerIdResponse], dict[str, BrokerError]]:
    """Request the next epoch for each transactional id, to fence its producer.

    Return the responses, and the errors of rejected requests, by transactional id. Each request also sets a transaction
    timeout that marks the id as fenced (timeout_marks.py), so that the next batch does not fence it again. Rejections
    are logged.
    """
    fence_requests = [
        InitProducerId(
            description.transactional_id,
            timeout_ms=compute_task_fenced_timeout_ms(description.timeout_ms),
            current_id_and_epoch=choose_expected_identity(description),
        )
        for description in descriptions
    ]
    # send_all() retries CONCURRENT_TRANSACTIONS. This is intended: the error may only mean that the task's own first
    # request is still in progress.
    responses = client.send_all(fence_requests, timeout_ms)
    errors_by_id = collect_rejection_errors(fence_requests, responses)
    _log_rejections("Could not fence a task attempt, which may therefore still write", errors_by_id.values())
    return responses, errors_by_id


def _fence_at_leaders(
    client: BlockingClient,
    ended_transactions: Sequence[TransactionDescription],
    fence_responses: dict[str, InitProducerIdResponse],
    timeout_ms: float | None,
) -> None:
    """Make the leaders of the ended transactions' partitions reject late records of the fenced producers.

    For each fenced id, begin and abort an empty transaction under the next epoch, on the same partitions. Its abort
    markers contain the next epoch, so the leaders then reject records with the previous epoch.

    `fence_responses`: the InitProducerId responses, which contain the next epochs, by transactional id.
    """
    add_requests: list[_AddExistingPartitions] = []
    for description in ended_transactions:
        response = fence_responses.get(description.transactional_id)
        if response is not None and response.error_code == error_codes.NONE:
            next_identity = parse_producer_id_and_epoch(response)
            transaction = TransactionIdentity(description.transactional_id, *next_identity, version=1)
            partitions = frozenset(TopicPartition(*partition) for partition in description.partitions)
            add_requests.append(_AddExistingPartitions(transaction, partitions))
    add_responses = client.send_all(add_requests, timeout_ms)
    retries = [
        request.build_retry_without_unknown_partitions(add_responses[request.transaction.transactional_id])
        for request in add_requests
    ]
    # The responses are ignored, because nothing else can be done for a partition that cannot be added.
    client.send_all([retry for retry in retries if retry is not None], timeout_ms)
    transactions = [request.transaction for request in add_requests]
    end_transactions(client, transactions, commit=False, timeout_ms=timeout_ms)


class _AddExistingPartitions(AddPartitions):
    """Add partitions to a transaction. Some of the partitions may belong to a topic that was deleted.

    Brokers reject the whole request if they do not know one of its partitions, so it must not be retried unchanged.
    """

    verdicts = AddPartitions.verdicts | {error_codes.UNKNOWN_TOPIC_OR_PARTITION: Verdict.ABORTABLE}

    def build_retry_without_unknown_partitions(
        self, response: AddPartitionsToTxnResponse
    ) -> _AddExistingPartitions | None:
        """Return a request without the partitions that brokers do not know, because their topics were deleted.

        Return None if a retry is of no use, because brokers know all of the partitions, or none of them.
        """
        codes_by_partition = parse_partition_error_codes(response)
        existing_partitions = frozenset(
            partition
            for partition in self.partitions
            if codes_by_partition.get(partition) != error_codes.UNKNOWN_TOPIC_OR_PARTITION
        )
        if not existing_partitions or existing_partitions == self.partitions:
            return None
        return _AddExistingPartitions(self.transaction, existing_partitions)


def _log_rejections(context: str, errors: Iterable[BrokerError]) -> None:
    """Log rejections, except for ids that another producer has taken over. Nothing is left to abort or fence there.

    `context`: the beginning of the message.
    """
    for error in errors:
        if error.code not in OWNERSHIP_LOST_ERRORS:
            _log.warning("%s: %s", context, error)


def _omit_lost_ownership(errors_by_id: dict[str, BrokerError]) -> dict[str, BrokerError]:
    """Return the errors, except for ids that another producer has taken over."""
    return {
        transactional_id: error
        for transactional_id, error in errors_by_id.items()
        if error.code not in OWNERSHIP_LOST_ERRORS
    }
