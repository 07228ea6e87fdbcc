"""Errors of `save` and `start` that are readable in a notebook: the message and its remedy.

An error on the driver is raised without this package's stack frames. When a task fails, Spark raises its own error,
which contains our message between the worker's traceback and the job's stages. The wrapped methods raise our error
instead, and keep Spark's as its `__context__`. Errors from other code, such as a user's function, are raised unchanged.
If a task of a stream fails, `start()` has already returned, so `awaitTermination()` raises Spark's error.

IPython, and therefore Jupyter, calls an error's method `_render_traceback_` to get the lines to show. For our errors,
the method returns the message followed by the user's own stack frames.
"""

from __future__ import annotations

import functools
import re
import traceback
from collections.abc import Callable
from typing import Any

from pyspark.errors import PySparkException

from spark_kafka_sink import errors
from spark_kafka_sink.errors import BrokerError, DeliveryError, KafkaSinkError

_LIBRARY_PATH_PATTERN = re.compile(r"[/\\](IPython|ipykernel|pyspark|spark_kafka_sink)[/\\]")
_TASK_ERROR_PATTERN = re.compile(
    rf"^{re.escape(errors.__name__)}\.(?P<class_name>\w+): (?P<message>.*?)"
    r"(?=\n\s*\n|\n\s+at |\n Traceback|\s+SQLSTATE: |\Z)",
    re.DOTALL | re.MULTILINE,
)
"""Matches the end of a worker's traceback: our error's class and message, up to the text that Spark appends."""


def wrap_with_plain_errors(original: Callable[..., Any]) -> Callable[..., Any]:
    """Wrap a write method so that it raises this package's errors without the text that Spark puts around them.

    Errors from other code propagate unchanged.
    """

    @functools.wraps(original)
    def write(*arguments: Any, **options: Any) -> Any:
        try:
            return original(*arguments, **options)
        except KafkaSinkError as error:
            # Drop the frames below this one from the traceback. `from` keeps the error's own cause, and hides errors
            # that were handled before it was raised.
            raise _add_notebook_traceback(error).with_traceback(None) from error.__cause__
        except PySparkException as error:
            task_error = parse_task_error(str(error))
            if task_error is None:
                raise
            # `from None` hides Spark's error. It is still the `__context__` of ours.
            raise _add_notebook_traceback(task_error) from None

    return write


def _add_notebook_traceback(error: KafkaSinkError) -> KafkaSinkError:
    """Give the error the method that IPython calls to show it, and return the error."""
    error._render_traceback_ = functools.partial(_render_traceback, error)  # type: ignore[attr-defined]
    return error


def _render_traceback(error: KafkaSinkError) -> list[str]:
    """Return the error's message and the user's stack frames, as lines to show."""
    frames = [
        frame for frame in traceback.extract_tb(error.__traceback__) if not _LIBRARY_PATH_PATTERN.search(frame.filename)
    ]
    return [f"{type(error).__name__}: {error}", "", *(line.rstrip() for line in traceback.format_list(frames))]


def parse_task_error(message: str) -> KafkaSinkError | None:
    """Rebuild a task's error from the message of Spark's error. Return None if the message contains none of our errors.

    An error whose class is unknown or needs more than a message becomes a DeliveryError.
    """
    matches = list(_TASK_ERROR_PATTERN.finditer(message))
    if not matches:
        return None
    # A Python traceback shows the causes of an error before the error itself, so the last match is the error.
    last_match = matches[-1]
    error_class = getattr(errors, last_match["class_name"], None)
    if (
        not isinstance(error_class, type)
        or not issubclass(error_class, KafkaSinkError)
        or issubclass(error_class, BrokerError)
    ):
        # A BrokerError cannot be built from a message alone.
        error_class = DeliveryError
    return error_class(last_match["message"])
