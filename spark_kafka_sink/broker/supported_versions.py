"""The APIs and versions that the embedded broker supports."""

from __future__ import annotations

from collections.abc import Mapping

from spark_kafka_sink.broker.handlers import list_handled_api_keys
from spark_kafka_sink.protocol.message import ApiKey
from spark_kafka_sink.protocol.messages import load_request_type
from spark_kafka_sink.protocol.schema import VersionRange

_MAX_SUPPORTED_VERSIONS = {
    ApiKey.INIT_PRODUCER_ID: 5,
    ApiKey.OFFSET_COMMIT: 9,
    ApiKey.OFFSET_FETCH: 9,
}
"""Latest supported versions of APIs for which the protocol package has later versions.

No released broker supports two-phase commit (InitProducerId v6). Topic ids in OffsetCommit and OffsetFetch (v10) are
only for groups that use the new consumer protocol, which the embedded broker does not implement.
"""

_DECLARED_VERSIONS = {key: load_request_type(key).VERSIONS for key in list_handled_api_keys()}
"""Versions that the protocol package can decode, for the APIs that have a handler."""

SUPPORTED_VERSIONS: Mapping[int, VersionRange] = {
    key: VersionRange(declared_range.min, min(declared_range.max, _MAX_SUPPORTED_VERSIONS.get(key, declared_range.max)))
    for key, declared_range in _DECLARED_VERSIONS.items()
}


def select_supported_versions(limits: Mapping[ApiKey, VersionRange] | None) -> Mapping[int, VersionRange]:
    """Return the supported versions by API key, restricted to `limits`. APIs with no version left are omitted."""
    if not limits:
        return SUPPORTED_VERSIONS
    return {key: versions for key, versions in _restrict_versions(limits).items() if versions.min <= versions.max}


def _restrict_versions(limits: Mapping[ApiKey, VersionRange]) -> dict[int, VersionRange]:
    restricted_versions = dict(SUPPORTED_VERSIONS)
    for key, limit in limits.items():
        supported_range = SUPPORTED_VERSIONS[key]
        restricted_versions[key] = VersionRange(
            max(supported_range.min, limit.min), min(supported_range.max, limit.max)
        )
    return restricted_versions
