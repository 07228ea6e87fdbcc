"""The tables of docs/options.md, made from the code: `python -m tools.options_document` writes them anew."""

from __future__ import annotations

import re
import textwrap
from collections.abc import Iterable
from pathlib import Path

from spark_kafka_sink.client.option_suggestions import KAFKA_PYTHON_OPTIONS, LIBRDKAFKA_OPTIONS
from spark_kafka_sink.network.security_options import SECURITY_OPTIONS
from spark_kafka_sink.options import Option
from spark_kafka_sink.producer.options import PRODUCER_OPTIONS
from spark_kafka_sink.spark.options.ignored_options import CONSUMER_OPTIONS, REGISTRY_PREFIXES, SOURCE_OPTIONS
from spark_kafka_sink.spark.options.names import JAVA_CLASS_OPTION_REMEDIES, KAFKA_SPELLING
from spark_kafka_sink.spark.options.parse import BULK_DEFAULTS
from spark_kafka_sink.spark.options.table import SINK_OPTIONS
from tools.document_sections import with_sections

DOCUMENT = Path(__file__).resolve().parents[1] / "docs" / "options.md"


COMMON = (
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
"""What a job begins with, in the order in which its author needs it."""
OF_A_JOB = {
    "transaction.timeout.ms": (
        "(what brokers grant)",
        "with `exactly-once`: how long the transaction of a task may be open "
        "([the default](exactly-once.md#set-options)); with `at-least-once` it has no effect",
    )
}
"""Default and meaning, where they are others than those of a producer by itself."""
REGISTRY_TLS = "schema.registry.ssl."
REGISTRY_TLS_ROW = (f"{REGISTRY_TLS}*", "", "as the options [`kafka.ssl.*`](#tls-and-sasl), for the registry")


def sections() -> dict[str, str]:
    """Name of a section -> its text."""
    return {
        "common": _table(_row(name) for name in COMMON),
        "own": _table(
            dict.fromkeys(
                REGISTRY_TLS_ROW if option.name.startswith(REGISTRY_TLS) else _row(option.name)
                for option in SINK_OPTIONS.values()
            )
        ),
        "producer": _table(
            (f"kafka.{option.name}", *OF_A_JOB.get(option.name, (_default(option), option.description)))
            for option in PRODUCER_OPTIONS.values()
            if option.name not in _refused()
        ),
        "security": _table(
            (
                f"kafka.{option.name}",
                _shown(option.default),
                option.description + (". **Secret.**" if option.secret else ""),
            )
            for option in SECURITY_OPTIONS.values()
            if not option.unsupported_reason and not option.ignored
        ),
        "refused": _list(f"`kafka.{name}`: {reason}" for name, reason in sorted(_refused().items())),
        "jvm": _names(f"kafka.{option.name}" for option in SECURITY_OPTIONS.values() if option.ignored),
        "source": _names((*SOURCE_OPTIONS, *(f"kafka.{name}" for name in CONSUMER_OPTIONS)))
        + "\n"
        + _list(f"names that begin with `{prefix}` or `kafka.{prefix}`" for prefix in REGISTRY_PREFIXES),
        "others": "\n".join(
            [
                "| librdkafka, kafka-python | here |",
                "| --- | --- |",
                *(
                    f"| `{name}` | {_named(words)} |"
                    for name, words in (LIBRDKAFKA_OPTIONS | KAFKA_PYTHON_OPTIONS).items()
                ),
            ]
        )
        + "\n",
    }


def written(document: str) -> str:
    """Return the document with regenerated sections."""
    return with_sections(document, sections())


def _table(rows: Iterable[tuple[str, str, str]]) -> str:
    lines = ["| option | default | meaning |", "| --- | --- | --- |"]
    for name, default, meaning in rows:
        value = default if not default or default.startswith("(") else f"`{default}`"
        lines.append(f"| `{name}` | {value} | {meaning.replace('|', chr(92) + '|')} |")
    return "\n".join(lines) + "\n"


def _row(name: str) -> tuple[str, str, str]:
    """Of an option of any kind."""
    own = SINK_OPTIONS.get(name)
    if own is not None:
        return name, _shown(own.default), own.description + (". **Secret.**" if own.secret else "")
    of_kafka = name.removeprefix("kafka.")
    if of_kafka in SECURITY_OPTIONS:
        security = SECURITY_OPTIONS[of_kafka]
        return name, _shown(security.default), security.description + (". **Secret.**" if security.secret else "")
    return name, _default(PRODUCER_OPTIONS[of_kafka]), PRODUCER_OPTIONS[of_kafka].description


def _list(items: Iterable[str]) -> str:
    return "".join(f"- {item}\n" for item in items)


def _names(names: Iterable[str]) -> str:
    return textwrap.fill(", ".join(f"`{name}`" for name in names), width=130, break_on_hyphens=False) + "\n"


def _named(words: str) -> str:
    """Format option names with the prefix of a Spark job, and login modules as code."""
    words = re.sub(r"\{([^}]+)\}", r"`kafka.\1`", words)
    return re.sub(r"(org\.apache[^;]*;)", r"`\1`", words)


def _refused() -> dict[str, str]:
    reasons = {option.name: option.unsupported_reason for option in PRODUCER_OPTIONS.values()}
    reasons |= {option.name: option.unsupported_reason for option in SECURITY_OPTIONS.values()}
    for name, instead in JAVA_CLASS_OPTION_REMEDIES.items():
        if reasons[name]:
            reasons[name] = f"it names a Java class. {instead}"
    reasons["transactional.id"] = "each task needs its own transactional id"
    return {name: KAFKA_SPELLING.format_text(reason) for name, reason in reasons.items() if reason}


def _default(option: Option) -> str:
    if option.name == "acks":
        return "all"
    return _shown(BULK_DEFAULTS.get(option.name, option.default))


def _shown(default: object) -> str:
    if default in ((), None, ""):
        return ""
    if isinstance(default, bool):
        return str(default).lower()
    return str(default)


if __name__ == "__main__":
    DOCUMENT.write_text(written(DOCUMENT.read_text()))
