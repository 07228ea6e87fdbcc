"""Generator of the module producer/typed_options.py and of ProducerConfig's fields, from the option tables.

`python -m tools.typed_options_source` writes them.

A type permits everything that the option's parser accepts, with one exception: the parser accepts words in any letter
case, but the type permits only the documented spelling, so that type checkers detect misspelled words.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

from spark_kafka_sink.client.option_parsing import ChoiceParser
from spark_kafka_sink.network.security.assertions import ALGORITHMS
from spark_kafka_sink.network.security.login import SASL_MECHANISMS
from spark_kafka_sink.network.security_config import SECURITY_PROTOCOLS
from spark_kafka_sink.network.security_options import SECURITY_OPTIONS
from spark_kafka_sink.options import Option
from spark_kafka_sink.producer.options import ACKS_PARSER, PRODUCER_OPTIONS
from spark_kafka_sink.producer.table_plan import TABLE_ARGUMENTS

PRODUCER = Path(__file__).resolve().parents[1] / "spark_kafka_sink" / "producer"
MODULE = PRODUCER / "typed_options.py"
CONFIG = PRODUCER / "config.py"
BEGIN = "    # Generated from PRODUCER_OPTIONS by `python -m tools.typed_options_source`:\n"
END = "    # End of the generated fields.\n"
MAX_LINE_LENGTH = 120

HEADER = '''\
"""Types of the options, for type checkers and editors. Nothing imports this module at run time.

Generated from the option tables by `python -m tools.typed_options_source`: do not edit.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Literal, TypedDict

Boolean = bool | Literal["true", "false"] | None
Number = int | str | None
Ratio = float | str | None
Text = str | None
Texts = str | list[str] | tuple[str, ...] | None
'''

WORDS: Mapping[str, Sequence[str | int]] = {
    "acks": (*ACKS_PARSER.choices, -1, 0, 1),
    "security.protocol": SECURITY_PROTOCOLS,
    "sasl.mechanism": SASL_MECHANISMS,
    "sasl.oauthbearer.assertion.algorithm": ALGORITHMS,
    "ssl.endpoint.identification.algorithm": ("https", ""),
}
"""The permitted values of options that are not parsed by a ChoiceParser."""

TYPES = {
    "sasl.oauthbearer.token.callback": "Callable[[], object] | Text",
    "ssl.cipher.suites": "Texts",
    "ssl.enabled.protocols": "Texts",
}
"""Types that cannot be derived from the option's parser or default."""


def build_source() -> str:
    """Return the source of typed_options.py."""
    producer = {
        option.field: option
        for option in (*PRODUCER_OPTIONS.values(), *SECURITY_OPTIONS.values())
        if not option.unsupported_reason
    }
    return "\n".join(
        [
            HEADER,
            "",
            *_build_typed_dict(
                "ProducerOptions", "Keyword arguments of KafkaProducer: the producer's options.", producer
            ),
            "",
            "",
            *_build_typed_dict(
                "TableOptions",
                "Keyword arguments of send_table() that configure the formats and the schema registry.",
                TABLE_ARGUMENTS,
            ),
            "",
        ]
    )


def _build_typed_dict(name: str, docstring: str, options: Mapping[str, Option]) -> list[str]:
    """Return the source lines of a TypedDict with a key for each option."""
    lines = [f"class {name}(TypedDict, total=False):", f'    """{docstring}"""', ""]
    for argument, option in options.items():
        line = f"    {argument}: {find_type(option)}"
        assert len(line) <= MAX_LINE_LENGTH, line
        lines.append(line)
    return lines


def find_type(option: Option) -> str:
    """Return the type annotation of an option. Every type permits None, which means that the option is not set."""
    if option.ignored:
        return "object"
    if option.name in TYPES:
        return TYPES[option.name]
    words = find_words(option)
    if words:
        listed = ", ".join(f'"{word}"' if isinstance(word, str) else str(word) for word in words)
        return f"Literal[{listed}] | None"
    return _find_default_type(option.default)


def find_words(option: Option) -> Sequence[str | int]:
    """Return the permitted values of an option, or an empty sequence if no fixed list limits its values."""
    if isinstance(option.parse, ChoiceParser):
        return option.parse.choices
    return WORDS.get(option.name.removeprefix("schema.registry."), ())


def _find_default_type(default: object) -> str:
    """Return the type of an option with this default. TLS and SASL options have text as default, even for numbers."""
    if isinstance(default, bool) or default in ("true", "false"):
        return "Boolean"
    if isinstance(default, int) or (isinstance(default, str) and default.isdigit()):
        return "Number"
    if isinstance(default, str) and default.replace(".", "", 1).isdigit():
        return "Ratio"
    return "Texts" if isinstance(default, tuple) else "Text"


def build_config(source: str, options: Mapping[str, Option] = PRODUCER_OPTIONS) -> str:
    """Return the source of config.py with a field for each option that has an effect."""
    head, generated_and_tail = source.split(BEGIN)
    _, tail = generated_and_tail.split(END)
    effective_options = [option for option in options.values() if option.has_effect]
    fields = "".join(f"    {option.field}: {_find_value_type(option.default)}\n" for option in effective_options)
    return f"{head}{BEGIN}{fields}{END}{tail}"


def _find_value_type(default: object) -> str:
    """Return the type of an option's parsed value, which is derived from its default."""
    if default is None:
        return "str | None"
    return "tuple[str, ...]" if isinstance(default, tuple) else type(default).__name__


if __name__ == "__main__":
    MODULE.write_text(build_source())
    CONFIG.write_text(build_config(CONFIG.read_text()))
