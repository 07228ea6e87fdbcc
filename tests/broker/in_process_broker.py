"""A cluster asked as a transport asks it: frames in, outcomes out, no sockets and no clock."""

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
    """Topic t has two partitions. Another Broker on the same directory is a restart."""

    def __init__(self, directory: Path | None = None, **config: Any) -> None:
        store = None if directory is None else ClusterFiles(directory)
        self.cluster = EmbeddedCluster(ClusterConfig(**config), topics={"t": 2}, store=store)
        self._control = Control(self.cluster, 0)

    def handle(self, request: Message, version: int, now: float = 0) -> RequestOutcome:
        """Hand a frame to the cluster. Returns what a transport gets."""
        frame = memoryview(bytearray(b"".join(encode_request(request, version, 1, "tests"))))
        return handle_request(self.cluster, self._control, 0, frame, now)

    def request(self, request: Message, version: int, now: float = 0) -> Any:
        """None if the connection ends in place of an answer."""
        outcome = self.handle(request, version, now)
        assert isinstance(outcome, ChannelResponse)
        if outcome.frame is None:
            return None
        return decode_response(b"".join(outcome.frame), load_response_type(request.API_KEY), version)[1]

    def write(self, value: bytes) -> tuple[int, int]:
        """Write records. Returns the error code and the offset."""
        answered = partition_response(self.request(produce_request(batch(value)), 9))
        return answered.error_code, answered.base_offset

    def values(self, partition: int = 0, *, committed: bool = False) -> list[bytes]:
        log = self.cluster.log("t", partition)
        return stored_records(log, committed=committed).column("value").to_pylist()  # type: ignore[no-any-return]
