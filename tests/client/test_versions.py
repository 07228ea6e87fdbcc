from __future__ import annotations

import re
from dataclasses import fields

import pytest

from spark_kafka_sink.client.versions import (
    MIN_VERSIONS_WITH_CLIENT_THROTTLE,
    FinalizedFeatures,
    NodeApiVersions,
    build_api_versions_request,
    build_node_api_versions,
    choose_lower_api_versions_version,
    compute_throttle_ms,
    find_software_version,
    select_newest_features,
    to_valid_software_text,
)
from spark_kafka_sink.errors import UnsupportedVersionError
from spark_kafka_sink.protocol.message import ApiKey, Message
from spark_kafka_sink.protocol.messages import list_supported_api_keys, load_response_type
from spark_kafka_sink.protocol.messages.api_versions import (
    ApiVersion,
    ApiVersionsResponse,
    FinalizedFeatureKey,
    SupportedFeatureKey,
)
from spark_kafka_sink.protocol.messages.list_transactions import ListTransactionsResponse
from spark_kafka_sink.protocol.messages.produce import ProduceRequest, ProduceResponse
from spark_kafka_sink.protocol.messages.sasl_handshake import SaslHandshakeResponse
from spark_kafka_sink.protocol.schema import VersionRange

# Brokers accept only such text as a client's software name and version (KIP-511).
SOFTWARE_TEXT = re.compile(r"[a-zA-Z0-9](?:[a-zA-Z0-9\-.]*[a-zA-Z0-9])?")

PRODUCE = ProduceRequest.VERSIONS


def supporting(produce: VersionRange | None) -> NodeApiVersions:
    return NodeApiVersions("broker 1 (b:9092)", {} if produce is None else {ApiKey.PRODUCE: produce})


def test_uses_highest_common_version() -> None:
    assert supporting(VersionRange(0, PRODUCE.max + 5)).latest_usable_version(ApiKey.PRODUCE) == PRODUCE.max
    assert supporting(VersionRange(0, 9)).latest_usable_version(ApiKey.PRODUCE) == 9
    assert supporting(VersionRange(5, 12)).latest_usable_version(ApiKey.PRODUCE, VersionRange(0, 11)) == 11


@pytest.mark.parametrize(
    ("broker_versions", "allowed", "message"),
    [
        (VersionRange(90, 99), None, r"too new: it supports versions 90-99 of the API PRODUCE \(0\)"),
        (VersionRange(0, PRODUCE.min - 1), None, f"too old: it supports versions 0-{PRODUCE.min - 1}"),
        (
            VersionRange(5, 9),
            VersionRange(10, 12),
            r"versions 5-9 of the API PRODUCE \(0\), and this client requires one of 10-12",
        ),
        (VersionRange(5, 9), VersionRange(3, 4), "too new"),
        (None, None, r"does not support the API PRODUCE \(0\)"),
    ],
)
def test_error_without_common_version_names_broker_api_and_versions(
    broker_versions: VersionRange | None, allowed: VersionRange | None, message: str
) -> None:
    with pytest.raises(UnsupportedVersionError) as failure:
        supporting(broker_versions).latest_usable_version(ApiKey.PRODUCE, allowed)
    assert "broker 1 (b:9092)" in str(failure.value)
    assert re.search(message, str(failure.value))


def test_error_names_kafka_release_that_added_api() -> None:
    with pytest.raises(
        UnsupportedVersionError, match=r"LIST_TRANSACTIONS \(66\).* Either the broker is older than Kafka 3\.0, or"
    ):
        supporting(None).latest_usable_version(ApiKey.LIST_TRANSACTIONS)


