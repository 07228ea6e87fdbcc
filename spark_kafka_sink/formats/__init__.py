"""Columns -> the bytes of a record's value or key, without a loop over rows. Needs pyarrow and numpy alone.

encoder.py      which columns, in which format: made on the driver, used by the tasks
options.py      the options of a side: its format, columns and schema; registry_options.py those of a registry
encoder_builders.py  which columns of a table a side has, and the id of its schema
format_builders.py  the name of a format -> what writes it
json_text.py    JSON as Spark's to_json writes it
java_numbers.py floats and doubles as Java's text
java_times.py   dates and times as Spark's text
time_zones.py   how far a zone's clocks are from UTC
avro.py         Avro's binary encoding; avro_scalars.py its simple types, avro_schema.py its schemas
protobuf.py     Protobuf's wire format; protobuf_fields.py the fields of a message, protobuf_schema.py from columns,
                protobuf_descriptor.py from protoc's descriptors, for the driver; needs the extra `protobuf`
json_schema.py  JSON Schemas made from columns
schema_json.py  the JSON of a schema that a user or a registry gave
schema_registry.py  the ids of schemas, for the driver; needs the extra `registry`
binary_arrays.py joins, constants and choices on columns of bytes
binary_pieces.py  numbers and bytes of binary formats, put together
"""
