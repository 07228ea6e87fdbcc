"""Reading stored batches with a fetch that was sent before the end offset was known."""

from __future__ import annotations

from spark_kafka_sink.protocol import error_codes
from spark_kafka_sink.reader.fetch_loop import prefetch_stored_batches, read_stored_batches
from spark_kafka_sink.reader.list_offsets import LATEST_TIMESTAMP, list_offsets
from spark_kafka_sink.requests.blocking import BlockingClient
from tests.reader.scripted_cluster import Cluster, Log
from tests.reader.stored_batches import batch


def look_up_end_offset(client: BlockingClient) -> int:
    return list_offsets(client, "t", [0], LATEST_TIMESTAMP, isolation=0)[0]


def test_reads_prefetched_batches_without_fetching_again() -> None:
    cluster = Cluster(Log([batch(0, b"a"), batch(1, b"b"), batch(2, b"c")]))
    with cluster.client() as client:
        fetch_call = prefetch_stored_batches(client, "t", 0, 1)
        assert look_up_end_offset(client) == 3
        batches = list(read_stored_batches(client, "t", 0, start=1, stop=2, fetch_call=fetch_call))
    assert [batch.header.base_offset for batch in batches] == [1]
    assert cluster.fetches == 1


def test_fetches_batches_written_after_prefetch() -> None:
    log = Log([batch(0, b"a")])
    cluster = Cluster(log)
    with cluster.client() as client:
        fetch_call = prefetch_stored_batches(client, "t", 0, 0)
        look_up_end_offset(client)  # the prefetch has its response by now
        log.batches.append(batch(1, b"b"))
        end_offset = look_up_end_offset(client)
        batches = list(read_stored_batches(client, "t", 0, start=0, stop=end_offset, fetch_call=fetch_call))
    assert [batch.header.base_offset for batch in batches] == [0, 1]
    assert cluster.fetches == 2


def test_fetches_again_after_failed_prefetch() -> None:
    log = Log([batch(0, b"a")])
    cluster = Cluster(log)
    with cluster.client() as client:
        look_up_end_offset(client)
        log.errors = [error_codes.NOT_LEADER_OR_FOLLOWER]
        fetch_call = prefetch_stored_batches(client, "t", 0, 0)
        batches = list(read_stored_batches(client, "t", 0, start=0, stop=1, fetch_call=fetch_call))
    assert [batch.header.base_offset for batch in batches] == [0]
    assert cluster.fetches == 2
