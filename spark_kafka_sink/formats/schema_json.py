"""The JSON of a schema that a user or a registry gave."""

from __future__ import annotations

import json
from typing import Any

from spark_kafka_sink.errors import SchemaError

NESTING_MAX = 400
"""Levels of arrays and objects. A struct in a struct takes four, and planning it fewer calls than Python allows."""


def parsed_json(text: str, what: str) -> Any:
    """SchemaError, which begins with `what`, if the text is no JSON or nested too deeply to be worked through."""
    try:
        schema = json.loads(text)
    except ValueError as error:
        raise SchemaError(f"{what} is no JSON: {error}") from error
    except RecursionError:
        raise _too_deep(what) from None
    level = [schema]
    for _ in range(NESTING_MAX):
        level = [inner for outer in level for inner in _members(outer)]
        if not level:
            return schema
    raise _too_deep(what)


def _members(value: Any) -> list[Any]:
    if isinstance(value, dict):
        return list(value.values())
    return value if isinstance(value, list) else []


def _too_deep(what: str) -> SchemaError:
    return SchemaError(f"{what} is nested more than {NESTING_MAX} levels deep")
