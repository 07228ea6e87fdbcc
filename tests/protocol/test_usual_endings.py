"""A struct that ends as nearly all do is read at once; whatever stands in any of its last fields, it comes back."""

from __future__ import annotations

from itertools import product
from typing import Any

import pytest

from spark_kafka_sink.errors import DecodeError
from spark_kafka_sink.protocol.messages.produce import (
    BatchIndexAndErrorMessage,
    LeaderIdAndEpoch,
    PartitionProduceResponse,
    ProduceResponse,
    TopicProduceResponse,
)

ENDINGS = [
    dict(fields)
    for fields in product(
        [("record_errors", []), ("record_errors", [BatchIndexAndErrorMessage(batch_index=3)])],
        [("error_message", None), ("error_message", ""), ("error_message", "no")],
        [
            ("current_leader", None),
            ("current_leader", LeaderIdAndEpoch()),
            ("current_leader", LeaderIdAndEpoch(leader_id=1, leader_epoch=2)),
        ],
        [("unknown_tags", None), ("unknown_tags", {9: b"x"})],
    )
]


def answer(*endings: dict[str, Any]) -> ProduceResponse:
    rows = [PartitionProduceResponse(index=i, error_code=i, base_offset=-i, **end) for i, end in enumerate(endings)]
    return ProduceResponse(responses=[TopicProduceResponse(name="t", partition_responses=rows)])


@pytest.mark.parametrize("version", [8, 10, 12])
def test_every_ending_comes_back_next_to_the_usual_one(version: int) -> None:
    endings = ENDINGS if version >= 10 else [end for end in ENDINGS if end == ENDINGS[0] | {"error_message": "no"}]
    message = answer(ENDINGS[0], *endings, ENDINGS[0])
    assert ProduceResponse.decode(b"".join(message.encode(version)), version) == message


def test_rows_do_not_share_what_they_did_not_bring() -> None:
    message = ProduceResponse.decode(b"".join(answer(ENDINGS[0], ENDINGS[0]).encode(12)), 12)
    first, second = message.responses[0].partition_responses
    assert first.record_errors is not second.record_errors


def test_an_answer_that_is_cut_off_is_refused_wherever_that_is() -> None:
    data = b"".join(answer(ENDINGS[0], ENDINGS[0]).encode(12))
    for size in range(len(data)):
        with pytest.raises(DecodeError):
            ProduceResponse.decode(data[:size], 12)
