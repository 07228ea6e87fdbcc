"""Encoders from Arrow columns to the bytes of record values and keys. They need only pyarrow and numpy.

No Python code runs for a row: every format works on whole columns.

encoder.py           ColumnsEncoder: selects columns and encodes them; built on the driver, used by the tasks
encoder_builders.py  encoders from options and columns, including the schema id
format_builders.py   row formats and schemas, by format name
options.py           options of one side of a record (value or key)
registry_options.py  options of the schema registry
schema_registry.py   client of the schema registry, used by the driver
json_text.py         JSON, in the bytes of Spark's to_json
json_schema.py       JSON Schemas derived from columns
avro.py              Avro's binary encoding; avro_scalars.py the types without nested types, avro_schema.py the schemas
protobuf.py          Protobuf's wire format; protobuf_fields.py describes the fields of a message
protobuf_schema.py   Protobuf messages derived from columns
protobuf_descriptor.py  Protobuf messages parsed from descriptors, on the driver; needs the extra `protobuf`
schema_json.py       parser of schemas that are JSON
java_numbers.py      floats and doubles in Java's text format
java_times.py        dates and times in Spark's text format; time_zones.py their offsets from UTC
binary_arrays.py     operations on Arrow's binary arrays
binary_pieces.py     numbers and bytes of binary formats, joined row by row
arrow_errors.py      Arrow's errors, converted to errors that name the column
"""
