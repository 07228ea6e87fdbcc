"""Consumer groups and offsets are validated when the user creates them."""

from __future__ import annotations

from typing import Any

import pytest

from spark_kafka_sink.errors import InvalidRecordError
from spark_kafka_sink.protocol.codecs import MAX_STRING_BYTES
from spark_kafka_sink.requests.consumer_groups import GroupMetadata, OffsetAndMetadata

TOO_LONG = "x" * (MAX_STRING_BYTES + 1)


@pytest.mark.parametrize(
    ("values", "field"),
    [
        ({"offset": -1}, "an offset"),
        ({"offset": 2**63}, "an offset"),
        ({"offset": "1"}, "an offset"),
        ({"offset": 1, "leader_epoch": -2}, "a leader epoch"),
        ({"offset": 1, "leader_epoch": 2**31}, "a leader epoch"),
        ({"offset": 1, "metadata": TOO_LONG}, "the metadata of an offset"),
        ({"offset": 1, "metadata": "\ud800"}, "the metadata of an offset"),
    ],
)
def test_rejects_invalid_offset(values: dict[str, Any], field: str) -> None:
    with pytest.raises(InvalidRecordError, match=f"^{field} must be "):
        OffsetAndMetadata(**values)


@pytest.mark.parametrize(
    ("values", "field"),
    [
        ({"group_id": None}, "the id of a consumer group"),
        ({"group_id": "g", "generation_id": -2}, "the generation of a consumer group"),
        ({"group_id": "g", "member_id": TOO_LONG}, "the id of a group's member"),
        ({"group_id": "g", "group_instance_id": 1}, "the instance id of a group's member"),
    ],
)
def test_rejects_invalid_group(values: dict[str, Any], field: str) -> None:
    with pytest.raises(InvalidRecordError, match=f"^{field} must be "):
        GroupMetadata(**values)


def test_rejects_generation_without_member() -> None:
    with pytest.raises(InvalidRecordError, match="the generation 0 of group 'g' has no member_id"):
        GroupMetadata("g", 0)


def test_accepts_greatest_values() -> None:
    OffsetAndMetadata(2**63 - 1, 2**31 - 1, "x" * MAX_STRING_BYTES)
    GroupMetadata("g", 2**31 - 1, "member", "instance")
    GroupMetadata("g")
