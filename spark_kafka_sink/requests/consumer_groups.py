"""OffsetAndMetadata and GroupMetadata: the consumer group offsets that a user adds to a transaction.

Both validate their values on creation, so an invalid value raises on the user's thread.
"""

from __future__ import annotations

from dataclasses import dataclass
from operator import index
from typing import SupportsIndex

from spark_kafka_sink.client.option_parsing import INT_MAX, LONG_MAX
from spark_kafka_sink.errors import InvalidRecordError
from spark_kafka_sink.protocol.codecs import MAX_STRING_BYTES, is_encodable_string


@dataclass(frozen=True)
class OffsetAndMetadata:
    """A consumer group's position in one partition. `offset` is the offset of the next record to read."""

    offset: int
    leader_epoch: int = -1
    metadata: str = ""

    def __post_init__(self) -> None:
        ensure_integer_in_range("an offset", self.offset, minimum=0, maximum=LONG_MAX)
        ensure_integer_in_range("a leader epoch", self.leader_epoch, minimum=-1, maximum=INT_MAX)
        _ensure_text("the metadata of an offset", self.metadata)


@dataclass(frozen=True)
class GroupMetadata:
    """A consumer group and, if brokers manage the group's membership, one of its members."""

    group_id: str
    generation_id: int = -1
    member_id: str = ""
    group_instance_id: str | None = None

    def __post_init__(self) -> None:
        _ensure_text("the id of a consumer group", self.group_id)
        ensure_integer_in_range("the generation of a consumer group", self.generation_id, minimum=-1, maximum=INT_MAX)
        _ensure_text("the id of a group's member", self.member_id)
        if self.group_instance_id is not None:
            _ensure_text("the instance id of a group's member", self.group_instance_id)
        if self.generation_id >= 0 and not self.member_id:
            raise InvalidRecordError(
                f"the generation {self.generation_id} of group {self.group_id!a:.60} has no member_id. Set the "
                "consumer's member_id, or leave out both."
            )


def ensure_integer_in_range(subject: str, value: object, minimum: int, maximum: int) -> None:
    """Raise InvalidRecordError unless the value is an integer in this range.

    An invalid value would otherwise fail to encode on the sender thread, where every error is fatal.

    `subject`: what the error message calls the value.
    """
    if isinstance(value, SupportsIndex) and minimum <= index(value) <= maximum:
        return
    raise InvalidRecordError(f"{subject} must be an integer from {minimum} to {maximum}, not {value!a:.60}.")


def _ensure_text(subject: str, value: object) -> None:
    if not isinstance(value, str) or not is_encodable_string(value):
        raise InvalidRecordError(
            f"{subject} must be text of at most {MAX_STRING_BYTES} bytes in UTF-8, not {value!a:.60}."
        )
