"""What a probe has found about the way to the cluster, as checks: each step depends on those before it."""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace

from spark_kafka_sink.client.cluster import Node
from spark_kafka_sink.client.config import ClientConfig
from spark_kafka_sink.client.connections import resolve_advertised
from spark_kafka_sink.client.versions import TRANSACTION_VERSION, NodeApiVersions
from spark_kafka_sink.diagnostics.text import sanitize
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
    FAULTS_SHOWN_MAX,
    METADATA,
    SECURITY,
    Check,
    Outcome,
    PreflightTimeouts,
    Target,
    count,
    topic_name,
)
from spark_kafka_sink.preflight.probe import Probe
from spark_kafka_sink.protocol import error_codes
from spark_kafka_sink.protocol.error_codes import lookup_error_code
from spark_kafka_sink.protocol.message import ApiKey
from spark_kafka_sink.protocol.messages.metadata import MetadataResponseTopic

NAMES = "names"
IS_TO_BE_CREATED = "does not exist, and is to be created"
VERSIONS = "versions"
DOES_NOT_EXIST = "does not exist"
_FEATURES_SHOWN = frozenset({"metadata.version", TRANSACTION_VERSION})

_OF_EXACTLY_ONCE = (
    ApiKey.LIST_TRANSACTIONS,
    ApiKey.DESCRIBE_TRANSACTIONS,
    ApiKey.FIND_COORDINATOR,
    ApiKey.ADD_PARTITIONS_TO_TXN,
    ApiKey.END_TXN,
    ApiKey.FETCH,
)

_PASSWORD_REMEDY = "Check user and password in sasl.jaas.config, and that the broker has this user for this mechanism."
_LOGIN_REMEDIES = {
    "PLAIN": _PASSWORD_REMEDY,
    "SCRAM-SHA-256": _PASSWORD_REMEDY,
    "SCRAM-SHA-512": _PASSWORD_REMEDY,
    "OAUTHBEARER": "Check the options of sasl.oauthbearer.*, and that the broker trusts who issues the tokens.",
    "GSSAPI": "Check that this user has a ticket (klist), and that sasl.kerberos.service.name is that of the brokers.",
}

# Bits of topic_authorized_operations. Brokers that do not tell them send the lowest number, which has neither.
_MAY_WRITE, _MAY_DESCRIBE = 1 << 4, 1 << 8


def reached_checks(probe: Probe, config: ClientConfig, timeouts: PreflightTimeouts) -> list[Check]:
    waited = f"within {timeouts.response_ms / 1000:g} s"
    return [
        _bootstrap_check(probe, waited),
        _security_check(probe, config),
        _metadata_check(probe, waited),
        *_versions_checks(probe),
        *(_topic_check(probe, topic) for topic in probe.target.topics),
        *(_leader_check(probe, node, waited) for node in probe.leaders()),
    ]


def names_check(nodes: Iterable[Node], system: System) -> Check:
    """Which addresses the names have here. One that has none fails elsewhere, with the connection that needs it."""
    shown: dict[str, str] = {}
    outcome = Outcome.PASSED
    for node in nodes:
        try:
            addresses = [str(address.sockaddr[0]) for address in resolve_advertised(system, node.host, node.port)]
        except NetworkError:
            addresses = []
        if not addresses:
            outcome = Outcome.WARNING
        shown[node.host] = f"{sanitize(node.host)} {_named(node.host, addresses)}"
    more = f"; and {len(shown) - FAULTS_SHOWN_MAX} more" if len(shown) > FAULTS_SHOWN_MAX else ""
    return Check(NAMES, outcome, "; ".join([*shown.values()][:FAULTS_SHOWN_MAX]) + more)


def _named(host: str, addresses: Iterable[str]) -> str:
    if addresses == [host]:
        return "needs no look-up"
    return f"is {', '.join(dict.fromkeys(addresses))}" if addresses else "has no address"


