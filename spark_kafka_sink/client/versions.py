"""NodeApiVersions: a broker's API versions, and the highest version of each API that both sides support.

Every connection starts with ApiVersions. The broker responds with its APIs and their version ranges. The version of
this first request is a guess. If it is too new, the broker responds with UNSUPPORTED_VERSION in the layout of version 0
and, since Kafka 2.4, includes its own range. The next attempt uses the highest version of that range, or 0.

A client starts with version 3, because Azure Event Hubs has reset connections on version 4
(https://github.com/twmb/franz-go/issues/1025). Nothing is lost: version 4 only adds supported features whose minimum
level is 0 (KAFKA-17011), and this client reads only the finalized features.

Version 5 lets the broker reject a connection that was meant for another cluster or node (KIP-1242). A client does not
start with it: the first connection has no cluster id to send, and with brokers older than Kafka 4.4, every connection
would need an extra round trip. Once a broker has announced version 5, new connections start with it. If the client has
a cluster id to send by then, as in a cluster with older and newer brokers, it repeats ApiVersions in version 5 on the
connection where it was announced, before that connection is ready.

The response also contains the cluster's finalized features, such as `transaction.version`, with an increasing epoch.
"""

from __future__ import annotations

import functools
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from importlib import metadata
from types import MappingProxyType

from spark_kafka_sink.errors import DecodeError, UnsupportedVersionError
from spark_kafka_sink.protocol import error_codes
from spark_kafka_sink.protocol.headers import decode_response
from spark_kafka_sink.protocol.message import ApiKey, Message
from spark_kafka_sink.protocol.messages import load_request_type
from spark_kafka_sink.protocol.messages.api_versions import ApiVersionsRequest, ApiVersionsResponse
from spark_kafka_sink.protocol.schema import VersionRange

DISTRIBUTION = "spark-kafka-sink"
"""The name of this library's distribution, which brokers see as the client's software name."""
TRANSACTION_VERSION = "transaction.version"
"""The finalized feature whose level is the cluster's transaction protocol version."""
INITIAL_API_VERSIONS_VERSION = 3
"""The ApiVersions version that a client sends until a broker has announced the routing check. It is the first version
with finalized features."""
MIN_VERSION_WITH_ROUTING_CHECK = 5
"""The first ApiVersions version that names the intended cluster and node of a connection (KIP-1242)."""

MIN_VERSIONS_WITH_CLIENT_THROTTLE: dict[ApiKey, int] = {
    ApiKey.PRODUCE: 6,
    ApiKey.FETCH: 8,
    ApiKey.LIST_OFFSETS: 3,
    ApiKey.METADATA: 6,
    ApiKey.OFFSET_COMMIT: 4,
    ApiKey.OFFSET_FETCH: 4,
    ApiKey.FIND_COORDINATOR: 2,
    ApiKey.API_VERSIONS: 2,
    ApiKey.CREATE_TOPICS: 3,
    ApiKey.INIT_PRODUCER_ID: 1,
    ApiKey.ADD_PARTITIONS_TO_TXN: 1,
    ApiKey.ADD_OFFSETS_TO_TXN: 1,
    ApiKey.END_TXN: 1,
    ApiKey.TXN_OFFSET_COMMIT: 1,
    ApiKey.DESCRIBE_CONFIGS: 2,
}
"""The first version of each API in which the client itself must wait for the throttle time (KIP-219).

From this version on, a throttling broker responds at once, and the client must not send anything for throttle_time_ms.
In older versions, the broker delays the response, so the client must not wait a second time. An API that is newer than
KIP-219 (Kafka 2.0) is not in the table, because the client must wait in all of its versions.
"""

INTRODUCED_IN: dict[ApiKey, str] = {
    ApiKey.DESCRIBE_TRANSACTIONS: "3.0",
    ApiKey.LIST_TRANSACTIONS: "3.0",
}
"""The Kafka version that introduced each API that a supported broker may lack."""


@dataclass(frozen=True)
class FinalizedFeatures:
    """The cluster's finalized features. `epoch` is -1 as long as no broker has sent any."""

    epoch: int = -1
    levels: Mapping[str, int] = field(default_factory=lambda: MappingProxyType({}))

    @property
    def transaction_version(self) -> int:
        """The transaction protocol version: 2 if the feature has at least level 2 (KIP-890), else 1."""
        return 2 if self.levels.get(TRANSACTION_VERSION, 0) >= 2 else 1


