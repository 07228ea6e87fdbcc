"""Checks of a probe's results (probe.py), which show whether brokers are reachable and topics are usable.

If a check has failed, the checks that depend on it are skipped.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace

from spark_kafka_sink.client.cluster import Node
from spark_kafka_sink.client.config import ClientConfig
from spark_kafka_sink.client.host_lookups import resolve_advertised
from spark_kafka_sink.client.metadata import UNREACHABLE_REMEDY
from spark_kafka_sink.client.versions import TRANSACTION_VERSION, NodeApiVersions
from spark_kafka_sink.diagnostics.text import format_count, sanitize
from spark_kafka_sink.errors import (
    AuthenticationError,
    ListenerMismatchError,
    NetworkError,
    TlsError,
    UnsupportedVersionError,
)
from spark_kafka_sink.network.system import System
from spark_kafka_sink.preflight.checks import (
    BOOTSTRAP,
    MAX_LISTED_RESULTS,
    METADATA,
    SECURITY,
    CheckResult,
    Outcome,
    PreflightTimeouts,
    Target,
    format_topic_check_name,
)
from spark_kafka_sink.preflight.probe import Probe
from spark_kafka_sink.protocol import error_codes
from spark_kafka_sink.protocol.acl_operation import AclOperation
from spark_kafka_sink.protocol.error_codes import lookup_error_code
from spark_kafka_sink.protocol.message import ApiKey
from spark_kafka_sink.protocol.messages.metadata import MetadataResponseTopic
from spark_kafka_sink.protocol.topic_names import TOPIC_NAME_RULE

# Names of checks.
NAME_RESOLUTION = "names"
VERSIONS = "versions"

_DOES_NOT_EXIST_DETAIL = "does not exist"
_WILL_BE_CREATED_DETAIL = "does not exist and will be created"

_SHOWN_FEATURES = frozenset({"metadata.version", TRANSACTION_VERSION})
"""The finalized features whose levels are shown in the check `versions`."""

_EXACTLY_ONCE_APIS = (
    ApiKey.LIST_TRANSACTIONS,
    ApiKey.DESCRIBE_TRANSACTIONS,
    ApiKey.FIND_COORDINATOR,
    ApiKey.ADD_PARTITIONS_TO_TXN,
    ApiKey.END_TXN,
    ApiKey.FETCH,
)

_PASSWORD_REMEDY = (
    "Check the user name and password in sasl.jaas.config, and that the broker has this user for this mechanism."
)
_AUTHENTICATION_REMEDIES = {
    "PLAIN": _PASSWORD_REMEDY,
    "SCRAM-SHA-256": _PASSWORD_REMEDY,
    "SCRAM-SHA-512": _PASSWORD_REMEDY,
    "OAUTHBEARER": "Check the options sasl.oauthbearer.*, and that the broker trusts the issuer of the tokens.",
    "GSSAPI": (
        "Check that this user has a Kerberos ticket (klist), and that sasl.kerberos.service.name is the service name "
        "of the brokers."
    ),
}

_CLOSED_CONNECTION_REMEDY = (
    "If the broker closed the connection, its listener may expect another security.protocol: SASL or TLS."
)
_UNRESPONSIVE_BROKER_REMEDY = "Check the log and the load of the broker, and of any proxy in front of it."

_AUTO_CREATION_NOTE = (
    " Brokers create missing topics only if auto.create.topics.enable is true, and only for users with the Create "
    "permission."
)
"""An addition to the remedy of a missing topic. Metadata requests of readers never create topics."""

_ACCESS_TEXTS = {
    AclOperation.READ: "read the topic",
    AclOperation.WRITE: "write to the topic",
    AclOperation.DESCRIBE: "describe the topic",
}


def build_connectivity_checks(probe: Probe, config: ClientConfig, timeouts: PreflightTimeouts) -> list[CheckResult]:
    """Build the checks in the order in which a producer connects. `probe` must have run."""
    no_response_text = f"no response within {timeouts.response_ms / 1000:g} s"
    return [
        _check_bootstrap(probe, no_response_text),
        _check_security(probe, config),
        _check_metadata(probe, no_response_text),
        *_check_versions(probe),
        *(_check_topic(probe, topic) for topic in probe.target.topics),
        *(_check_leader(probe, node, no_response_text) for node in probe.find_leaders()),
    ]


def check_name_resolution(nodes: Iterable[Node], system: System) -> CheckResult:
    """Resolve the nodes' host names on this machine and list the addresses.

    If a host name does not resolve, this check only warns, because the check that connects to the node already fails.
    """
    addresses_by_host: dict[str, list[str]] = {}
    for node in nodes:
        try:
            addresses = [str(address.sockaddr[0]) for address in resolve_advertised(system, node.host, node.port)]
        except NetworkError:
            addresses = []
        addresses_by_host[node.host] = addresses
    outcome = Outcome.PASSED if all(addresses_by_host.values()) else Outcome.WARNING
    results = [
        f"{sanitize(host)} {_describe_resolution(host, addresses)}" for host, addresses in addresses_by_host.items()
    ]
    unlisted_count = len(results) - MAX_LISTED_RESULTS
    remainder = f"; and {unlisted_count} more" if unlisted_count > 0 else ""
    return CheckResult(NAME_RESOLUTION, outcome, "; ".join(results[:MAX_LISTED_RESULTS]) + remainder)


def _describe_resolution(host: str, addresses: list[str]) -> str:
    if not addresses:
        return "does not resolve"
    if addresses == [host]:
        return "needs no lookup"
    distinct_addresses = dict.fromkeys(addresses)
    return f"resolves to {', '.join(distinct_addresses)}"


def _check_bootstrap(probe: Probe, no_response_text: str) -> CheckResult:
    """Fail if no bootstrap server is reachable, and warn if some are not.

    A server at which the login failed counts as reachable. `_check_security` reports the failure.
    """
    unreachable_nodes = [
        node
        for node in probe.bootstrap_nodes
        if node.id not in probe.connected_nodes
        and probe.client.authentication_exception(node.id) is None
        and not _find_credentials_remedy(probe, node)
    ]
    failures = "; ".join(
        f"{node.address}: {_describe_failure(probe, node, no_response_text)}"
        for node in unreachable_nodes[:MAX_LISTED_RESULTS]
    )
    summary = f"{len(probe.bootstrap_nodes) - len(unreachable_nodes)} of {len(probe.bootstrap_nodes)} reachable"
    if not unreachable_nodes:
        return CheckResult(BOOTSTRAP, Outcome.PASSED, summary)
    if len(unreachable_nodes) < len(probe.bootstrap_nodes):
        return CheckResult(BOOTSTRAP, Outcome.WARNING, f"{summary}; {failures}")
    unreachable_remedy = f"{UNREACHABLE_REMEDY} Also check that security.protocol matches the broker's listener."
    remedies = dict.fromkeys(_suggest_remedy(probe, node, unreachable_remedy) for node in unreachable_nodes)
    is_connectivity_failure = not any(_has_responded(probe, node) for node in unreachable_nodes)
    return CheckResult(
        BOOTSTRAP, Outcome.FAILED, failures, " ".join(remedies), is_connectivity_failure=is_connectivity_failure
    )


def _check_security(probe: Probe, config: ClientConfig) -> CheckResult:
    """Pass if any broker has accepted the login; otherwise, report the first failure."""
    security = config.security
    detail = security.protocol + (f" with {security.login.mechanism}" if security.login is not None else "")
    if probe.connected_nodes:
        return CheckResult(SECURITY, Outcome.PASSED, detail)
    for node in probe.bootstrap_nodes:
        error = probe.client.authentication_exception(node.id)
        if error is not None:
            message = str(error).removesuffix(error.remedy).rstrip()
            remedy = error.remedy or _suggest_authentication_remedy(config, error)
            return CheckResult(SECURITY, Outcome.FAILED, f"{detail}: {message}", remedy)
        remedy = _find_credentials_remedy(probe, node)
        if remedy:
            loss = probe.client.connection_losses[node.id]
            return CheckResult(SECURITY, Outcome.FAILED, f"{detail}: {loss.address}: {loss.detail}", remedy)
    return CheckResult(SECURITY, Outcome.SKIPPED, "no connection")


def _suggest_authentication_remedy(config: ClientConfig, error: AuthenticationError) -> str:
    """Return the remedy for a failed login whose error has none of its own.

    The remedy is empty if the error's own message already contains one. This is the case for TLS errors, and if the
    listener expects a different mechanism or no SASL.
    """
    if isinstance(error, TlsError | ListenerMismatchError) or config.security.login is None:
        return ""
    return _AUTHENTICATION_REMEDIES[config.security.login.mechanism]


def _check_metadata(probe: Probe, no_response_text: str) -> CheckResult:
    """Pass if a broker has returned metadata. `no_response_text`: the reason to report if no request has failed."""
    response = probe.metadata_response
    if response is not None:
        detail = f"cluster {sanitize(response.cluster_id)} with {format_count(len(response.brokers), 'broker')}"
        return CheckResult(METADATA, Outcome.PASSED, detail)
    if not probe.connected_nodes:
        return CheckResult(METADATA, Outcome.SKIPPED, "no connection")
    failure = probe.metadata_failure
    losses = (probe.client.connection_losses.get(node_id) for node_id in probe.connected_nodes)
    has_timed_out = not failure or any(loss is not None and loss.timed_out for loss in losses)
    remedy = _UNRESPONSIVE_BROKER_REMEDY if has_timed_out else _CLOSED_CONNECTION_REMEDY
    return CheckResult(METADATA, Outcome.FAILED, failure or no_response_text, remedy)


def _check_versions(probe: Probe) -> list[CheckResult]:
    """Return one check for all connected brokers, or an empty list if no broker is connected."""
    versions_by_broker = [
        versions
        for node_id in probe.connected_nodes
        if (versions := probe.client.find_api_versions(node_id)) is not None
    ]
    if not versions_by_broker:
        return []
    for apis, remedy in _list_required_apis(probe.target):
        error = _find_version_error(apis, versions_by_broker)
        if error is not None:
            return [CheckResult(VERSIONS, Outcome.FAILED, str(error), remedy)]
    produce_version = min(versions.latest_usable_version(ApiKey.PRODUCE) for versions in versions_by_broker)
    feature_levels = probe.client.finalized_features.levels
    features = "".join(f", {name} {level}" for name, level in sorted(feature_levels.items()) if name in _SHOWN_FEATURES)
    return [CheckResult(VERSIONS, Outcome.PASSED, f"Produce version {produce_version}{features}")]


def _list_required_apis(target: Target) -> Iterator[tuple[Sequence[ApiKey], str]]:
    """Yield groups of APIs that the write requires, each with a remedy for brokers that lack one of its APIs."""
    yield (
        (ApiKey.PRODUCE, *([ApiKey.INIT_PRODUCER_ID] if target.idempotent else ())),
        "Use brokers of Kafka 2.8 or newer.",
    )
    if target.exactly_once:
        yield (
            _EXACTLY_ONCE_APIS,
            "Exactly-once delivery requires Kafka 3.0 or newer. With older brokers, remove deliveryGuarantee; rows are "
            "then written at least once.",
        )


def _find_version_error(apis: Sequence[ApiKey], brokers: Sequence[NodeApiVersions]) -> UnsupportedVersionError | None:
    """Return the error for the first API that any of the brokers does not support, or None if all are supported."""
    try:
        for api, versions in itertools.product(apis, brokers):
            versions.latest_usable_version(api)
    except UnsupportedVersionError as error:
        return error
    return None


def _check_topic(probe: Probe, topic: str) -> CheckResult:
    """Check one of the target's topics. A missing topic that the writer will create passes."""
    topics = probe.metadata_response.topics if probe.metadata_response is not None else []
    metadata = next((metadata for metadata in topics if metadata.name == topic), None)
    if metadata is None:
        return CheckResult(format_topic_check_name(topic), Outcome.SKIPPED, "no metadata")
    if probe.should_create(metadata):
        return CheckResult(format_topic_check_name(topic), Outcome.PASSED, _WILL_BE_CREATED_DETAIL)
    check = check_topic_metadata(metadata, probe.brokers, probe.target.topic_operation)
    option = dict(probe.target.topic_option_names).get(topic)
    is_missing = metadata.error_code in error_codes.UNKNOWN_TOPIC_ERRORS
    return _mention_option(check, topic, option) if is_missing and option else check


