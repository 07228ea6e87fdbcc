"""A broker for tests of the client, which records requests and sends the responses that the test defines.

It responds to ApiVersions and Metadata at once with the responses that the test has set. Other requests are handled by
`on_request`, or held until the test calls `respond`.
"""

from __future__ import annotations

import struct
from collections.abc import Callable
from dataclasses import dataclass

from spark_kafka_sink.protocol.headers import RequestHeader, decode_request, encode_response
from spark_kafka_sink.protocol.message import ApiKey, Message
from spark_kafka_sink.protocol.messages import list_supported_api_keys, load_request_type
from spark_kafka_sink.protocol.messages.api_versions import ApiVersion, ApiVersionsResponse
from spark_kafka_sink.protocol.messages.metadata import MetadataRequest, MetadataResponse
from spark_kafka_sink.protocol.schema import VersionRange
from tests.fake_system import FakeConnection, Peer


@dataclass
class ReceivedRequest:
    connection: FakeConnection
    header: RequestHeader
    message: Message

    @property
    def api_key(self) -> ApiKey:
        return ApiKey(self.header.api_key)

    def respond(self, response: Message, *, correlation_id: int | None = None, after_ms: float = 0.0) -> None:
        number = self.header.correlation_id if correlation_id is None else correlation_id
        self.respond_bytes(b"".join(encode_response(response, self.header.api_version, number)), after_ms=after_ms)

    def respond_bytes(self, payload: bytes, *, after_ms: float = 0.0) -> None:
        self.connection.send(struct.pack(">i", len(payload)) + payload, after_ms=after_ms)


def all_versions() -> dict[ApiKey, VersionRange]:
    return {api_key: load_request_type(api_key).VERSIONS for api_key in list_supported_api_keys()}


class ScriptedBroker(Peer):
    def __init__(self, metadata: MetadataResponse | None = None) -> None:
        self.metadata = metadata if metadata is not None else MetadataResponse()
        self.versions = all_versions()
        self.api_versions = ApiVersionsResponse()
        """The ApiVersions response. Its api_keys are filled in from `versions`."""
        self.requests: list[ReceivedRequest] = []
        self.closed = 0
        self.on_request: Callable[[ReceivedRequest], bool] = lambda received: False
        """Called first for every request. Return whether it has handled the request."""
        self._bytes: dict[FakeConnection, bytes] = {}

    def find_requests(self, api_key: ApiKey) -> list[ReceivedRequest]:
        return [received for received in self.requests if received.api_key is api_key]

    def last_request(self, api_key: ApiKey) -> ReceivedRequest:
        return self.find_requests(api_key)[-1]

    def on_bytes(self, connection: FakeConnection, data: bytes) -> None:
        pending = self._bytes.get(connection, b"") + data
        while len(pending) >= 4 and len(pending) >= 4 + struct.unpack_from(">i", pending)[0]:
            size = struct.unpack_from(">i", pending)[0]
            frame, pending = pending[4 : 4 + size], pending[4 + size :]
            header, message = decode_request(frame)
            self.requests.append(ReceivedRequest(connection, header, message))
            self._serve(self.requests[-1])
        self._bytes[connection] = pending

    def on_close(self, connection: FakeConnection) -> None:
        self.closed += 1

    def _serve(self, received: ReceivedRequest) -> None:
        if self.on_request(received):
            return
        if received.api_key is ApiKey.API_VERSIONS:
            self.api_versions.api_keys = [
                ApiVersion(api_key=key, min_version=known.min, max_version=known.max)
                for key, known in self.versions.items()
            ]
            received.respond(self.api_versions)
        elif received.api_key is ApiKey.METADATA:
            assert isinstance(received.message, MetadataRequest)
            received.respond(self.metadata)
