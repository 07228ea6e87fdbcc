"""Options: one row of a table of options. Clients, the sink, security and registries all have such tables."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass

Parser = Callable[[object], object]
"""Converts the value that a user has set to the value used.

Raises ValueError with the end of a sentence that begins with the option's name: "must be ...". The error then shows the
value, unless the option is a secret or the parser raises HiddenValueError.
"""


class HiddenValueError(ValueError):
    """Raised by a parser for a value that the error must not show: it may have a password, or be long."""


@dataclass(frozen=True)
class Option:
    """One option of the Java client, or one of the sink itself."""

    name: str
    default: object
    parse: Parser
    meaning: str
    """The sentence that a user reads; docs/options.md is compared with it."""
    refused: str = ""
    """Why another value than the default is refused, as in the text of an OptionFault: other options stand in braces.
    Empty for an option that is honoured."""
    secret: bool = False
    """Its value is in no error, no log and no repr."""
    ignored: bool = False
    """Accepted, without effect: it means something in a JVM alone."""

    @property
    def is_honoured(self) -> bool:
        """Return whether the option has an effect here."""
        return not (self.refused or self.ignored)

    @property
    def field(self) -> str:
        """The name of the field of ClientConfig or ProducerConfig."""
        return self.name.replace(".", "_")


def option_table(options: Iterable[Option]) -> dict[str, Option]:
    """Return the options by their names. Raise ValueError for two of one name."""
    table: dict[str, Option] = {}
    for option in options:
        if option.name in table:
            raise ValueError(f"Two rows of a table of options have the name {option.name}. Remove one of them.")
        table[option.name] = option
    return table
