"""Checks that stop a starting driver if another driver of the query, or another query, owns the prefix.

A prefix is the name of a query or job. Its entry in the decision log names the drivers that have claimed the prefix. No
check changes anything in Kafka.
"""

from __future__ import annotations

from spark_kafka_sink.exactly_once import precommit_errors
from spark_kafka_sink.exactly_once.delivery import Delivery
from spark_kafka_sink.exactly_once.entries import Entry
from spark_kafka_sink.exactly_once.query_transactions import QueryTransactions
from spark_kafka_sink.requests.transaction_description import TransactionDescription


def check_not_overtaken(
    transactions: QueryTransactions, driver_name: str, description: TransactionDescription | None, entry: Entry
) -> None:
    """Raise ExactlyOnceError if another driver claimed the prefix between the description and the read of the log.

    `driver_name`: the name of the starting driver.
    `description`: the description of the driver id before the read; None if the brokers did not know the id.
    `entry`: the newest entry in the log, which contains the producer id and epoch of the newest claim.
    """
    is_claimed_by_other = entry.driver_name not in ("", driver_name)
    if not is_claimed_by_other or entry.is_unproven:
        return
    claim_producer_id, claim_epoch = entry.claim_identity
    if description is None:  # the brokers have forgotten the id, or it was created after the description
        current_description = transactions.describe_driver_id()
        is_overtaken = (
            current_description is not None and current_description.id_and_epoch.producer_id == claim_producer_id
        )
    else:
        producer_id, epoch = description.id_and_epoch
        is_overtaken = producer_id == claim_producer_id and epoch < claim_epoch
    if is_overtaken:
        raise precommit_errors.build_overtaken_error(entry, driver_name)


def check_may_begin(delivery: Delivery, driver_name: str, predecessor_name: str, entry: Entry) -> None:
    """Raise ExactlyOnceError if the prefix's newest entry shows that this driver must not begin a batch.

    `driver_name`: the name of the starting driver.
    `predecessor_name`: the newest driver when the starting driver first read the log. Any other driver has started
    since and may be writing, so the starting driver must not fence it.
    """
    if entry.has_superseded(driver_name):
        raise precommit_errors.build_superseded_error(entry, driver_name)
    if entry.driver_name not in (predecessor_name, driver_name):
        if not entry.driver_name:  # the entry with the predecessor's name is gone
            raise precommit_errors.build_log_lost_error(delivery.prefix, delivery.options.log_topic)
        raise precommit_errors.build_overtaken_error(entry, driver_name)
    if entry.writer_kind not in (None, delivery.writer_kind):
        raise precommit_errors.build_writer_kind_mismatch_error(entry)
    if delivery.checkpoint and entry.checkpoint and delivery.checkpoint != entry.checkpoint:
        raise precommit_errors.build_checkpoint_mismatch_error(entry, delivery.checkpoint)
