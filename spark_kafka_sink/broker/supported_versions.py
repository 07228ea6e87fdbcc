"""Which APIs and versions the embedded broker speaks."""

from __future__ import annotations

from collections.abc import Mapping

from spark_kafka_sink.broker.handlers import handled_api_keys
from spark_kafka_sink.protocol.message import ApiKey
from spark_kafka_sink.protocol.messages import load_request_type
from spark_kafka_sink.protocol.schema import VersionRange

# Two-phase commit (InitProducerId v6) is in no released broker; topic ids in OffsetCommit and OffsetFetch (v10) are
# for groups of the newer kind, which are not served here.
_BELOW_OUR_OWN = {
    ApiKey.INIT_PRODUCER_ID: 5,
    ApiKey.OFFSET_COMMIT: 9,
    ApiKey.OFFSET_FETCH: 9,
}


def supported_versions(limits: Mapping[ApiKey, VersionRange] | None) -> Mapping[int, VersionRange]:
    """What is spoken, less what `limits` take away; an API whose range is empty is absent."""
    return SPOKEN if not limits else {key: each for key, each in _narrowed(limits).items() if each.min <= each.max}


def _narrowed(limits: Mapping[ApiKey, VersionRange]) -> dict[int, VersionRange]:
    narrowed = dict(SPOKEN)
    for key, limit in limits.items():
        ours = SPOKEN[key]
        narrowed[key] = VersionRange(max(ours.min, limit.min), min(ours.max, limit.max))
    return narrowed


SPOKEN: Mapping[int, VersionRange] = {
    key: VersionRange(ours.min, min(ours.max, _BELOW_OUR_OWN.get(key, ours.max)))
    for key, ours in ((key, load_request_type(key).VERSIONS) for key in handled_api_keys())
}