@dataclass(frozen=True)
class NodeApiVersions:
    """One broker's API versions and finalized features."""

    broker: str
    """The broker's id and address, for error messages."""
    ranges: Mapping[int, VersionRange]
    finalized_features: FinalizedFeatures = FinalizedFeatures()
    _latest_usable: dict[tuple[ApiKey, VersionRange | None], int] = field(
        init=False, default_factory=dict, repr=False, compare=False
    )
    """Results of `latest_usable_version`, which is called for every request."""

    def latest_usable_version(self, api_key: ApiKey, allowed_versions: VersionRange | None = None) -> int:
        """Return the highest version that the broker and this library support and that is in `allowed_versions`.

        Raise UnsupportedVersionError if there is none.
        """
        version = self._latest_usable.get((api_key, allowed_versions))
        if version is None:
            version = self._find_latest_usable_version(api_key, allowed_versions)
            self._latest_usable[api_key, allowed_versions] = version
        return version

    def _find_latest_usable_version(self, api_key: ApiKey, allowed_versions: VersionRange | None) -> int:
        """Compute the result of `latest_usable_version`, which caches it."""
        client_range = load_request_type(api_key).VERSIONS
        if allowed_versions is not None:
            client_range = VersionRange(
                max(client_range.min, allowed_versions.min), min(client_range.max, allowed_versions.max)
            )
        broker_range = self.ranges.get(api_key)
        if broker_range is None:
            raise UnsupportedVersionError(
                f"{self.broker} does not support the API {api_key.name} ({api_key.value}); this client requires one of "
                f"the versions {client_range}. Either the broker is {_describe_age(api_key)}, or it does not offer "
                "this API on this listener."
            )
        latest_version = min(client_range.max, broker_range.max)
        if latest_version < max(client_range.min, broker_range.min):  # the ranges have no version in common
            age = "old" if broker_range.max < client_range.min else "new"
            raise UnsupportedVersionError(
                f"{self.broker} is too {age}: it supports versions {broker_range} of the API {api_key.name} "
                f"({api_key.value}), and this client requires one of {client_range}."
            )
        return latest_version


def _describe_age(api_key: ApiKey) -> str:
    return f"older than Kafka {INTRODUCED_IN[api_key]}" if api_key in INTRODUCED_IN else "too old"


def build_node_api_versions(broker: str, response: ApiVersionsResponse) -> NodeApiVersions:
    """Build the read-only view of a broker's ApiVersions response. `broker` is its description for error messages."""
    return NodeApiVersions(
        broker,
        MappingProxyType({api.api_key: VersionRange(api.min_version, api.max_version) for api in response.api_keys}),
        FinalizedFeatures(
            response.finalized_features_epoch,
            MappingProxyType({key.name: key.max_version_level for key in response.finalized_features}),
        ),
    )


def select_newest_features(nodes: Iterable[NodeApiVersions], known_features: FinalizedFeatures) -> FinalizedFeatures:
    """Return the features with the highest epoch among those of the nodes and the known ones.

    Brokers learn of a change one after another, so a response may be older than the known features.
    """
    return max([known_features, *(node.finalized_features for node in nodes)], key=lambda features: features.epoch)


def has_routing_check(response: ApiVersionsResponse) -> bool:
    """Return whether the broker can check that a connection is meant for its cluster and node (KIP-1242)."""
    return any(
        api.api_key == ApiKey.API_VERSIONS and api.max_version >= MIN_VERSION_WITH_ROUTING_CHECK
        for api in response.api_keys
    )


def choose_lower_api_versions_version(response: ApiVersionsResponse, rejected_version: int) -> int:
    """Return the version of ApiVersions to send after a broker has rejected a higher one with UNSUPPORTED_VERSION.

    This is the broker's highest version, or 0 if the response does not contain it. To make progress with a broker that
    contradicts itself, the result is always lower than `rejected_version`, which must not be 0.
    """
    max_version = next((api.max_version for api in response.api_keys if api.api_key == ApiKey.API_VERSIONS), 0)
    return max(0, min(max_version, rejected_version - 1))


def build_api_versions_request(cluster_id: str | None = None, node_id: int = -1) -> ApiVersionsRequest:
    """Build a request that names this library and its version (encoded from version 3 on).

    `cluster_id` and `node_id`: the cluster and node that the connection is meant for, if both are known (encoded from
    version 5 on).
    """
    return ApiVersionsRequest(
        client_software_name=DISTRIBUTION,
        client_software_version=find_software_version(),
        cluster_id=cluster_id,
        node_id=node_id,
    )


def decode_api_versions_response(frame: memoryview, version: int) -> ApiVersionsResponse:
    """Decode a response to ApiVersions in `version`. Raise DecodeError if it is malformed.

    An Apache Kafka broker that does not support `version` responds in the layout of version 0. Some other brokers use
    the layout of `version`. If such a response cannot be decoded as version 0, the result has only the error code.
    """
    # All layouts start with the correlation id (int32) and the error code (int16).
    error_code = int.from_bytes(frame[4:6], "big", signed=True)
    if error_code != error_codes.UNSUPPORTED_VERSION:
        _correlation_id, response = decode_response(frame, ApiVersionsResponse, version)
        return response
    try:
        _correlation_id, response = decode_response(frame, ApiVersionsResponse, version=0)
    except DecodeError:
        return ApiVersionsResponse(error_code=error_code)
    return response


def compute_throttle_ms(response: Message, api_key: ApiKey, version: int) -> int:
    """Return the time in milliseconds for which the client must send nothing to the broker after this response."""
    throttle_time_ms: int = getattr(response, "throttle_time_ms", 0)
    return throttle_time_ms if version >= MIN_VERSIONS_WITH_CLIENT_THROTTLE.get(api_key, 0) else 0


@functools.cache  # the lookup reads a file
def find_software_version() -> str:
    """Return this library's version in the form that KIP-511 allows, or "unknown"."""
    try:
        version = metadata.version(DISTRIBUTION)
    except metadata.PackageNotFoundError:
        return "unknown"  # running from a source tree or a zip file that is not installed
    return to_valid_software_text(version)


def to_valid_software_text(text: str) -> str:
    """Replace or strip the characters that KIP-511 does not allow. Return "unknown" if no text is left.

    KIP-511 allows letters and digits, and `-` and `.` between them.
    """
    return re.sub(r"[^a-zA-Z0-9.-]", "-", text).strip("-.") or "unknown"
