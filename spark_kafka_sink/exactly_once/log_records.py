"""The records of the decision log, as drivers write them: entries, claims and tombstones."""

from __future__ import annotations

from spark_kafka_sink.exactly_once.entries import Entry
from spark_kafka_sink.exactly_once.entry_json import encode_entry
from spark_kafka_sink.exactly_once.log_writer import KeyValue
from spark_kafka_sink.exactly_once.transaction_names import build_claim_key


def build_entry_records(entry: Entry) -> list[KeyValue]:
    """Return an entry as a batch of one record with the key of decisions."""
    return [(entry.prefix.encode(), encode_entry(entry))]


def build_claim_records(previous_entry: Entry, claim: Entry) -> list[KeyValue]:
    """Return a claim as a batch of two records, so that its sequence numbers differ from those of a decision.

    The first record has no value. Compaction removes it.
    """
    key = build_claim_key(claim.prefix)
    return [(key, None), (key, encode_entry(claim, followed_offset=previous_entry.offset))]


def build_tombstones(prefix: str) -> list[KeyValue]:
    """Return the records that delete a prefix's claims and decisions."""
    return [(build_claim_key(prefix), None), (prefix.encode(), None)]
