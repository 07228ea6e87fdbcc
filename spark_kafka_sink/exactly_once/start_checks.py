"""Checks that stop a starting driver if another driver of the query, or another query, owns the prefix.

The prefix is the name of the query or job. A driver owns it if it was the last to claim it, that is, to write its own
name into the prefix's entry in the decision log. No check changes anything in Kafka.
"""

from __future__ import annotations

from spark_kafka_sink.exactly_once import precommit_errors
from spark_kafka_sink.exactly_once.entries import Entry
from spark_kafka_sink.exactly_once.query_transactions import QueryTransactions
from spark_kafka_sink.exactly_once.settings import ExactlyOnceSettings
from spark_kafka_sink.requests.transaction_description import TransactionDescription


def check_not_overtaken(
    transactions: QueryTransactions, driver_name: str, description: TransactionDescription | None, entry: Entry
) -> None:
    """Raise ExactlyOnceError if another driver has claimed the prefix under an epoch granted after this description.

    The starting driver first describes its transactional id, the driver id, and then reads the log. This check finds
    drivers that have started in between.

    `driver_name`: the name of the starting driver.
    `description`: the description of the driver id; None if the brokers did not know the id.
    `entry`: the newest entry in the log, which contains the producer id and epoch of the newest claim.
    """
    # Anybody may have written an unproven entry, so its claim proves nothing. If another driver was really granted an
    # epoch since the description, `QueryTransactions.check_unchanged` notices it, and the start is tried again.
    is_claimed_by_other = entry.claimant_name not in ("", driver_name)
    if not is_claimed_by_other or entry.is_unproven:
        return
    claim_producer_id, claim_epoch = entry.claim_identity
    if description is None:
        # Either the brokers have forgotten the id, or the id was created after the description. If it now has the
        # producer id of the claim, it was created after the description, and the claim was written after that.
        current_description = transactions.describe_driver_id()
        is_overtaken = (
            current_description is not None and current_description.id_and_epoch.producer_id == claim_producer_id
        )
    else:
        # If the claim has a greater epoch than the description, brokers granted that epoch after the description.
        # Epochs of different producer ids cannot be compared.
        producer_id, epoch = description.id_and_epoch
        is_overtaken = producer_id == claim_producer_id and epoch < claim_epoch
    if is_overtaken:
        raise precommit_errors.build_overtaken_error(entry, driver_name)


def check_may_begin(settings: ExactlyOnceSettings, driver_name: str, predecessor_name: str, entry: Entry) -> None:
    """Raise ExactlyOnceError if the prefix's newest entry shows that this driver must not begin a batch.

    `driver_name`: the name of the starting driver.
    `predecessor_name`: the name of the driver that was the newest one when the starting driver first read the log. If
    the entry now names a different driver, that driver has claimed the prefix since. It may be writing, so the starting
    driver must not fence it.
    """
    if entry.has_superseded(driver_name):
        raise precommit_errors.build_superseded_error(entry, driver_name)
    if entry.claimant_name not in (predecessor_name, driver_name):
        if not entry.claimant_name:  # the entry that named the predecessor is gone
            raise precommit_errors.build_log_lost_error(settings.prefix, settings.options.log_topic)
        raise precommit_errors.build_overtaken_error(entry, driver_name)
    if entry.writer_kind not in (None, settings.writer_kind):  # None: no driver has claimed the prefix yet
        raise precommit_errors.build_writer_kind_mismatch_error(entry)
    if settings.checkpoint and entry.checkpoint and settings.checkpoint != entry.checkpoint:  # both are known
        raise precommit_errors.build_checkpoint_mismatch_error(entry, settings.checkpoint)
