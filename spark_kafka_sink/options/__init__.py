"""The Option class, and tables of options. Clients, the sink, security and schema registries use them."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass

Parser = Callable[[object], object]
"""Converts the value that a user has set to the value that the library uses.

Raise ValueError with the end of a sentence that begins with the option's name: "must be ...". The error message also
shows the value, unless the option is secret or the parser raises HiddenValueError.
"""


class HiddenValueError(ValueError):
    """An invalid value that error messages must not show, because it may contain a password or be very long."""


@dataclass(frozen=True)
class Option:
    """An option of the Java client or of the sink."""

    name: str
    default: object
    parse: Parser
    description: str
    """The sentence that users read in docs/options.md."""
    unsupported_reason: str = ""
    """The reason why only the default is accepted; empty if other values are supported.

    Braces enclose the names of other options, as in the text of an OptionFault.
    """
    secret: bool = False
    """The value never appears in errors, logs or reprs."""
    ignored: bool = False
    """Valid values are accepted without effect, because the option concerns a JVM or internals of the Java client."""

    @property
    def has_effect(self) -> bool:
        """Return whether a user can change anything by setting the option."""
        return not (self.unsupported_reason or self.ignored)

    @property
    def field(self) -> str:
        """The name of the field of ClientConfig or ProducerConfig."""
        return self.name.replace(".", "_")


def build_option_table(options: Iterable[Option]) -> dict[str, Option]:
    """Return the options by name. Raise ValueError if two options have the same name."""
    table: dict[str, Option] = {}
    for option in options:
        if option.name in table:
            raise ValueError(f"Two rows of a table of options have the name {option.name}. Remove one of them.")
        table[option.name] = option
    return table