def _bootstrap_check(probe: Probe, waited: str) -> Check:
    refused = {node.id for node in probe.bootstrap if probe.client.authentication_exception(node.id) is not None}
    silent = [node for node in probe.bootstrap if node.id not in probe.reached and node.id not in refused]
    faults = "; ".join(f"{node.address}: {_why(probe, node, waited)}" for node in silent[:FAULTS_SHOWN_MAX])
    answered = f"{len(probe.bootstrap) - len(silent)} of {len(probe.bootstrap)} can be connected to"
    if not silent:
        return Check(BOOTSTRAP, Outcome.PASSED, answered)
    if len(silent) < len(probe.bootstrap):
        return Check(BOOTSTRAP, Outcome.WARNING, f"{answered}; {faults}")
    remedy = (
        "Check host and port, that a broker listens there and no firewall is in between, and that security.protocol is "
        "that of its listener."
    )
    return Check(BOOTSTRAP, Outcome.FAILED, faults, remedy, concerns_address=True)


def _security_check(probe: Probe, config: ClientConfig) -> Check:
    security = config.security
    words = security.protocol + (f" with {security.login.mechanism}" if security.login is not None else "")
    if probe.reached:
        return Check(SECURITY, Outcome.PASSED, words)
    for node in probe.bootstrap:
        error = probe.client.authentication_exception(node.id)
        if error is not None:
            return Check(SECURITY, Outcome.FAILED, f"{words}: {error}", _login_remedy(config, error))
    return Check(SECURITY, Outcome.SKIPPED, "no connection")


def _login_remedy(config: ClientConfig, error: AuthenticationError) -> str:
    """What to do when a login has failed. Errors of TLS, and of a listener that expects another login, say it
    themselves."""
    if isinstance(error, TlsError | ListenerMismatchError) or config.security.login is None:
        return ""
    return _LOGIN_REMEDIES[config.security.login.mechanism]


def _metadata_check(probe: Probe, waited: str) -> Check:
    if probe.answer is not None:
        detail = f"cluster {sanitize(probe.answer.cluster_id)} of {count(len(probe.answer.brokers), 'broker')}"
        return Check(METADATA, Outcome.PASSED, detail)
    if not probe.reached:
        return Check(METADATA, Outcome.SKIPPED, "no connection")
    remedy = "If the broker ends the connection, its listener may expect another security.protocol: SASL, or TLS."
    return Check(METADATA, Outcome.FAILED, probe.no_answer or f"no answer {waited}", remedy)


def _versions_checks(probe: Probe) -> list[Check]:
    """One check of all brokers that were reached; none where none was."""
    known = [versions for node in probe.reached if (versions := probe.client.versions(node)) is not None]
    if not known:
        return []
    for apis, remedy in _needed(probe.target):
        lacking = _lacking(apis, known)
        if lacking is not None:
            return [Check(VERSIONS, Outcome.FAILED, str(lacking), remedy)]
    version = min(each.latest_usable_version(ApiKey.PRODUCE) for each in known)
    levels = probe.client.finalized_features.levels
    features = "".join(f", {name} {level}" for name, level in sorted(levels.items()) if name in _FEATURES_SHOWN)
    return [Check(VERSIONS, Outcome.PASSED, f"Produce is spoken in version {version}{features}")]


def _needed(target: Target) -> Iterator[tuple[Sequence[ApiKey], str]]:
    """The APIs that the write needs, and which brokers have them."""
    yield (
        (ApiKey.PRODUCE, *([ApiKey.INIT_PRODUCER_ID] if target.idempotent else ())),
        "Use brokers of Kafka 2.8 or newer.",
    )
    if target.exactly_once:
        yield (
            _OF_EXACTLY_ONCE,
            "Exactly once needs brokers of Kafka 3.0 or newer. With older ones leave out deliveryGuarantee: rows are "
            "then written at least once.",
        )


