"""What requests read in their answers, whatever the version of the broker."""

from __future__ import annotations

from spark_kafka_sink.client.cluster import Node
from spark_kafka_sink.producer.transactions.requests import FindCoordinator
from spark_kafka_sink.producer.transactions.verdicts import Verdict
from spark_kafka_sink.protocol import error_codes as codes
from spark_kafka_sink.protocol.messages.find_coordinator import Coordinator, FindCoordinatorResponse


def test_a_coordinator_is_taken_from_either_layout_of_the_answer() -> None:
    lookup = FindCoordinator(["x"])
    one = FindCoordinatorResponse(node_id=1, host="b1", port=9092)
    several = FindCoordinatorResponse(coordinators=[Coordinator(key="x", node_id=1, host="b1", port=9092)])
    for answer in (one, several):
        assert lookup.judged(answer).verdict is Verdict.DONE
        assert lookup.found(answer) == {"x": Node(1, "b1", 9092)}
    refused = FindCoordinatorResponse(error_code=codes.TRANSACTIONAL_ID_AUTHORIZATION_FAILED)
    assert (lookup.judged(refused).verdict, lookup.found(refused)) == (Verdict.REFUSED, {})
