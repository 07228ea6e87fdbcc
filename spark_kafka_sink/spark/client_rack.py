"""The rack of a task, which `clientRackEnv` reads from the environment of the executor."""

from __future__ import annotations

import os
import platform
from collections.abc import Mapping

from spark_kafka_sink.spark.options.sink_options import SinkOptions
from spark_kafka_sink.spark.worker_log import LOGGER


def build_task_producer_options(options: SinkOptions) -> Mapping[str, str]:
    """Return the producer options of a task, with the rack of its executor if `clientRackEnv` is set.

    If the environment variable is not set, the task logs a warning and writes rows without a key to partitions of all
    racks. It must not fail, because such rows are valid in every partition.
    """
    if options.client_rack_env is None:
        return options.producer
    rack = os.environ.get(options.client_rack_env, "").strip()
    if not rack:
        LOGGER.warning(
            "The environment variable %s, which clientRackEnv names, is not set on %s. Rows without a key go to "
            "partitions of all racks. Set the variable in the environment of the executors.",
            options.client_rack_env,
            platform.node(),
        )
        return options.producer
    return {**options.producer, "partitioner.rack.aware": "true", "client.rack": rack}
