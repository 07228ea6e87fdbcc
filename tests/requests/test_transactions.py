"""Responses of all broker versions to transactional requests."""

from __future__ import annotations

import re
from typing import Any

import pytest

from spark_kafka_sink.client.cluster import Node
from spark_kafka_sink.client.producer_ids import ProducerIdAndEpoch
from spark_kafka_sink.protocol import error_codes as codes
from spark_kafka_sink.protocol.messages.describe_transactions import (
    DescribeTransactionsResponse,
    DescribeTransactionsResponseTransactionState,
)
from spark_kafka_sink.protocol.messages.find_coordinator import Coordinator, FindCoordinatorResponse
from spark_kafka_sink.protocol.messages.list_transactions import ListTransactionsResponse
from spark_kafka_sink.requests.consumer_groups import GroupMetadata
from spark_kafka_sink.requests.find_coordinator import MIN_VERSION_WITH_SEVERAL_KEYS, FindCoordinator
from spark_kafka_sink.requests.init_producer_id import InitProducerId
from spark_kafka_sink.requests.request import GROUP_KEY_TYPE, TRANSACTION_KEY_TYPE, BrokerRoute, Role
from spark_kafka_sink.requests.transaction_identity import TransactionIdentity
from spark_kafka_sink.requests.transaction_request import TransactionRequest
from spark_kafka_sink.requests.transactions import (
    AddOffsets,
    AddPartitions,
    CommitOffsets,
    DescribeTransactions,
    EndTransaction,
    ListTransactions,
)
from spark_kafka_sink.requests.verdicts import Verdict


def test_docstring_lists_effects_of_each_request() -> None:
    flags = [name for name, value in vars(TransactionRequest).items() if value is False]
    documented_effects = {
        name: effects.split(", ")
        for names, effects in re.findall(r"^ {8}(\S.*?)  +(\S.*)$", TransactionRequest.__doc__ or "", re.MULTILINE)
        for name in names.split(", ")
    }
    for request_type in (AddPartitions, AddOffsets, CommitOffsets, EndTransaction, InitProducerId):
        effects = [flag for flag in flags if getattr(request_type, flag)]
        assert sorted(documented_effects.pop(request_type.__name__)) == sorted(effects)
    assert not documented_effects


def test_reads_coordinator_from_both_response_layouts() -> None:
    lookup = FindCoordinator(["x"])
    single = FindCoordinatorResponse(node_id=1, host="b1", port=9092)
    batched = FindCoordinatorResponse(coordinators=[Coordinator(key="x", node_id=1, host="b1", port=9092)])
    for response in (single, batched):
        assert lookup.classify(response).verdict is Verdict.DONE
        assert lookup.parse_coordinators(response) == {"x": Node(1, "b1", 9092)}
    rejected = FindCoordinatorResponse(error_code=codes.TRANSACTIONAL_ID_AUTHORIZATION_FAILED)
    assert (lookup.classify(rejected).verdict, lookup.parse_coordinators(rejected)) == (Verdict.UNAUTHORIZED, {})


@pytest.mark.parametrize(
    ("group", "lowest"),
    [(GroupMetadata("g"), 0), (GroupMetadata("g", member_id="m"), 3), (GroupMetadata("g", 1, "m"), 3)],
)
def test_offset_commit_version_depends_on_group_member(group: GroupMetadata, lowest: int) -> None:
    identity = TransactionIdentity("x", *ProducerIdAndEpoch(70, 3), 1)
    assert CommitOffsets(identity, group, {}).versions.min == lowest


@pytest.mark.parametrize(
    ("key_type", "subject"), [(TRANSACTION_KEY_TYPE, "transactional id x"), (GROUP_KEY_TYPE, "group x")]
)
def test_lookup_names_what_it_looks_up(key_type: int, subject: str) -> None:
    lookup = FindCoordinator(["x"], key_type)
    rejection = FindCoordinatorResponse(error_code=codes.GROUP_AUTHORIZATION_FAILED)
    error = lookup.build_rejection_error("x", lookup.classify(rejection))
    assert str(error).startswith(f"{subject}: the attempt to look up a coordinator")
    assert lookup.route("x") is Role.ANY_BROKER


@pytest.mark.parametrize("version", [3, MIN_VERSION_WITH_SEVERAL_KEYS])
def test_lookup_has_the_layout_of_its_version(version: int) -> None:
    message = FindCoordinator(["x"], GROUP_KEY_TYPE).build_message(version)
    keys = (message.key, list(message.coordinator_keys))
    assert (message.key_type, keys) == (GROUP_KEY_TYPE, ("x", []) if version == 3 else ("", ["x"]))
    lowest_versions = [FindCoordinator(names, TRANSACTION_KEY_TYPE).versions.min for names in (["x"], ["x", "y"])]
    assert lowest_versions == [1, MIN_VERSION_WITH_SEVERAL_KEYS]


def test_list_of_transactions_is_rejected_with_the_name_of_its_broker() -> None:
    request = ListTransactions(Node(1, "b1", 9092))
    rejection = request.classify(ListTransactionsResponse(error_code=codes.CLUSTER_AUTHORIZATION_FAILED))
    assert str(request.build_rejection_error(request.keys[0], rejection)).startswith("broker 1 (b1:9092): the attempt")


def test_adding_a_group_names_the_transaction() -> None:
    message = AddOffsets(TransactionIdentity("x", 70, 3, 1), "g").build_message(3)
    assert (message.transactional_id, message.producer_id, message.producer_epoch) == ("x", 70, 3)
    assert message.group_id == "g"


def test_description_is_classified_by_its_most_severe_id() -> None:
    request = DescribeTransactions(["a", "b", "c"])
    rows = [
        DescribeTransactionsResponseTransactionState(transactional_id=name, error_code=code)
        for name, code in [("a", codes.NONE), ("b", codes.TRANSACTIONAL_ID_AUTHORIZATION_FAILED)]
    ]
    classification = request.classify(DescribeTransactionsResponse(transaction_states=rows))
    assert (classification.verdict, classification.item) == (Verdict.UNAUTHORIZED, "b")
    assert request.build_message(0).transactional_ids == ["a", "b", "c"]


def test_list_of_a_broker_has_filters() -> None:
    node = Node(1, "b1", 9092)
    assert ListTransactions(node).route("") == BrokerRoute(node)
    assert ListTransactions(None).route("") is Role.ANY_BROKER
    message = ListTransactions(node, ("Ongoing",), (70,)).build_message(0)
    assert (message.state_filters, message.producer_id_filters) == (["Ongoing"], [70])


@pytest.mark.parametrize("request_type", [AddPartitions, AddOffsets, CommitOffsets, EndTransaction, InitProducerId])
def test_docstring_lists_effects_of_request(request_type: type[TransactionRequest[Any]]) -> None:
    """The table in TransactionRequest's docstring names the class variables that are true in each subclass."""
    effects = {name for name, value in vars(TransactionRequest).items() if value is False}
    rows = [line for line in (TransactionRequest.__doc__ or "").splitlines() if request_type.__name__ in line]
    assert len(rows) == 1
    assert {effect for effect in effects if effect in rows[0]} == {
        effect for effect in effects if getattr(request_type, effect)
    }
