"""All checks, in the order in which they depend on each other."""

from __future__ import annotations

from contextlib import closing

from spark_kafka_sink.client.bootstrap import bootstrap_nodes
from spark_kafka_sink.client.config import ClientConfig
from spark_kafka_sink.client.preflight.certificates import certificate_checks
from spark_kafka_sink.client.preflight.checks import (
    BOOTSTRAP,
    METADATA,
    SECURITY,
    Check,
    Outcome,
    Patience,
    Target,
    topic_name,
)
from spark_kafka_sink.client.preflight.creation import creation_question
from spark_kafka_sink.client.preflight.meant import with_names_meant
from spark_kafka_sink.client.preflight.probe import Probe
from spark_kafka_sink.client.preflight.questions import ask, rights, sizes_and_clocks
from spark_kafka_sink.client.preflight.reached import DOES_NOT_EXIST, names_check, reached_checks
from spark_kafka_sink.errors import ConfigurationError
from spark_kafka_sink.network.system import OperatingSystem, System


def preflight(
    config: ClientConfig,
    target: Target,
    *,
    patience: Patience | None = None,
    thorough: bool = False,
    system: System | None = None,
) -> list[Check]:
    """`thorough`: what a person wants to know besides: certificates, clocks, sizes."""
    patience = patience if patience is not None else Patience()
    system = system if system is not None else OperatingSystem()
    try:
        nodes = bootstrap_nodes(config.bootstrap_servers, config.client_dns_lookup, system)
    except ConfigurationError as error:
        remedy = "Correct the names in bootstrap.servers, or the name service of this machine."
        return _cut_short(Check(BOOTSTRAP, Outcome.FAILED, str(error), remedy), target)
    try:
        probe = Probe(config, nodes, target, system)
    except ConfigurationError as error:
        remedy = "Correct the option; a file must be at this path on every machine that connects."
        return _cut_short(Check(SECURITY, Outcome.FAILED, str(error), remedy), target)
    with closing(probe):
        probe.run(patience)
        checks = reached_checks(probe, config, patience)
        if thorough:
            places = [*probe.bootstrap, *probe.leaders()]
            certificates = certificate_checks(config, places, system, patience.silence_ms)
            checks = [names_check(places, system), *checks, *certificates]
        if probe.answer is not None:
            checks += _answers(probe, patience, thorough=thorough)
        if probe.answer is not None and any(check.detail == DOES_NOT_EXIST for check in checks):
            checks = with_names_meant(checks, probe, patience.silence_ms)
        return checks


def _answers(probe: Probe, patience: Patience, *, thorough: bool) -> list[Check]:
    answered = probe.answer.topics if probe.answer is not None else []
    found = {topic.name for topic in answered if not topic.error_code}
    known = [topic for topic in probe.target.topics if topic in found]
    questions = [*rights(probe.target), *(sizes_and_clocks(known, probe.target.record_bytes_max) if thorough else ())]
    found_checks = [ask(probe, question, patience) for question in questions]
    return [*_creation(probe, patience), *found_checks]


def _creation(probe: Probe, patience: Patience) -> list[Check]:
    wanted = probe.target.new_topic
    answered = probe.answer.topics if probe.answer is not None else []
    found = next((topic for topic in answered if wanted is not None and topic.name == wanted.name), None)
    if wanted is None or found is None:
        return []
    asked = creation_question(wanted, found)
    return [asked if isinstance(asked, Check) else ask(probe, asked, patience)]


def _cut_short(failed: Check, target: Target) -> list[Check]:
    others = [BOOTSTRAP, SECURITY, METADATA, *map(topic_name, target.topics)]
    return [failed if name == failed.name else Check(name, Outcome.SKIPPED, "not looked at") for name in others]
