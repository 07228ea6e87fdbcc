"""Rows that this package and fastavro encode, and schemas in JSON."""

from __future__ import annotations

import io
import json
import pickle
from typing import Any

import fastavro
import pyarrow as pa

from spark_kafka_sink.formats.avro import AvroFormat
from spark_kafka_sink.formats.encoder import ColumnsEncoder


def encode(schema: str, batch: pa.RecordBatch) -> list[bytes | None]:
    encoder = ColumnsEncoder(AvroFormat(schema), tuple(batch.schema), tuple(range(batch.num_columns)))
    rows: list[bytes | None] = pickle.loads(pickle.dumps(encoder)).encode(batch).to_pylist()
    return rows


def maps_to_dicts(value: Any, data_type: pa.DataType) -> Any:
    """Convert maps from lists of tuples to dicts. pyarrow 19 has no option for that."""
    if value is None:
        return None
    if pa.types.is_map(data_type):
        return {key: maps_to_dicts(item, data_type.item_type) for key, item in value}
    if pa.types.is_list(data_type):
        return [maps_to_dicts(item, data_type.value_type) for item in value]
    if pa.types.is_struct(data_type):
        return {field.name: maps_to_dicts(value[field.name], field.type) for field in data_type}
    return value


def encode_with_fastavro(schema: str, batch: pa.RecordBatch) -> list[bytes]:
    parsed = fastavro.parse_schema(json.loads(schema))
    rows = []
    for row in batch.to_pylist():
        buffer = io.BytesIO()
        fastavro.schemaless_writer(
            buffer, parsed, {field.name: maps_to_dicts(row[field.name], field.type) for field in batch.schema}
        )
        rows.append(buffer.getvalue())
    return rows


def record_schema(*fields: dict[str, Any], **attributes: Any) -> str:
    return json.dumps({"type": "record", "name": "r", "fields": fields, **attributes})


def field_schema(name: str, avro_type: Any, **attributes: Any) -> dict[str, Any]:
    return {"name": name, "type": avro_type, **attributes}


def logical_schema(avro_type: str, name: str, **attributes: Any) -> dict[str, Any]:
    return {"type": avro_type, "logicalType": name, **attributes}


def fixed_decimal_schema(path: str, size: int, precision: int, scale: int) -> dict[str, Any]:
    digits = {"logicalType": "decimal", "precision": precision, "scale": scale}
    return {"type": "fixed", "name": "fixed", "namespace": f"topLevelRecord.{path}", "size": size, **digits}
