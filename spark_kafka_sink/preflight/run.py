"""All checks, in the order in which they depend on each other."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import closing

from spark_kafka_sink.client.bootstrap import bootstrap_nodes
from spark_kafka_sink.client.config import ClientConfig
from spark_kafka_sink.errors import ConfigurationError
from spark_kafka_sink.network.system import OperatingSystem, System
from spark_kafka_sink.preflight.certificates import certificate_checks
from spark_kafka_sink.preflight.checks import (
    BOOTSTRAP,
    METADATA,
    SECURITY,
    Check,
    Outcome,
    PreflightTimeouts,
    Target,
    topic_name,
)
from spark_kafka_sink.preflight.cluster_checks import CLUSTER_CHECKS, THOROUGH_CHECKS
from spark_kafka_sink.preflight.probe import Probe
from spark_kafka_sink.preflight.reached import DOES_NOT_EXIST, names_check, reached_checks
from spark_kafka_sink.preflight.topic_suggestions import suggest_topics
from spark_kafka_sink.protocol.messages.metadata import MetadataResponseTopic


def preflight(
    config: ClientConfig,
    target: Target,
    *,
    timeouts: PreflightTimeouts | None = None,
    thorough: bool = False,
    system: System | None = None,
) -> list[Check]:
    """`thorough`: what a person wants to know besides: certificates, clocks, sizes."""
    timeouts = timeouts if timeouts is not None else PreflightTimeouts()
    system = system if system is not None else OperatingSystem()
    try:
        nodes = bootstrap_nodes(config.bootstrap_servers, config.client_dns_lookup, system)
    except ConfigurationError as error:
        remedy = "Correct the names in bootstrap.servers, or the name service of this machine."
        return _cut_short(Check(BOOTSTRAP, Outcome.FAILED, str(error), remedy, concerns_address=True), target)
    try:
        probe = Probe(config, nodes, target, timeouts, system)
    except ConfigurationError as error:
        remedy = "Correct the option; a file must be at this path on every machine that connects."
        return _cut_short(Check(SECURITY, Outcome.FAILED, str(error), remedy), target)
    with closing(probe):
        probe.run()
        checks = reached_checks(probe, config, timeouts)
        if thorough:
            places = [*probe.bootstrap, *probe.leaders()]
            certificates = certificate_checks(config, places, system, timeouts.response_ms)
            checks = [names_check(places, system), *checks, *certificates]
        if probe.answer is not None:
            checks += _cluster_checks(probe, probe.answer.topics, thorough=thorough)
        if probe.answer is not None and any(check.detail == DOES_NOT_EXIST for check in checks):
            checks = suggest_topics(checks, probe)
        return checks


def _cluster_checks(probe: Probe, topics: Sequence[MetadataResponseTopic], *, thorough: bool) -> list[Check]:
    kinds = (*CLUSTER_CHECKS, *(THOROUGH_CHECKS if thorough else ()))
    found = [check for kind in kinds for check in kind(probe.target, topics)]
    return [check if isinstance(check, Check) else check.run(probe) for check in found]


def _cut_short(failed: Check, target: Target) -> list[Check]:
    others = [BOOTSTRAP, SECURITY, METADATA, *map(topic_name, target.topics)]
    return [failed if name == failed.name else Check(name, Outcome.SKIPPED, "not looked at") for name in others]
