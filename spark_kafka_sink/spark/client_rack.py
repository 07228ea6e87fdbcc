"""The rack of a task, which determines the partitions to which the task writes rows without a key.

With `clientRackEnv`, the rack is read from the executor's environment.
"""

from __future__ import annotations

import os
import platform
from collections.abc import Mapping

from spark_kafka_sink.spark.constants import CLIENT_RACK_OPTION, RACK_AWARE_OPTION
from spark_kafka_sink.spark.options.sink_options import SinkOptions
from spark_kafka_sink.spark.worker_log import LOGGER


def build_task_producer_options(options: SinkOptions) -> Mapping[str, str]:
    """Return a task's producer options, including its executor's rack if `clientRackEnv` is set.

    If the environment variable is not set, log a warning. The task then writes rows without a key to partitions of all
    racks. This is not an error, because rows without a key are valid in any partition.
    """
    if options.rack_env_variable is None:
        return options.producer_options
    rack = os.environ.get(options.rack_env_variable, "").strip()
    if not rack:
        LOGGER.warning(
            "The environment variable %s, which clientRackEnv names, is not set on %s. Rows without a key go to "
            "partitions of all racks. Set the variable in the environment of the executors.",
            options.rack_env_variable,
            platform.node(),
        )
        return options.producer_options
    return {**options.producer_options, RACK_AWARE_OPTION: "true", CLIENT_RACK_OPTION: rack}