def _mention_option(check: CheckResult, topic: str, option: str) -> CheckResult:
    """Add the option that names a missing topic to the topic's check."""
    return replace(
        check,
        detail=f"{_DOES_NOT_EXIST_DETAIL}, but is named by the option {option}",
        remedy=f"Create the topic, or correct {option}.",
        sentence=f"Topic '{sanitize(topic)}', named by the option {option}, does not exist",
    )


def _check_leader(probe: Probe, node: Node, no_response_text: str) -> CheckResult:
    """Check that a broker can be reached at the address that it advertises."""
    if node.id in probe.connected_nodes:
        topics = probe.metadata_response.topics if probe.metadata_response is not None else []
        partition_count = sum(partition.leader_id == node.id for topic in topics for partition in topic.partitions)
        leadership = f", leads {format_count(partition_count, 'partition')}" if partition_count else ""
        return CheckResult(str(node), Outcome.PASSED, f"reachable{leadership}")
    # The probe may end while connections are still being opened, for example because access to a topic is denied.
    if probe.is_conclusive and node.id not in probe.client.connection_losses:
        return CheckResult(str(node), Outcome.SKIPPED, "the checks ended before the broker was connected")
    unreachable_remedy = (
        "The broker advertises this address (advertised.listeners). The address must lead to this broker from this "
        "machine and from every executor. If it does, check that the broker is running."
    )
    return CheckResult(
        str(node),
        Outcome.FAILED,
        _describe_failure(probe, node, no_response_text),
        _suggest_remedy(probe, node, unreachable_remedy),
        is_connectivity_failure=not _has_responded(probe, node),
    )


