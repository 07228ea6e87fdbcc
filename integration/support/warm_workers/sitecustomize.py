"""Startup code for the daemons of Spark's Python workers: imports the modules of all workers once, before forks.

A driver of nine queries has thirty workers, and each would spend half a second of CPU on it. Python imports this module
when it starts with this folder on its path. Tests name folders in environment variables: one for the history of the
decision log, and one for requests to stop at steps of exactly once.
"""

import os
import sys
from pathlib import Path

if "pyspark.daemon" in sys.orig_argv:
    import spark_kafka_sink.exactly_once.driver
    import spark_kafka_sink.producer.producer
    import spark_kafka_sink.spark.datasource
    import spark_kafka_sink.spark.exactly_once  # noqa: F401 - see above
    from tests.exactly_once.log_history import HISTORY_FOLDER, record_process
    from tests.exactly_once.protocol_steps import FOLDER, install_stops

    if HISTORY_FOLDER in os.environ:
        record_process(Path(os.environ[HISTORY_FOLDER]))
    if FOLDER in os.environ:
        install_stops(Path(os.environ[FOLDER]))