def _lacking(apis: Sequence[ApiKey], known: Sequence[NodeApiVersions]) -> UnsupportedVersionError | None:
    try:
        for api, each in itertools.product(apis, known):
            each.latest_usable_version(api)
    except UnsupportedVersionError as error:
        return error
    return None


def _topic_check(probe: Probe, topic: str) -> Check:
    for answered in probe.answer.topics if probe.answer is not None else ():
        if answered.name == topic and probe.is_to_be_created(answered):
            return Check(topic_name(topic), Outcome.PASSED, IS_TO_BE_CREATED)
        if answered.name == topic:
            check = topic_check(answered, probe.brokers)
            option = dict(probe.target.topic_options).get(topic)
            return _name_option(check, option) if option and check.detail == DOES_NOT_EXIST else check
    return Check(topic_name(topic), Outcome.SKIPPED, "no metadata")


def _name_option(check: Check, option: str) -> Check:
    return replace(
        check,
        detail=f"{DOES_NOT_EXIST}; the option {option} names it",
        remedy=f"Create the topic, or correct {option}.",
    )


def _leader_check(probe: Probe, node: Node, waited: str) -> Check:
    if node.id in probe.reached:
        topics = probe.answer.topics if probe.answer is not None else []
        led = sum(part.leader_id == node.id for topic in topics for part in topic.partitions)
        leads = f", leads {count(led, 'partition')}" if led else ""
        return Check(str(node), Outcome.PASSED, f"can be connected to{leads}")
    if probe.is_settled and node.id not in probe.client.losses:
        return Check(str(node), Outcome.SKIPPED, "not waited for")
    remedy = (
        "The broker itself advertises this address (advertised.listeners): it must lead to this broker, from here "
        "and from every executor. If it does, see whether the broker runs."
    )
    return Check(str(node), Outcome.FAILED, _why(probe, node, waited), remedy, concerns_address=True)


def _why(probe: Probe, node: Node, waited: str) -> str:
    """The reason without the address, which is the name of the check."""
    loss = probe.client.losses.get(node.id)
    return f"no answer {waited}" if loss is None else loss.detail


def topic_check(topic: MetadataResponseTopic, nodes: Iterable[int]) -> Check:
    """What metadata says of a topic. `nodes`: the brokers that are known."""
    name = topic_name(topic.name or "")
    if topic.error_code in error_codes.UNKNOWN_TOPIC_ERRORS:
        remedy = (
            "Correct its name or create it: brokers create topics by themselves only with auto.create.topics.enable, "
            "and only for users with the right Create."
        )
        return Check(name, Outcome.FAILED, DOES_NOT_EXIST, remedy)
    if topic.error_code == error_codes.TOPIC_AUTHORIZATION_FAILED:
        remedy = "Grant the user the rights Describe and Write on the topic."
        return Check(name, Outcome.FAILED, "this user may not see it (TOPIC_AUTHORIZATION_FAILED)", remedy)
    if topic.error_code != error_codes.NONE:
        error = lookup_error_code(topic.error_code)
        outcome = Outcome.WARNING if error.retriable else Outcome.FAILED
        return Check(name, outcome, error.name, error.advice)
    if topic.topic_authorized_operations & (_MAY_DESCRIBE | _MAY_WRITE) == _MAY_DESCRIBE:
        return Check(name, Outcome.FAILED, "this user may not write to it", "Grant the user the right Write.")
    leaderless = [part.partition_index for part in topic.partitions if part.leader_id not in nodes]
    partitions = count(len(topic.partitions), "partition")
    if leaderless:
        shown = ", ".join(str(index) for index in leaderless[:FAULTS_SHOWN_MAX])
        detail = f"{len(leaderless)} of {partitions} without a leader: {shown}"
        return Check(name, Outcome.WARNING, detail, "Their rows wait for one, for at most delivery.timeout.ms.")
    return Check(name, Outcome.PASSED, partitions)
