"""InProcessBroker: a cluster that handles request frames without sockets and without a clock."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from spark_kafka_sink.broker.cluster import ClusterConfig, EmbeddedCluster
from spark_kafka_sink.broker.control import Control
from spark_kafka_sink.broker.kafka_apis import handle_request
from spark_kafka_sink.broker.outcome import ChannelResponse, RequestOutcome
from spark_kafka_sink.broker.storage import ClusterFiles
from spark_kafka_sink.protocol.headers import decode_response, encode_request
from spark_kafka_sink.protocol.message import Message
from spark_kafka_sink.protocol.messages import load_response_type
from tests.broker.wire_client import batch, partition_response, produce_request
from tests.simulated_cluster import stored_records


class InProcessBroker:
    """A broker with the topic t, which has two partitions.

    A second InProcessBroker with the same directory is the broker after a restart.
    """

    def __init__(self, directory: Path | None = None, **config: Any) -> None:
        store = None if directory is None else ClusterFiles(directory)
        self.cluster = EmbeddedCluster(ClusterConfig(**config), topics={"t": 2}, store=store)
        self._control = Control(self.cluster, 0)

    def handle(self, message: Message, version: int, now_ms: float = 0) -> RequestOutcome:
        """Handle a request, and return the outcome that a transport would receive."""
        frame = memoryview(bytearray(b"".join(encode_request(message, version, 1, "tests"))))
        return handle_request(self.cluster, self._control, 0, frame, now_ms)

    def request(self, message: Message, version: int, now_ms: float = 0) -> Any:
        """Return the response to a request, or None if the broker closes the connection instead."""
        outcome = self.handle(message, version, now_ms)
        assert isinstance(outcome, ChannelResponse)
        if outcome.frame is None:
            return None
        return decode_response(b"".join(outcome.frame), load_response_type(message.API_KEY), version)[1]

    def write(self, value: bytes) -> tuple[int, int]:
        """Produce one record to partition 0. Return the error code and the offset."""
        response = partition_response(self.request(produce_request(batch(value)), 9))
        return response.error_code, response.base_offset

    def values(self, partition: int = 0, *, committed: bool = False) -> list[bytes]:
        log = self.cluster.log("t", partition)
        return stored_records(log, committed=committed).column("value").to_pylist()  # type: ignore[no-any-return]