def test_parses_unknown_apis_and_features() -> None:
    versions = build_node_api_versions(
        "broker 1",
        ApiVersionsResponse(
            api_keys=[ApiVersion(api_key=0, min_version=3, max_version=11), ApiVersion(api_key=999, max_version=4)],
            supported_features=[SupportedFeatureKey(name="transaction.version", min_version=0, max_version=2)],
            finalized_features=[FinalizedFeatureKey(name="transaction.version", max_version_level=2)],
            finalized_features_epoch=17,
        ),
    )
    assert versions.ranges == {0: VersionRange(3, 11), 999: VersionRange(0, 4)}
    assert versions.finalized_features == FinalizedFeatures(17, {"transaction.version": 2})


def test_newest_features_have_highest_epoch() -> None:
    def node(epoch: int, level: int) -> NodeApiVersions:
        return NodeApiVersions("b", {}, finalized_features=FinalizedFeatures(epoch, {"transaction.version": level}))

    previous = FinalizedFeatures(5, {"transaction.version": 1})
    assert select_newest_features([node(4, 9), node(7, 2)], previous).levels["transaction.version"] == 2
    assert select_newest_features([node(4, 9)], previous) is previous
    assert select_newest_features([NodeApiVersions("old broker", {})], previous) is previous


def test_older_api_versions_version_follows_broker() -> None:
    rejection = ApiVersionsResponse(error_code=35, api_keys=[ApiVersion(api_key=18, min_version=0, max_version=3)])
    assert choose_lower_api_versions_version(rejection, 4) == 3
    assert choose_lower_api_versions_version(ApiVersionsResponse(error_code=35), 4) == 0
    contradiction = ApiVersionsResponse(error_code=35, api_keys=[ApiVersion(api_key=18, max_version=4)])
    assert choose_lower_api_versions_version(contradiction, 4) == 3, "the client must not repeat the same request"


def test_software_name_is_valid() -> None:
    request = build_api_versions_request()
    assert SOFTWARE_TEXT.fullmatch(request.client_software_name)
    assert SOFTWARE_TEXT.fullmatch(request.client_software_version)


@pytest.mark.parametrize("version", ["1.0", "0.1.0+local.7", "1!2.0", "-dev-", "", "é", "1.0\n"])
def test_converts_any_version_to_valid_text(version: str) -> None:
    assert SOFTWARE_TEXT.fullmatch(to_valid_software_text(version))
    assert SOFTWARE_TEXT.fullmatch(find_software_version())


def test_client_throttles_only_from_certain_versions_of_old_apis() -> None:
    response = ProduceResponse(throttle_time_ms=500)
    first = MIN_VERSIONS_WITH_CLIENT_THROTTLE[ApiKey.PRODUCE]
    assert compute_throttle_ms(response, ApiKey.PRODUCE, first) == 500
    assert compute_throttle_ms(response, ApiKey.PRODUCE, first - 1) == 0
    assert compute_throttle_ms(ListTransactionsResponse(throttle_time_ms=500), ApiKey.LIST_TRANSACTIONS, 0) == 500
    assert compute_throttle_ms(SaslHandshakeResponse(), ApiKey.SASL_HANDSHAKE, 1) == 0


def test_every_api_older_than_client_throttling_has_its_first_version() -> None:
    """Kafka 2.0 introduced client throttling (KIP-219); the newest API until then was DeleteGroups."""
    old_api_keys = [key for key in list_supported_api_keys() if key <= ApiKey.DELETE_GROUPS]
    throttled_keys = {key for key in old_api_keys if "throttle_time_ms" in list_field_names(load_response_type(key))}
    assert MIN_VERSIONS_WITH_CLIENT_THROTTLE.keys() == throttled_keys


def list_field_names(message_type: type[Message]) -> list[str]:
    return [field.name for field in fields(message_type)]


@pytest.mark.parametrize(
    ("levels", "version"), [({}, 1), ({"transaction.version": 1}, 1), ({"transaction.version": 2}, 2)]
)
def test_transaction_version_is_1_without_feature_level_2(levels: dict[str, int], version: int) -> None:
    assert FinalizedFeatures(7, levels).transaction_version == version
