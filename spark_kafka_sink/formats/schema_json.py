"""Parse schemas in JSON that come from a user or a registry."""

from __future__ import annotations

import json
from typing import Any

from spark_kafka_sink.errors import SchemaError

MAX_NESTING = 400
"""Maximum depth of arrays and objects.

A nested struct takes four levels, and the recursion over a schema of this depth stays below Python's recursion limit.
"""


def parse_schema_json(text: str, description: str) -> Any:
    """Parse JSON. Raise SchemaError if it is invalid or nested too deeply.

    `description` is the subject of the error message.
    """
    try:
        schema = json.loads(text)
    except ValueError as error:
        raise SchemaError(f"{description} is not valid JSON: {error}") from error
    except RecursionError:
        raise _build_nesting_error(description) from None
    level = [schema]
    for _ in range(MAX_NESTING):
        level = [child for parent in level for child in _find_children(parent)]
        if not level:
            return schema
    raise _build_nesting_error(description)


def _find_children(value: Any) -> list[Any]:
    if isinstance(value, dict):
        return list(value.values())
    return value if isinstance(value, list) else []


def _build_nesting_error(description: str) -> SchemaError:
    return SchemaError(f"{description} is nested more than {MAX_NESTING} levels deep")