def _describe_failure(probe: Probe, node: Node, no_response_text: str) -> str:
    """Return why the connection failed. The text does not contain the node's address, because all callers add it."""
    loss = probe.client.connection_losses.get(node.id)
    return no_response_text if loss is None else loss.detail


def _suggest_remedy(probe: Probe, node: Node, unreachable_remedy: str) -> str:
    """Return the remedy of a failed connection. `unreachable_remedy`: the remedy if the node has not responded."""
    loss = probe.client.connection_losses.get(node.id)
    return unreachable_remedy if loss is None else loss.suggest_remedy(unreachable_remedy)


def _has_responded(probe: Probe, node: Node) -> bool:
    loss = probe.client.connection_losses.get(node.id)
    return loss is not None and loss.has_responded


def _find_credentials_remedy(probe: Probe, node: Node) -> str:
    """Return the remedy if the connection failed because of missing credentials, else an empty text."""
    loss = probe.client.connection_losses.get(node.id)
    return "" if loss is None else loss.remedy


def check_topic_metadata(
    topic: MetadataResponseTopic, broker_ids: Iterable[int], operation: AclOperation
) -> CheckResult:
    """Check a topic's metadata for errors, missing permissions and missing leaders.

    `broker_ids`: the ids of the cluster's brokers. If a partition's leader is not one of them, it counts as missing.
    `operation`: what the user needs permission for.
    """
    name = format_topic_check_name(topic.name or "")
    if topic.error_code in error_codes.UNKNOWN_TOPIC_ERRORS:
        return _build_missing_topic_check(name, topic, operation)
    if topic.error_code != error_codes.NONE:
        return _build_topic_error_check(name, topic.error_code, operation)
    authorized_operations = topic.topic_authorized_operations
    # The user may describe the topic, because otherwise its metadata would contain an error. So if the describe bit is
    # not set, the broker has not returned the operations: the field then has the lowest int32 value. In that case, it
    # is not known what the user may do.
    if AclOperation.DESCRIBE.is_in(authorized_operations) and not operation.is_in(authorized_operations):
        detail = f"this user is not authorized to {_ACCESS_TEXTS[operation]}"
        remedy = f"Grant this user the {operation.permission} permission on the topic."
        return CheckResult(name, Outcome.FAILED, detail, remedy)
    return _check_partition_leaders(name, topic, broker_ids)


