"""What `save` and `start` raise, as a notebook should show it: the sentence that says what is wrong and what to do.

What the driver finds comes without this package's lines of code above it. When a task fails, Spark raises an error of
its own, in which the sentence stands between the worker's traceback and the stages of the job. Here it becomes the
error itself; Spark's whole error is its `__context__`. An error that is none of ours, as that of a user's function,
stays as Spark raised it. A stream's tasks fail after `start()` has returned: Spark raises that in `awaitTermination()`.

IPython, and with it Jupyter, asks an error for its lines by the method `_render_traceback_`: there the sentence comes
first, then the user's lines of code.
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

_IS_NOT_THE_USERS = re.compile(r"[/\\](IPython|ipykernel|pyspark|spark_kafka_sink)[/\\]").search
_IN_TRACEBACK = re.compile(
    rf"^{re.escape(errors.__name__)}\.(?P<kind>\w+): (?P<words>.*?)"
    r"(?=\n\s*\n|\n\s+at |\n Traceback|\s+SQLSTATE: |\Z)",
    re.DOTALL | re.MULTILINE,
)
"""The last lines of a worker's traceback; behind them follows what Spark adds."""


def wrap_with_plain_errors(original: Callable[..., Any]) -> Callable[..., Any]:
    """`save` or `start`, with errors as the module's docstring says."""

    @functools.wraps(original)
    def write(*arguments: Any, **options: Any) -> Any:
        try:
            return original(*arguments, **options)
        except KafkaSinkError as error:
            raise _for_notebooks(error).with_traceback(None) from error.__cause__
        except PySparkException as error:
            ours = parse_task_error(str(error))
            if ours is None:
                raise
            raise _for_notebooks(ours) from None

    return write


def _for_notebooks(error: KafkaSinkError) -> KafkaSinkError:
    error._render_traceback_ = functools.partial(_lines, error)  # type: ignore[attr-defined]
    return error


def _lines(error: KafkaSinkError) -> list[str]:
    """The sentence, and the lines of code that led to it as far as they are the user's."""
    frames = [frame for frame in traceback.extract_tb(error.__traceback__) if not _IS_NOT_THE_USERS(frame.filename)]
    return [f"{type(error).__name__}: {error}", "", *(line.rstrip() for line in traceback.format_list(frames))]


def parse_task_error(words: str) -> KafkaSinkError | None:
    """The error of ours that is in the words of Spark's. None: there is none."""
    found = list(_IN_TRACEBACK.finditer(words))
    if not found:
        return None
    kind = getattr(errors, found[-1]["kind"], None)
    if not isinstance(kind, type) or not issubclass(kind, KafkaSinkError) or issubclass(kind, BrokerError):
        kind = DeliveryError  # the others are made of more than words
    return kind(found[-1]["words"])
