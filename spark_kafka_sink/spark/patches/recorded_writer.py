"""Writers of pyspark that remember the calls of their methods.

A writer gets its format, options and mode one by one, and in classic Spark it keeps them in the JVM. To look at a
write before Spark plans it, and to make it once more with fewer columns, the writer classes are changed by `record`:
every public method that returns the writer itself is noted with its arguments. Nothing else changes, for any format.

The four classes (batch and stream, classic and Connect) have the same methods with the same parameters, so what follows
needs no difference between them, but for how a writer is made from a data frame.
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Collection
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from pyspark.sql.utils import to_str

_RECORD = "_pykafka_record"
_CHOOSES_SINK = ("format", "foreach", "foreachBatch")


class RecordedCall(NamedTuple):
    """One call of a setting. `named` has its arguments by the names of their parameters."""

    method: str
    arguments: tuple[Any, ...]
    keywords: dict[str, Any]
    named: dict[str, Any]


@dataclass
class RecordedCalls:
    """How a writer was made, and the calls of its settings since."""

    made_with: dict[str, Any]
    calls: list[RecordedCall] = field(default_factory=list)

    def last(self, *methods: str) -> RecordedCall | None:
        return next((call for call in reversed(self.calls) if call.method in methods), None)

    def format(self) -> str | None:
        """The format by its name; an empty one if the rows go to a function instead."""
        call = self.last(*_CHOOSES_SINK)
        if call is None:
            return None
        return str(call.named["source"]) if call.method == "format" else ""

    def options(self) -> dict[str, str]:
        """As Spark would hand them to a data source: names in lower case, values as text, the last one counts."""
        said: dict[str, str] = {}
        for call in self.calls:
            if call.method == "option":
                given = {call.named["key"]: call.named["value"]}
            elif call.method == "options":
                given = call.named.get("options", {})
            else:
                continue
            said |= {name.lower(): str(to_str(value)) for name, value in given.items() if value is not None}
        return said


def record(writer_class: Any) -> None:
    """Let the writers of this class, made from now on, have a RecordedCalls."""
    if hasattr(writer_class, _RECORD):
        return
    setattr(writer_class, _RECORD, None)
    writer_class.__init__ = _noted_init(writer_class.__init__)
    for name, method in list(vars(writer_class).items()):
        if not name.startswith("_") and inspect.isfunction(method):
            setattr(writer_class, name, _noted(method))


def recorded_calls(writer: Any) -> RecordedCalls | None:
    """None for a writer that was made before its class was changed."""
    found: RecordedCalls | None = getattr(writer, _RECORD)
    return found


def writer_dataframe(writer: Any) -> Any:
    """The data frame that is written."""
    made_with = getattr(writer, _RECORD).made_with
    if "df" in made_with:
        return made_with["df"]
    from pyspark.sql.connect.dataframe import DataFrame

    return DataFrame(made_with["plan"], made_with["session"])


def rebuild_writer(writer: Any, frame: Any, without: Collection[str]) -> Any:
    """A writer of another data frame with the same settings, without the calls of these methods."""
    said: RecordedCalls = getattr(writer, _RECORD)
    source = {"df": frame} if "df" in said.made_with else {"plan": frame._plan}
    made = type(writer)(**(said.made_with | source))
    for call in said.calls:
        if call.method not in without:
            getattr(made, call.method)(*call.arguments, **call.keywords)
    return made


def _noted_init(original: Callable[..., None]) -> Callable[..., None]:
    signature = inspect.signature(original)

    @functools.wraps(original)
    def noted(self: Any, *arguments: Any, **keywords: Any) -> None:
        original(self, *arguments, **keywords)
        bound = signature.bind(self, *arguments, **keywords).arguments
        setattr(self, _RECORD, RecordedCalls(dict(list(bound.items())[1:])))

    return noted


def _noted(original: Callable[..., Any]) -> Callable[..., Any]:
    signature = inspect.signature(original)

    @functools.wraps(original)
    def noted(self: Any, *arguments: Any, **keywords: Any) -> Any:
        result = original(self, *arguments, **keywords)
        said = recorded_calls(self)
        if result is self and said is not None:
            named = signature.bind(self, *arguments, **keywords).arguments
            said.calls.append(RecordedCall(original.__name__, arguments, keywords, dict(named)))
        return result

    return noted
