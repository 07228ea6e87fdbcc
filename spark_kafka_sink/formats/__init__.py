"""Formats that encode Arrow columns as record values or keys, and schemas. Encoding needs only pyarrow and numpy.

Every format works on whole columns, so no Python code runs per row.

encoder.py              defines ColumnsEncoder; the driver builds it, and the tasks encode selected columns with it
encoder_builders.py     builds encoders from options and columns, and attaches schema ids
format_builders.py      builds row formats and their schemas by format name
options.py              parses the options of each part of a record (value or key)
registry_options.py     parses the schema registry options
schema_registry.py      registers and fetches schemas from the driver; write_rules.py finds rules that it cannot execute
registry_transport.py   sends requests to the schema registry, and retries them
json_text.py            encodes JSON, byte for byte like Spark's to_json
json_schema.py          derives JSON Schemas from columns, and checks the user's
avro.py                 encodes Avro; avro_scalars.py handles scalar types, avro_schema.py derives and parses schemas
protobuf.py             encodes Protobuf; protobuf_fields.py describes the fields of a message
protobuf_schema.py      derives Protobuf messages from columns
protobuf_descriptor.py  parses Protobuf descriptors on the driver; needs the extra `protobuf`
schema_json.py          parses schemas that are written in JSON
java_numbers.py         formats floats and doubles like Java
java_times.py           formats dates and times like Spark; time_zones.py computes UTC offsets
binary_arrays.py        provides operations on Arrow's binary arrays
binary_pieces.py        joins the encoded numbers and bytes of binary formats row by row
arrow_errors.py         converts Arrow's errors to errors that name the column
"""
