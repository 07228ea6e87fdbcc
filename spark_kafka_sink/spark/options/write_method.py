"""The option `writeMethod`, which selects how Spark runs a write. `should_use_map_in_arrow` evaluates it."""

from __future__ import annotations

from spark_kafka_sink.client.option_parsing import build_choice_parser
from spark_kafka_sink.options import Option

DATA_SOURCE, MAP_IN_ARROW = "dataSource", "mapInArrow"

WRITE_METHOD_OPTION = Option(
    "writeMethod",
    None,
    build_choice_parser(DATA_SOURCE, MAP_IN_ARROW),
    "how Spark runs the write: `dataSource`, or `mapInArrow`, which [shortens the start of a short "
    "job](batch.md#start-a-short-job-faster); by default `dataSource`, and `mapInArrow` on Spark 3.5, which has no "
    "Python data sources",
)
