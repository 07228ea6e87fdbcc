"""Generator of the tables of docs/options.md from the code: `python -m tools.options_document` rewrites them."""

from __future__ import annotations

import re
import textwrap
from collections.abc import Iterable
from pathlib import Path

from spark_kafka_sink.client.option_suggestions import (
    KAFKA_PYTHON_OPTIONS,
    LIBRDKAFKA_OPTIONS,
    OPTIONS_WITHOUT_REPLACEMENT,
)
from spark_kafka_sink.network.security_options import SECURITY_OPTIONS
from spark_kafka_sink.options import Option
from spark_kafka_sink.producer.options import PRODUCER_OPTIONS
from spark_kafka_sink.spark.options.ignored_options import CONSUMER_OPTIONS, REGISTRY_PREFIXES, SOURCE_OPTIONS
from spark_kafka_sink.spark.options.names import JAVA_CLASS_OPTION_REMEDIES, PREFIXED_OPTION_SPELLING
from spark_kafka_sink.spark.options.parse import BULK_DEFAULTS
from spark_kafka_sink.spark.options.table import SINK_OPTIONS
from tools.document_sections import replace_sections

DOCUMENT = Path(__file__).resolve().parents[1] / "docs" / "options.md"


COMMON_OPTIONS = (
    "kafka.bootstrap.servers",
    "topic",
    "kafka.security.protocol",
    "kafka.sasl.mechanism",
    "kafka.sasl.jaas.config",
    "kafka.ssl.truststore.location",
    "valueFormat",
    "kafka.compression.type",
    "onRecordError",
    "deliveryGuarantee",
)
"""The options that the author of a job needs first, in this order."""
JOB_OPTION_OVERRIDES = {
    "transaction.timeout.ms": (
        "(the longest that brokers allow, up to 24 hours)",
        "with `exactly-once`: how long the transaction of a task may be open "
        "([the default](exactly-once.md#set-options)); with `at-least-once` it has no effect",
    )
}
"""Default and meaning of the options whose default or meaning in a job differs from that in a producer."""
REGISTRY_TLS = "schema.registry.ssl."
REGISTRY_TLS_ROW = (f"{REGISTRY_TLS}*", "", "as the options [`kafka.ssl.*`](#tls-and-sasl), for the registry")


def build_sections() -> dict[str, str]:
    """Return the texts by section name."""
    rejection_reasons = _find_rejected_options()
    return {
        "common": _format_table(_build_row(name) for name in COMMON_OPTIONS),
        "own": _format_table(
            dict.fromkeys(
                REGISTRY_TLS_ROW if option.name.startswith(REGISTRY_TLS) else _build_row(option.name)
                for option in SINK_OPTIONS.values()
            )
        ),
        "producer": _format_table(
            (
                f"kafka.{option.name}",
                *JOB_OPTION_OVERRIDES.get(option.name, (_find_default(option), option.description)),
            )
            for option in PRODUCER_OPTIONS.values()
            if option.name not in rejection_reasons
        ),
        "security": _format_table(
            (
                f"kafka.{option.name}",
                _format_default(option.default),
                _format_description(option),
            )
            for option in SECURITY_OPTIONS.values()
            if not option.unsupported_reason and not option.ignored
        ),
        "refused": _format_list(f"`kafka.{name}`: {reason}" for name, reason in sorted(rejection_reasons.items())),
        "jvm": _join_names(f"kafka.{option.name}" for option in SECURITY_OPTIONS.values() if option.ignored),
        "source": _join_names((*SOURCE_OPTIONS, *(f"kafka.{name}" for name in CONSUMER_OPTIONS)))
        + "\n"
        + _format_list(f"names that begin with `{prefix}` or `kafka.{prefix}`" for prefix in REGISTRY_PREFIXES),
        "others": "\n".join(
            [
                "| librdkafka, kafka-python | Use instead |",
                "| --- | --- |",
                *(
                    f"| `{name}` | {_format_names(text)} |"
                    for name, text in (LIBRDKAFKA_OPTIONS | KAFKA_PYTHON_OPTIONS).items()
                ),
                *(
                    f"| `{name}` | {_format_names(predicate)} |"
                    for name, (_, predicate) in OPTIONS_WITHOUT_REPLACEMENT.items()
                ),
            ]
        )
        + "\n",
    }


def render_document(document: str) -> str:
    """Return the document with regenerated sections."""
    return replace_sections(document, build_sections())


def _format_table(rows: Iterable[tuple[str, str, str]]) -> str:
    lines = ["| option | default | meaning |", "| --- | --- | --- |"]
    for name, default, meaning in rows:
        value = default if not default or default.startswith("(") else f"`{default}`"
        lines.append(f"| `{name}` | {value} | {meaning.replace('|', chr(92) + '|')} |")
    return "\n".join(lines) + "\n"


def _build_row(name: str) -> tuple[str, str, str]:
    """Build the row of a sink, security or producer option. Raise KeyError if there is no such option."""
    sink_option = SINK_OPTIONS.get(name)
    if sink_option is not None:
        return name, _format_default(sink_option.default), _format_description(sink_option)
    kafka_name = name.removeprefix("kafka.")
    if kafka_name in SECURITY_OPTIONS:
        security_option = SECURITY_OPTIONS[kafka_name]
        return name, _format_default(security_option.default), _format_description(security_option)
    return name, _find_default(PRODUCER_OPTIONS[kafka_name]), PRODUCER_OPTIONS[kafka_name].description


def _format_list(items: Iterable[str]) -> str:
    return "".join(f"- {item}\n" for item in items)


def _join_names(names: Iterable[str]) -> str:
    return textwrap.fill(", ".join(f"`{name}`" for name in names), width=130, break_on_hyphens=False) + "\n"


def _format_names(text: str) -> str:
    """Format option names with the prefix of a Spark job, and login modules as code."""
    text = re.sub(r"\{([^}]+)\}", r"`kafka.\1`", text)
    return re.sub(r"(org\.apache[^;]*;)", r"`\1`", text)


def _find_rejected_options() -> dict[str, str]:
    """Return the reasons why a job cannot set options, by option name."""
    reasons = {option.name: option.unsupported_reason for option in PRODUCER_OPTIONS.values()}
    reasons |= {option.name: option.unsupported_reason for option in SECURITY_OPTIONS.values()}
    for name, remedy in JAVA_CLASS_OPTION_REMEDIES.items():
        if reasons[name]:
            reasons[name] = f"it names a Java class. {remedy}"
    reasons["transactional.id"] = "each task needs its own transactional id"
    return {name: PREFIXED_OPTION_SPELLING.format_text(reason) for name, reason in reasons.items() if reason}


def _find_default(option: Option) -> str:
    if option.name == "acks":
        return "all"
    return _format_default(BULK_DEFAULTS.get(option.name, option.default))


def _format_description(option: Option) -> str:
    """Return the option's description, and mark it if its value is a secret."""
    return f"{option.description}. **Secret.**" if option.secret else option.description


def _format_default(default: object) -> str:
    if default in ((), None, ""):
        return ""
    if isinstance(default, bool):
        return str(default).lower()
    return str(default)


if __name__ == "__main__":
    DOCUMENT.write_text(render_document(DOCUMENT.read_text()))
