"""Parser of schemas in JSON that come from a user or a registry."""

from __future__ import annotations

import json
from typing import Any

from spark_kafka_sink.errors import SchemaError

MAX_NESTING = 400
"""Maximum depth of arrays and objects. A nested struct takes up to four levels.

Functions that recurse over the whole schema use up to two frames per level, which stays below Python's recursion limit.
Functions that need more frames descend only as deep as the columns, whose depth `build_format` limits.
"""


def parse_schema_json(text: str, description: str) -> Any:
    """Parse a schema from JSON. Raise SchemaError if the text is not JSON or is nested too deeply.

    `description`: the subject of the error message, such as "the Avro schema".
    """
    try:
        schema = json.loads(text)
    except ValueError as error:
        raise SchemaError(f"{description} is not valid JSON: {error}") from error
    except RecursionError:
        raise _build_nesting_error(description) from None
    # Descend one level of nesting per step, without recursion.
    values_at_depth = [schema]
    for _ in range(MAX_NESTING):
        values_at_depth = [child for parent in values_at_depth for child in _find_children(parent)]
        if not values_at_depth:
            return schema
    raise _build_nesting_error(description)


def _find_children(value: Any) -> list[Any]:
    if isinstance(value, dict):
        return list(value.values())
    return value if isinstance(value, list) else []


def _build_nesting_error(description: str) -> SchemaError:
    return SchemaError(f"{description} is nested more than {MAX_NESTING} levels deep")
