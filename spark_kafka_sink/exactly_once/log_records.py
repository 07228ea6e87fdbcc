"""Builders of the records that drivers write to the decision log. Each returns the records of one record batch.

An entry is the state of a query or job. There are three kinds of records:

    entry        written by the current driver. A decision lists the transactions of a batch, which must now be
                 committed; a later entry says that this is done
    claim        an entry with a key of its own, which names its writer as the current driver
    tombstone    a record without a value, with which compaction deletes the earlier records of a key
"""

from __future__ import annotations

from spark_kafka_sink.exactly_once.entries import Entry
from spark_kafka_sink.exactly_once.entry_json import encode_entry
from spark_kafka_sink.exactly_once.log_writer import KeyValue
from spark_kafka_sink.exactly_once.transaction_names import build_claim_key


def build_entry_records(entry: Entry) -> list[KeyValue]:
    """Return the record with which the current driver writes an entry, for example to decide a batch."""
    return [(entry.prefix.encode(), encode_entry(entry))]


def build_claim_records(previous_entry: Entry, claim: Entry) -> list[KeyValue]:
    """Return the records of a claim, an entry that names its writer as the current driver.

    `previous_entry`: the newest entry that the driver has read. The claim is not valid if there is a newer one.
    """
    # Two drivers may hold the same epoch and write at the same time, each with sequence number 0. If one writes a
    # decision and the other one a claim, the leader must not take the second record batch for a retry of the first. It
    # compares their first and last sequence numbers. The last ones differ: a decision has one record, a claim has two.
    # The first record of a claim has no value, so compaction removes it.
    key = build_claim_key(claim.prefix)
    return [(key, None), (key, encode_entry(claim, followed_offset=previous_entry.offset))]


def build_tombstones(prefix: str) -> list[KeyValue]:
    """Return the records that delete a prefix's claims and decisions from the compacted log."""
    return [(build_claim_key(prefix), None), (prefix.encode(), None)]
