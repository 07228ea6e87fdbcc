"""preflight(): runs all preflight checks in order. Each check runs after the checks that it depends on."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import closing

from spark_kafka_sink.client.bootstrap import resolve_bootstrap_nodes
from spark_kafka_sink.client.bootstrap_lookup import BootstrapLookup
from spark_kafka_sink.client.cluster import Node
from spark_kafka_sink.client.config import ClientConfig
from spark_kafka_sink.errors import ConfigurationError
from spark_kafka_sink.network.system import OperatingSystem, System
from spark_kafka_sink.preflight.certificate_checks import check_certificates
from spark_kafka_sink.preflight.checks import (
    BOOTSTRAP,
    METADATA,
    SECURITY,
    CheckResult,
    Outcome,
    PreflightTimeouts,
    Target,
    format_topic_check_name,
)
from spark_kafka_sink.preflight.cluster_checks import CLUSTER_CHECKS, THOROUGH_CHECKS
from spark_kafka_sink.preflight.connectivity_checks import build_connectivity_checks, check_name_resolution
from spark_kafka_sink.preflight.probe import Probe
from spark_kafka_sink.preflight.topic_suggestions import add_topic_suggestions
from spark_kafka_sink.protocol.messages.metadata import MetadataResponseTopic


def preflight(
    config: ClientConfig,
    target: Target,
    *,
    timeouts: PreflightTimeouts | None = None,
    thorough: bool = False,
    system: System | None = None,
) -> list[CheckResult]:
    """Run all checks for the target and return their results, in order. A failed check is a result, not an exception.

    `thorough`: also run the checks that only help a person who reads the results, such as name resolution,
    certificates, message sizes and clocks.
    """
    timeouts = timeouts if timeouts is not None else PreflightTimeouts()
    system = system if system is not None else OperatingSystem()
    try:
        nodes = _resolve_bootstrap_servers(config, system)
    except ConfigurationError as error:
        remedy = "Correct the host names in bootstrap.servers, or the name resolution of this machine."
        check = CheckResult(BOOTSTRAP, Outcome.FAILED, str(error), remedy, is_connectivity_failure=True)
        return _skip_remaining_checks(check, target)
    try:
        probe = Probe(config, nodes, target, timeouts, system)
    except ConfigurationError as error:
        remedy = (
            "Correct the option. If it names a file, the file must be readable at that path on every machine that "
            "connects to Kafka."
        )
        return _skip_remaining_checks(CheckResult(SECURITY, Outcome.FAILED, str(error), remedy), target)
    with closing(probe):
        probe.run()
        checks = build_connectivity_checks(probe, config, timeouts)
        if thorough:
            probed_nodes = [*probe.bootstrap_nodes, *probe.find_leaders()]
            certificate_checks = check_certificates(config, probed_nodes, system, timeouts.response_ms)
            checks = [check_name_resolution(probed_nodes, system), *checks, *certificate_checks]
        if probe.metadata_response is not None:
            topics = probe.metadata_response.topics
            checks += _run_cluster_checks(probe, topics, thorough=thorough)
            checks = add_topic_suggestions(checks, probe, topics)
        return checks


def _resolve_bootstrap_servers(config: ClientConfig, system: System) -> tuple[Node, ...]:
    """Resolve the bootstrap servers in the same way as the job's clients.

    Retry if bootstrap.resolve.timeout.ms is set.
    """
    if not config.bootstrap_resolve_timeout_ms:
        return resolve_bootstrap_nodes(config.bootstrap_servers, config.client_dns_lookup, system)
    lookup = BootstrapLookup(config, system)
    with closing(system.create_poller()) as poller:
        while not (nodes := lookup.try_resolve()):
            poller.select(lookup.wait_ms() / 1000)
    return nodes


def _run_cluster_checks(probe: Probe, topics: Sequence[MetadataResponseTopic], *, thorough: bool) -> list[CheckResult]:
    """Run the cluster checks that the target requires, one after the other. `topics`: the topics in the metadata."""
    factories = (*CLUSTER_CHECKS, *(THOROUGH_CHECKS if thorough else ()))
    checks_or_results = [item for factory in factories for item in factory(probe.target, topics)]
    return [item if isinstance(item, CheckResult) else item.run(probe) for item in checks_or_results]


def _skip_remaining_checks(failed_check: CheckResult, target: Target) -> list[CheckResult]:
    """Return the connectivity checks, with the failed check in its place and all others skipped."""
    names = [BOOTSTRAP, SECURITY, METADATA, *map(format_topic_check_name, target.topics)]
    return [
        failed_check if name == failed_check.name else CheckResult(name, Outcome.SKIPPED, "not checked")
        for name in names
    ]