def _build_missing_topic_check(name: str, topic: MetadataResponseTopic, operation: AclOperation) -> CheckResult:
    """Build the check of a topic that does not exist. `operation`: what the user needs permission for."""
    note = _AUTO_CREATION_NOTE if operation is AclOperation.WRITE else ""
    return CheckResult(
        name,
        Outcome.FAILED,
        _DOES_NOT_EXIST_DETAIL,
        remedy=f"Correct the name or create the topic.{note}",
        sentence=f"Topic '{sanitize(topic.name)}' does not exist",
    )


def _build_topic_error_check(name: str, code: int, operation: AclOperation) -> CheckResult:
    """Build the check of an existing topic whose metadata has this error code.

    `operation`: what the user needs permission for.
    """
    is_write = operation is AclOperation.WRITE
    if code == error_codes.TOPIC_AUTHORIZATION_FAILED:
        remedy = (
            "Grant this user the Describe permission on the topic."
            if operation is AclOperation.DESCRIBE
            else f"Grant this user the {operation.permission} and Describe permissions on the topic."
        )
        detail = "this user is not authorized to describe the topic (TOPIC_AUTHORIZATION_FAILED)"
        return CheckResult(name, Outcome.FAILED, detail, remedy)
    error = lookup_error_code(code)
    outcome = Outcome.WARNING if error.retriable else Outcome.FAILED
    is_invalid_name = code == error_codes.INVALID_TOPIC_EXCEPTION and not is_write  # the code's advice is for writes
    remedy = f"A topic name consists of {TOPIC_NAME_RULE}." if is_invalid_name else error.advice
    return CheckResult(name, outcome, error.name, remedy)


def _check_partition_leaders(name: str, topic: MetadataResponseTopic, broker_ids: Iterable[int]) -> CheckResult:
    """Warn if the leader of a partition is not one of the brokers."""
    leaderless_indexes = [
        partition.partition_index for partition in topic.partitions if partition.leader_id not in broker_ids
    ]
    partitions_text = format_count(len(topic.partitions), "partition")
    if leaderless_indexes:
        listed_indexes = ", ".join(str(index) for index in leaderless_indexes[:MAX_LISTED_RESULTS])
        detail = f"{len(leaderless_indexes):,} of {partitions_text} without a leader: {listed_indexes}"
        remedy = "Rows for these partitions wait for a leader, for at most delivery.timeout.ms."
        return CheckResult(name, Outcome.WARNING, detail, remedy)
    return CheckResult(name, Outcome.PASSED, partitions_text)
