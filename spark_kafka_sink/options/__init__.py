"""The Option class, with which clients, the sink, security and schema registries define their options."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass

Parser = Callable[[object], object]
"""Function that converts the value that a user set to the value that the library uses.

If the value is invalid, the parser raises ValueError. The error's text completes a sentence that begins with the
option's name, for example "must be ...". The message for the user also shows the value, unless the option is secret or
the parser raises HiddenValueError.
"""


class HiddenValueError(ValueError):
    """Raised for an invalid value that error messages must not show because it may be a secret or very long."""


def check_text(text: str) -> None:
    """Raise HiddenValueError if the text has a NUL character or cannot be encoded in UTF-8.

    C libraries take a NUL character for the end of the text. Unpaired surrogates cannot be encoded; Python produces
    them for bytes of the command line or the environment that are not UTF-8.
    """
    try:
        text.encode()
        is_valid = "\0" not in text
    except UnicodeEncodeError:
        is_valid = False
    if not is_valid:
        raise HiddenValueError("must be text in UTF-8 without NUL characters")


@dataclass(frozen=True)
class Option:
    """An option of the Java client or of the sink."""

    name: str
    default: object
    parse: Parser
    description: str
    """The text that users read in docs/options.md."""
    unsupported_reason: str = ""
    """The reason why only the default is accepted; empty if other values are supported.

    Names of other options are enclosed in braces, as in the text of an OptionProblem.
    """
    secret: bool = False
    """Whether the value must never appear in errors, logs or reprs."""
    ignored: bool = False
    """Whether valid values have no effect, because the option concerns the JVM or internals of the Java client."""

    @property
    def has_effect(self) -> bool:
        """Whether setting the option can change anything."""
        return not (self.unsupported_reason or self.ignored)

    @property
    def field(self) -> str:
        """The name of the option's field in ClientConfig or ProducerConfig."""
        return self.name.replace(".", "_")


def build_option_table(options: Iterable[Option]) -> dict[str, Option]:
    """Return the options by name. Raise ValueError if two options have the same name."""
    table: dict[str, Option] = {}
    for option in options:
        if option.name in table:
            raise ValueError(f"Two rows of an option table have the name {option.name}. Remove one of them.")
        table[option.name] = option
    return table
