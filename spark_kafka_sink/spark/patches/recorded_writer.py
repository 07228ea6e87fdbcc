"""Recorded method calls of pyspark's writers, from which a writer can be rebuilt.

A writer receives its format, options and mode through separate method calls, and classic Spark keeps them in the JVM.
We need them to check a write before Spark plans it, and to rebuild the writer with fewer columns.
`install_call_recorder` therefore patches the writer classes. A call of a public method is then recorded with its
arguments if it returns the writer itself. Apart from that, the patched methods work as before.

The four classes (batch and stream, classic and Connect) have the same methods with the same parameters. Only their
constructors differ: a classic writer is created from a DataFrame, a Connect writer from a plan and a session.
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Collection
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from pyspark.sql.utils import to_str

_RECORDED_CALLS_ATTRIBUTE = "_pykafka_record"
"""Name of the attribute that holds a writer's RecordedCalls.

A patched class also has it, with the value None, which applies to writers that were created before.
"""
_SINK_METHODS = ("format", "foreach", "foreachBatch")
"""The methods that select a writer's sink. The last call to any of them takes effect."""


class RecordedCall(NamedTuple):
    """A call to a writer's method, with its arguments."""

    method: str
    args: tuple[Any, ...]
    """The positional arguments as they were passed. They and `kwargs` are used to repeat the call."""
    kwargs: dict[str, Any]
    bound_arguments: dict[str, Any]
    """All arguments of the call by parameter name. They are used to read a setting."""


@dataclass
class RecordedCalls:
    """A writer's constructor arguments, and the method calls made on it since."""

    constructor_arguments: dict[str, Any]
    """The arguments by parameter name."""
    calls: list[RecordedCall] = field(default_factory=list)

    def last_call(self, *methods: str) -> RecordedCall | None:
        """Return the most recent call to any of the methods, or None if there was none."""
        return next((call for call in reversed(self.calls) if call.method in methods), None)

    def format(self) -> str | None:
        """Return the format's name. Return None if it is not set, or "" if the sink is a function (foreach)."""
        call = self.last_call(*_SINK_METHODS)
        if call is None:
            return None
        return str(call.bound_arguments["source"]) if call.method == "format" else ""

    def options(self) -> dict[str, str]:
        """Return the options as Spark passes them to a data source: lowercase names and string values.

        If an option was set more than once, the last value counts.
        """
        return {name.lower(): value for name, value in self.options_as_written().items()}

    def options_as_written(self) -> dict[str, str]:
        """Return the options by the names that the user wrote, of which no two differ only in case.

        Errors about unknown options show these names.
        """
        names_and_values: dict[str, tuple[str, str]] = {}
        for call in self.calls:
            if call.method == "option":
                new_options = {call.bound_arguments["key"]: call.bound_arguments["value"]}
            elif call.method == "options":
                new_options = call.bound_arguments.get("options", {})
            else:
                continue
            for name, value in new_options.items():
                if value is not None:
                    names_and_values[name.lower()] = (name, str(to_str(value)))
        return dict(names_and_values.values())


def install_call_recorder(writer_class: Any) -> None:
    """Patch the class so that writers created from now on record their method calls. Repeated calls do nothing."""
    if hasattr(writer_class, _RECORDED_CALLS_ATTRIBUTE):
        return
    setattr(writer_class, _RECORDED_CALLS_ATTRIBUTE, None)
    writer_class.__init__ = _wrap_constructor(writer_class.__init__)
    for name, method in list(vars(writer_class).items()):
        if not name.startswith("_") and inspect.isfunction(method):
            setattr(writer_class, name, _wrap_method(method))


def get_recorded_calls(writer: Any) -> RecordedCalls | None:
    """Return a writer's recorded calls, or None if the writer was created before its class was patched."""
    recorded_calls: RecordedCalls | None = getattr(writer, _RECORDED_CALLS_ATTRIBUTE)
    return recorded_calls


def get_writer_dataframe(writer: Any) -> Any:
    """Return the DataFrame that the writer writes."""
    arguments = getattr(writer, _RECORDED_CALLS_ATTRIBUTE).constructor_arguments
    if "df" in arguments:
        return arguments["df"]
    from pyspark.sql.connect.dataframe import DataFrame

    return DataFrame(arguments["plan"], arguments["session"])


def rebuild_writer(writer: Any, frame: Any, excluding: Collection[str]) -> Any:
    """Create a writer for a different DataFrame, and repeat the recorded calls of `writer` on it.

    `frame`: the DataFrame that the new writer writes.
    `excluding`: names of the methods whose calls are not repeated.
    """
    recorded_calls: RecordedCalls = getattr(writer, _RECORDED_CALLS_ATTRIBUTE)
    # The constructor of a classic writer takes the DataFrame as `df`. That of a Connect writer takes the DataFrame's
    # logical plan, which has no public accessor, and its session, which is the same for both DataFrames.
    is_classic = "df" in recorded_calls.constructor_arguments
    frame_argument = {"df": frame} if is_classic else {"plan": frame._plan}
    new_writer = type(writer)(**(recorded_calls.constructor_arguments | frame_argument))
    for call in recorded_calls.calls:
        if call.method not in excluding:
            getattr(new_writer, call.method)(*call.args, **call.kwargs)
    return new_writer


def copy_writer(writer: Any) -> Any:
    """Create a writer for the same DataFrame, and repeat the recorded calls of `writer` on it."""
    return rebuild_writer(writer, get_writer_dataframe(writer), excluding=())


def _wrap_constructor(original: Callable[..., None]) -> Callable[..., None]:
    """Wrap a writer's constructor so that it records its arguments by name."""
    signature = inspect.signature(original)

    @functools.wraps(original)
    def init(self: Any, *args: Any, **kwargs: Any) -> None:
        original(self, *args, **kwargs)
        bound_arguments = signature.bind(self, *args, **kwargs).arguments
        constructor_arguments = dict(list(bound_arguments.items())[1:])  # `self` comes first
        setattr(self, _RECORDED_CALLS_ATTRIBUTE, RecordedCalls(constructor_arguments))

    return init


def _wrap_method(original: Callable[..., Any]) -> Callable[..., Any]:
    """Wrap a writer's method so that each call that returns the writer itself is recorded."""
    signature = inspect.signature(original)

    @functools.wraps(original)
    def method(self: Any, *args: Any, **kwargs: Any) -> Any:
        result = original(self, *args, **kwargs)
        recorded_calls = get_recorded_calls(self)
        # Methods that return anything else, such as `save` and `start`, do not configure the writer.
        if result is self and recorded_calls is not None:
            bound_arguments = signature.bind(self, *args, **kwargs).arguments
            recorded_calls.calls.append(RecordedCall(original.__name__, args, kwargs, dict(bound_arguments)))
        return result

    return method
