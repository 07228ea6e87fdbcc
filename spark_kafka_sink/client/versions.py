"""Which version of each API to speak to which node.

Every connection begins with ApiVersions: the broker lists its APIs and their versions, and the highest that both sides
know is used. The first request has to be sent before anything is known. If its version is too new, the broker answers
in the layout of version 0 with UNSUPPORTED_VERSION and, from Kafka 2.4 on, its own range; the next attempt uses the
highest of that, or 0.

The answer also carries the cluster's finalized features, such as `transaction.version`, under an epoch that grows.
"""

from __future__ import annotations

import functools
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from importlib import metadata
from types import MappingProxyType

from spark_kafka_sink.errors import UnsupportedVersionError
from spark_kafka_sink.protocol import error_codes
from spark_kafka_sink.protocol.message import ApiKey, Message
from spark_kafka_sink.protocol.messages import request_type
from spark_kafka_sink.protocol.messages.api_versions import ApiVersionsRequest, ApiVersionsResponse
from spark_kafka_sink.protocol.schema import VERSION_LIMIT, VersionRange

DISTRIBUTION = "spark-kafka-sink"
TRANSACTION_VERSION = "transaction.version"
"""The finalized feature that says which version of transactions the cluster has agreed on."""

# From these versions on, a broker answers at once and leaves it to the client to be quiet for throttle_time_ms
# (KIP-219). Before, it kept the answer back for so long; to wait again would be to wait twice.
CLIENT_THROTTLES_FROM: dict[ApiKey, int] = {
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
    ApiKey.DESCRIBE_CLUSTER: 0,
    ApiKey.DESCRIBE_TRANSACTIONS: 0,
    ApiKey.LIST_TRANSACTIONS: 0,
}


KNOWN_FROM: dict[ApiKey, str] = {
    ApiKey.DESCRIBE_TRANSACTIONS: "3.0",
    ApiKey.LIST_TRANSACTIONS: "3.0",
}
"""The version of Kafka that introduced an API, for APIs that a user's brokers may lack."""


@dataclass(frozen=True)
class FinalizedFeatures:
    """What the whole cluster has agreed on. `epoch` is -1 while no broker has sent one."""

    epoch: int = -1
    levels: Mapping[str, int] = field(default_factory=lambda: MappingProxyType({}))


@dataclass(frozen=True)
class NodeVersions:
    """What one broker said of itself."""

    broker: str
    """For error messages: which broker, and where."""
    ranges: Mapping[int, VersionRange]
    finalized: FinalizedFeatures = FinalizedFeatures()
    _chosen: dict[tuple[ApiKey, VersionRange | None], int] = field(
        init=False, default_factory=dict, repr=False, compare=False
    )

    def usable(self, api_key: ApiKey, allowed: VersionRange | None = None) -> int:
        """The highest version that the broker, this library and `allowed` have in common."""
        version = self._chosen.get((api_key, allowed))
        if version is None:
            version = self._chosen[api_key, allowed] = self._choose(api_key, allowed)
        return version

    def _choose(self, api_key: ApiKey, allowed: VersionRange | None) -> int:
        ours = request_type(api_key).VERSIONS
        if allowed is not None:
            ours = VersionRange(max(ours.min, allowed.min), min(ours.max, allowed.max))
        theirs = self.ranges.get(api_key)
        if theirs is None:
            raise UnsupportedVersionError(
                f"{self.broker} does not know the API {api_key.name} ({api_key.value}), which is needed here in one of "
                f"the versions {ours}. It is {_age(api_key)}, or does not offer this API on this listener."
            )
        version = min(ours.max, theirs.max)
        if version < max(ours.min, theirs.min):
            age = "old" if theirs.max < ours.min else "new"
            raise UnsupportedVersionError(
                f"{self.broker} is too {age}: of the API {api_key.name} ({api_key.value}) it speaks the versions "
                f"{theirs}, and {ours} would be needed here."
            )
        return version


def _age(api_key: ApiKey) -> str:
    return f"older than Kafka {KNOWN_FROM[api_key]}" if api_key in KNOWN_FROM else "too old"


def node_versions(broker: str, response: ApiVersionsResponse) -> NodeVersions:
    return NodeVersions(
        broker,
        MappingProxyType({api.api_key: VersionRange(api.min_version, api.max_version) for api in response.api_keys}),
        FinalizedFeatures(
            response.finalized_features_epoch,
            MappingProxyType({key.name: key.max_version_level for key in response.finalized_features}),
        ),
    )


def newest_features(nodes: Iterable[NodeVersions], known: FinalizedFeatures) -> FinalizedFeatures:
    """The features with the highest epoch seen: brokers learn of a change one after the other."""
    return max([known, *(node.finalized for node in nodes)], key=lambda features: features.epoch)


def older_api_versions_version(response: ApiVersionsResponse, refused: int) -> int:
    """Which version of ApiVersions to try after UNSUPPORTED_VERSION: always older than the one that was refused."""
    theirs = next((api.max_version for api in response.api_keys if api.api_key == ApiKey.API_VERSIONS), 0)
    return max(0, min(theirs, refused - 1))


def api_versions_request() -> ApiVersionsRequest:
    """Versions below 3 leave out the name and the version of this library."""
    return ApiVersionsRequest(client_software_name=DISTRIBUTION, client_software_version=software_version())


def api_versions_layout(frame: memoryview, version: int) -> int:
    """The layout of an answer that was asked for in `version`. A broker that does not know it answers in version 0.

    All versions begin alike: correlation id (int32), error code (int16).
    """
    error_code = int.from_bytes(frame[4:6], "big", signed=True)
    return 0 if error_code == error_codes.UNSUPPORTED_VERSION else version


def throttle_ms(answer: Message, api_key: ApiKey, version: int) -> int:
    """For how long the broker takes no request after this answer."""
    wanted: int = getattr(answer, "throttle_time_ms", 0)
    return wanted if version >= CLIENT_THROTTLES_FROM.get(api_key, VERSION_LIMIT) else 0


@functools.cache  # a file is read for it
def software_version() -> str:
    """Our version in the characters that brokers take for it (KIP-511): letters, digits, `-` and `.` inside."""
    try:
        version = metadata.version(DISTRIBUTION)
    except metadata.PackageNotFoundError:
        return "unknown"  # run from a source tree or a zip that was never installed
    return valid_software_text(version)


def valid_software_text(text: str) -> str:
    return re.sub(r"[^a-zA-Z0-9.-]", "-", text).strip("-.") or "unknown"
