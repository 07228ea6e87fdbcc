"""The records of the decision log, as drivers write them: decisions, claims and tombstones.

A decision contains an entry: the state of a query or job, with the transactions of its last batch. A claim contains the
entry with another current driver. Each function returns the records of one record batch.
"""

from __future__ import annotations

from spark_kafka_sink.exactly_once.entries import Entry
from spark_kafka_sink.exactly_once.entry_json import encode_entry
from spark_kafka_sink.exactly_once.log_writer import KeyValue
from spark_kafka_sink.exactly_once.transaction_names import build_claim_key


def build_entry_records(entry: Entry) -> list[KeyValue]:
    """Return the record of an entry that its current driver writes, such as a decision."""
    return [(entry.prefix.encode(), encode_entry(entry))]


def build_claim_records(previous_entry: Entry, claim: Entry) -> list[KeyValue]:
    """Return the records of a claim, an entry that names its writer as the current driver.

    `previous_entry`: the newest entry that the driver has read. The claim is not valid if there is a newer one.
    """
    # Two drivers may have the same epoch and write at the same time. If one writes a decision and the other one a
    # claim, the leader must not treat the second record batch as a repetition of the first. A claim therefore has two
    # records, and so other sequence numbers than a decision. Compaction removes the first, which has no value.
    key = build_claim_key(claim.prefix)
    return [(key, None), (key, encode_entry(claim, followed_offset=previous_entry.offset))]


def build_tombstones(prefix: str) -> list[KeyValue]:
    """Return the records that delete a prefix's claims and decisions from the compacted log."""
    return [(build_claim_key(prefix), None), (prefix.encode(), None)]
