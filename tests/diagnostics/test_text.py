"""Text of a peer is sanitized wherever it reaches a log or an error."""

from __future__ import annotations

import pytest

from spark_kafka_sink.client.cluster import ClusterSnapshot, Node
from spark_kafka_sink.client.metadata_merge import merge_response
from spark_kafka_sink.diagnostics.text import mask_secrets, sanitize
from spark_kafka_sink.errors import AuthenticationError
from spark_kafka_sink.producer.sending.produce_exchange import parse_partition_response
from spark_kafka_sink.protocol.messages.metadata import MetadataResponse
from spark_kafka_sink.protocol.messages.produce import BatchIndexAndErrorMessage, PartitionProduceResponse
from spark_kafka_sink.sasl.oauthbearer import OauthBearerClient
from spark_kafka_sink.sasl.scram import ScramClient

EVIL = "no\n2026-01-01 ERROR all is well\x1b[2J\x00\u202e" + "x" * 10_000


def is_clean(text: str) -> bool:
    return text.isprintable() and len(text) < 600


def test_sanitize_returns_one_short_printable_line() -> None:
    assert sanitize("No space left: straße, 日本") == "No space left: straße, 日本"
    assert sanitize("a\r\nb\tc") == "a  b c"
    assert sanitize("\x1b[31mred\x00\x9b\u202e\udc80") == "?[31mred????"
    assert sanitize("x" * 301) == "x" * 300 + "..."
    assert sanitize(None) == ""
    assert is_clean(sanitize(EVIL))


def test_masks_longest_secrets_first() -> None:
    assert (
        mask_secrets("you sent alice:s3cret, s3cret and more", ["s3cret", "alice:s3cret", ""])
        == "you sent ***, *** and more"
    )


def test_sanitizes_error_messages_of_batches_and_records() -> None:
    errors = [BatchIndexAndErrorMessage(batch_index=3, batch_index_error_message=EVIL)]
    response = parse_partition_response(
        PartitionProduceResponse(error_code=87, error_message=EVIL, record_errors=errors)
    )
    assert is_clean(response.error_message)
    assert is_clean(response.record_error_messages[3])


def test_sanitizes_host_names_and_cluster_id() -> None:
    assert is_clean(str(Node(1, EVIL, 9092)))
    response = MetadataResponse(cluster_id=EVIL)
    merged = merge_response(ClusterSnapshot(), {}, response, version=12, is_partial=False, is_in_use=lambda _: True)
    assert is_clean(merged.snapshot.cluster_id or EVIL)


def test_sanitizes_authentication_errors_of_brokers() -> None:
    scram = ScramClient("SCRAM-SHA-256", "alice", "secret")
    scram.start()
    bearer = OauthBearerClient("token")
    bearer.start()
    bearer.step(EVIL.encode())
    with pytest.raises(AuthenticationError) as caught:
        scram.step(b"e=" + EVIL.encode()[:9_000])
    assert is_clean(str(caught.value))
    with pytest.raises(AuthenticationError) as caught:
        bearer.step(b"")
    assert is_clean(str(caught.value))
