"""Checks before a write: can this program, from this machine and with these options, write to these topics?

They do what a producer does first: look up the bootstrap servers, connect to them with the job's own security, ask for
the topics, and connect to every broker that leads a partition, at the address that the broker advertises. All
connections are made at once, so a healthy cluster takes about a second at most.

A fault that may pass (a broker restarts, a leader is elected, a topic is created) gets `patience_ms` for it. One that
does not pass (credentials that are refused, a right that is missing) ends the checks at once.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from contextlib import closing
from dataclasses import dataclass
from enum import Enum

from spark_kafka_sink.client.bootstrap import bootstrap_nodes
from spark_kafka_sink.client.cluster import Node
from spark_kafka_sink.client.config import ClientConfig
from spark_kafka_sink.client.metadata import Metadata
from spark_kafka_sink.client.network_client import NetworkClient, new_network_client
from spark_kafka_sink.client.requests import ClientResponse
from spark_kafka_sink.errors import ConfigurationError, PreflightError
from spark_kafka_sink.network.system import OperatingSystem, System
from spark_kafka_sink.protocol import error_codes
from spark_kafka_sink.protocol.api_keys import ApiKey
from spark_kafka_sink.protocol.error_codes import error_code
from spark_kafka_sink.protocol.messages.metadata import (
    MetadataRequest,
    MetadataRequestTopic,
    MetadataResponse,
    MetadataResponseTopic,
)

PATIENCE_MS = 5_000.0
_LOOK_AGAIN_MS = 50.0
_ASK_AGAIN_MS = 250.0
_FAULTS_SHOWN_MAX = 10

_BOOTSTRAP = "bootstrap servers"
_SECURITY = "security"
_METADATA = "metadata"

_FINAL_TOPIC_ERRORS = frozenset({error_codes.INVALID_TOPIC_EXCEPTION, error_codes.TOPIC_AUTHORIZATION_FAILED})

# Bits of topic_authorized_operations. Brokers that do not tell them send the lowest number, which has neither.
_MAY_WRITE, _MAY_DESCRIBE = 1 << 4, 1 << 8
_OPERATIONS_FROM_VERSION = 8


class Outcome(Enum):
    PASSED = "passed"
    WARNING = "warning"
    FAILED = "failed"
    SKIPPED = "skipped"


@dataclass(frozen=True)
class Check:
    """One thing that was looked at: what was found and, unless all is well, what to do."""

    name: str
    outcome: Outcome
    detail: str
    remedy: str = ""

    def __str__(self) -> str:
        return " ".join(_sentence(part) for part in (f"{self.name}: {self.detail}", self.remedy) if part)


@dataclass(frozen=True)
class Target:
    """What is going to be written to. `every_broker`: the rows name topics, too, which nobody knows yet."""

    topics: Sequence[str] = ()
    every_broker: bool = False
    create_topics: bool = True
    """Let brokers create missing topics, as they do for a producer."""


def preflight(
    config: ClientConfig, target: Target, *, patience_ms: float = PATIENCE_MS, system: System | None = None
) -> list[Check]:
    """All checks, in the order in which they depend on each other."""
    system = system if system is not None else OperatingSystem()
    try:
        nodes = bootstrap_nodes(config.bootstrap_servers, config.client_dns_lookup, system)
    except ConfigurationError as error:
        remedy = "Correct the names in bootstrap.servers, or the name service of this machine."
        return _cut_short(Check(_BOOTSTRAP, Outcome.FAILED, str(error), remedy), target)
    metadata = Metadata(nodes, config, system=system, allow_auto_topic_creation=False)
    try:
        client = new_network_client(config, metadata, system=system)
    except ConfigurationError as error:
        return _cut_short(Check(_SECURITY, Outcome.FAILED, str(error)), target)
    with closing(client):
        probe = _Probe(client, metadata, nodes, target)
        probe.run(system, patience_ms)
        return probe.checks(config, patience_ms)


def failure(checks: Iterable[Check]) -> PreflightError | None:
    """One error that names every check that has failed; None if none has."""
    failed = [check for check in checks if check.outcome is Outcome.FAILED]
    if not failed:
        return None
    shown = [f"- {check}" for check in failed[:_FAULTS_SHOWN_MAX]]
    if len(failed) > len(shown):
        shown.append(f"- and {len(failed) - len(shown)} more checks.")
    return PreflightError("\n".join(["Kafka cannot be written to. Nothing was written.", *shown]))


def _cut_short(failed: Check, target: Target) -> list[Check]:
    others = [_BOOTSTRAP, _SECURITY, _METADATA, *map(_topic_name, target.topics)]
    return [failed if name == failed.name else Check(name, Outcome.SKIPPED, "not looked at") for name in others]


def _sentence(words: str) -> str:
    return words.rstrip(". ") + "."


def _count(number: int, noun: str) -> str:
    return f"{number} {noun}" if number == 1 else f"{number} {noun}s"


def _topic_name(topic: str) -> str:
    return f"topic {topic}"


class _Probe:
    """The connections and questions of one preflight, and what has come of them so far."""

    def __init__(self, client: NetworkClient, metadata: Metadata, bootstrap: Sequence[Node], target: Target) -> None:
        self._client = client
        self._metadata = metadata
        self._bootstrap = bootstrap
        self._target = target
        self._reached: dict[int, Node] = {}
        self._answer: MetadataResponse | None = None
        self._no_answer = ""
        self._is_asking = False
        self._ask_at_ms = 0.0

    # --- looking

    def run(self, system: System, patience_ms: float) -> None:
        deadline = system.now() + patience_ms
        while (now := system.now()) < deadline and not self._is_settled():
            for node in (*self._bootstrap, *self._leaders()):
                if node.id not in self._reached and self._client.ready(node, now):
                    self._reached[node.id] = node
            self._ask(now)
            for response in self._client.poll(min(_LOOK_AGAIN_MS, deadline - now), now):
                self._take(response, now)

    def _ask(self, now: float) -> None:
        """Ask again and again, for what is missing may come: a topic, a leader, a leader at another address."""
        node = next((node for node in self._reached.values() if self._client.is_ready(node.id, now)), None)
        if node is None or self._is_asking or now < self._ask_at_ms:
            return
        version = self._client.version_for(node.id, ApiKey.METADATA)
        question = MetadataRequest(
            topics=[MetadataRequestTopic(name=topic) for topic in self._target.topics],
            allow_auto_topic_creation=self._target.create_topics,
            include_topic_authorized_operations=version >= _OPERATIONS_FROM_VERSION,
        )
        self._client.send(self._client.new_client_request(node.id, question, now), now)
        self._is_asking = True

    def _take(self, response: ClientResponse, now: float) -> None:
        self._is_asking = False
        self._ask_at_ms = now + _ASK_AGAIN_MS
        if isinstance(response.message, MetadataResponse):
            self._answer = response.message
        else:
            self._no_answer = response.reason

    def _is_settled(self) -> bool:
        if self._answer is None:
            return self._is_refused()
        if any(topic.error_code in _FINAL_TOPIC_ERRORS for topic in self._answer.topics):
            return True
        known = self._metadata.snapshot.nodes
        has_leaders = all(
            topic.error_code == error_codes.NONE and all(part.leader_id in known for part in topic.partitions)
            for topic in self._answer.topics
        )
        return has_leaders and bool(self._leaders()) and all(node.id in self._reached for node in self._leaders())

    def _is_refused(self) -> bool:
        """No bootstrap server can be talked to, and one or more of them does not want to."""
        ids = [node.id for node in self._bootstrap]
        return all(self._client.connection_failed(node_id) for node_id in ids) and any(
            self._client.authentication_exception(node_id) is not None for node_id in ids
        )

    def _leaders(self) -> list[Node]:
        """The brokers that the records may go to."""
        known = self._metadata.snapshot
        if self._answer is None or known.is_bootstrap:
            return []
        if self._target.every_broker:
            return list(known.nodes.values())
        leaders = {part.leader_id for topic in self._answer.topics for part in topic.partitions}
        return [node for node_id, node in sorted(known.nodes.items()) if node_id in leaders]

    # --- telling

    def checks(self, config: ClientConfig, patience_ms: float) -> list[Check]:
        waited = f"within {patience_ms / 1000:g} s"
        return [
            self._bootstrap_check(waited),
            self._security_check(config),
            self._metadata_check(waited),
            *(self._topic_check(topic) for topic in self._target.topics),
            *(self._leader_check(node, waited) for node in self._leaders()),
        ]

    def _bootstrap_check(self, waited: str) -> Check:
        refused = {node.id for node in self._bootstrap if self._client.authentication_exception(node.id) is not None}
        silent = [node for node in self._bootstrap if node.id not in self._reached and node.id not in refused]
        faults = "; ".join(f"{node}: {self._why(node, waited)}" for node in silent[:_FAULTS_SHOWN_MAX])
        answered = f"{len(self._bootstrap) - len(silent)} of {len(self._bootstrap)} can be connected to"
        if not silent:
            return Check(_BOOTSTRAP, Outcome.PASSED, answered)
        if len(silent) < len(self._bootstrap):
            return Check(_BOOTSTRAP, Outcome.WARNING, f"{answered}; {faults}")
        remedy = "Check host and port, that a broker listens there, and that security.protocol is that of its listener."
        return Check(_BOOTSTRAP, Outcome.FAILED, faults, remedy)

    def _security_check(self, config: ClientConfig) -> Check:
        security = config.security
        words = security.protocol + (f" with {security.login.mechanism}" if security.login is not None else "")
        if self._reached:
            return Check(_SECURITY, Outcome.PASSED, words)
        for node in self._bootstrap:
            error = self._client.authentication_exception(node.id)
            if error is not None:
                remedy = "Check the options of security.protocol, sasl.* and ssl.*."
                return Check(_SECURITY, Outcome.FAILED, f"{words}: {error}", remedy)
        return Check(_SECURITY, Outcome.SKIPPED, "no connection")

    def _metadata_check(self, waited: str) -> Check:
        if self._answer is not None:
            detail = f"cluster {self._answer.cluster_id} of {_count(len(self._answer.brokers), 'broker')}"
            return Check(_METADATA, Outcome.PASSED, detail)
        if not self._reached:
            return Check(_METADATA, Outcome.SKIPPED, "no connection")
        remedy = "If the broker ends the connection, its listener may expect another security.protocol: SASL, or TLS."
        return Check(_METADATA, Outcome.FAILED, f"no answer {waited}. {self._no_answer}".strip(), remedy)

    def _topic_check(self, topic: str) -> Check:
        for answered in self._answer.topics if self._answer is not None else ():
            if answered.name == topic:
                return topic_check(answered, self._metadata.snapshot.nodes)
        return Check(_topic_name(topic), Outcome.SKIPPED, "no metadata")

    def _leader_check(self, node: Node, waited: str) -> Check:
        if node.id in self._reached:
            return Check(str(node), Outcome.PASSED, "can be connected to")
        remedy = (
            "The broker itself advertises this address (advertised.listeners): it must lead to this broker, from here "
            "and from every executor."
        )
        return Check(str(node), Outcome.FAILED, self._why(node, waited), remedy)

    def _why(self, node: Node, waited: str) -> str:
        loss = self._client.losses.get(node.id)
        return f"no connection {waited}" if loss is None else loss.reason


def topic_check(topic: MetadataResponseTopic, nodes: Iterable[int]) -> Check:
    """What metadata says of a topic. `nodes`: the brokers that are known."""
    name = _topic_name(topic.name or "")
    if topic.error_code in (error_codes.UNKNOWN_TOPIC_OR_PARTITION, error_codes.UNKNOWN_TOPIC_ID):
        remedy = (
            "Correct its name or create it: brokers create topics by themselves only with auto.create.topics.enable, "
            "and only for users with the right Create."
        )
        return Check(name, Outcome.FAILED, "does not exist", remedy)
    if topic.error_code != error_codes.NONE:
        error = error_code(topic.error_code)
        outcome = Outcome.WARNING if error.retriable else Outcome.FAILED
        return Check(name, outcome, error.name, error.advice)
    if topic.topic_authorized_operations & (_MAY_DESCRIBE | _MAY_WRITE) == _MAY_DESCRIBE:
        return Check(name, Outcome.FAILED, "this user may not write to it", "Grant the user the right Write.")
    leaderless = [part.partition_index for part in topic.partitions if part.leader_id not in nodes]
    partitions = _count(len(topic.partitions), "partition")
    if leaderless:
        shown = ", ".join(str(index) for index in leaderless[:_FAULTS_SHOWN_MAX])
        detail = f"{len(leaderless)} of {partitions} without a leader: {shown}"
        return Check(name, Outcome.WARNING, detail, "Their rows wait for one, for at most delivery.timeout.ms.")
    return Check(name, Outcome.PASSED, partitions)
