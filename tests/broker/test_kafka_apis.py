"""Requests to the embedded broker: injected errors and throttle times in every version, and unsupported versions."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from spark_kafka_sink.protocol import error_codes
from spark_kafka_sink.protocol.headers import decode_response
from spark_kafka_sink.protocol.message import ApiKey
from spark_kafka_sink.protocol.messages.api_versions import ApiVersionsRequest, ApiVersionsResponse
from spark_kafka_sink.protocol.schema import Struct, VersionRange, get_field_specs
from tests.broker.cluster_cases import client as client
from tests.broker.cluster_cases import system as system
from tests.broker.sample_requests import every_api, request_each_version
from tests.broker.wire_client import WireClient, batch, produce_request
from tests.fake_system import FakeSystem
from tests.simulated_cluster import SimulatedCluster


@pytest.fixture
def cluster(system: FakeSystem) -> SimulatedCluster:
    """A cluster of one node, which coordinates all transactions, so that it executes every request."""
    return SimulatedCluster(system, topics={"t": 2})


@every_api
def test_injects_error_in_every_version(client: WireClient, cluster: SimulatedCluster, api: ApiKey) -> None:
    cluster.control.when(api=api, times=None).fail(error_codes.UNKNOWN_SERVER_ERROR)
    assert list(request_each_version(client, cluster, api))


@every_api
def test_injects_error_after_execution_in_every_version(
    client: WireClient, cluster: SimulatedCluster, api: ApiKey
) -> None:
    cluster.control.when(api=api, times=None).fail(error_codes.UNKNOWN_SERVER_ERROR, execute_first=True)
    for version, response in request_each_version(client, cluster, api):
        codes = set(collect_error_codes(response, version))
        assert codes <= {error_codes.UNKNOWN_SERVER_ERROR}, f"version {version}"


def collect_error_codes(message: Struct, version: int) -> Iterator[int]:
    """Yield the error codes of a message and its nested structs, in fields that the version has."""
    for name, spec in get_field_specs(type(message)).items():
        value = getattr(message, name)
        if name in ("error_code", "partition_error_code") and version in spec.versions:
            yield value
        for element in value if isinstance(value, list) else ():
            if isinstance(element, Struct):
                yield from collect_error_codes(element, version)


@every_api
def test_injects_throttle_time_in_every_version(client: WireClient, cluster: SimulatedCluster, api: ApiKey) -> None:
    cluster.control.when(api=api, times=None).throttle(7)
    for version, response in request_each_version(client, cluster, api):
        specs = get_field_specs(type(response))
        has_throttle_time = "throttle_time_ms" in specs and version in specs["throttle_time_ms"].versions
        assert getattr(response, "throttle_time_ms", 0) == (7 if has_throttle_time else 0), f"version {version}"


def test_unsupported_version_gets_api_versions_v0_or_closes_connection(
    system: FakeSystem,
) -> None:
    limits = {ApiKey.API_VERSIONS: VersionRange(0, 0), ApiKey.PRODUCE: VersionRange(3, 7)}
    SimulatedCluster(system, topics={"t": 1}, version_limits=limits)
    client = WireClient(system)
    client.send(ApiVersionsRequest(), 3)
    payload = client.wait()
    assert payload is not None
    _, response = decode_response(payload, ApiVersionsResponse, 0)
    assert response.error_code == error_codes.UNSUPPORTED_VERSION
    assert next((k.min_version, k.max_version) for k in response.api_keys if k.api_key == ApiKey.PRODUCE) == (3, 7)
    assert client.request(produce_request(batch(b"a")), 8) is None
