"""The Spark data source `pykafka`: the only folder that knows Spark.

datasource.py       what Spark finds: KafkaDataSource
checks.py           what the driver looks at before any task: options, schema, connection
connect_checks.py   these checks on the driver of Spark Connect, for its client
topic_creation.py   the topic, made before any task if it is missing
distribution.py     rows brought to the task that writes their partition or key
columns.py          the column contract, and Arrow batches -> columns per topic
value_formats.py    which columns become the value and the key, and by which encoder
arrow_types.py      types of Spark's columns as Arrow has them
writer.py           what Spark calls: a batch and a stream writer over one write task
exactly_once.py     what these writers do besides if the delivery guarantee is exactly once
write_task.py       one task: Arrow batches in, acknowledged offsets out
pool.py             producers that outlive a task, and how long they are kept
pace.py             the pace of a task: its share of maxBytesPerSecond
tasks_at_once.py    how many tasks share it
failures.py         the error of a failed task
dead_letters.py     where records go that no broker takes
task_report.py      what a task has written, as its commit message, and the sum of them
publish.py          where the report of a write goes: a file, a topic, a function
progress.py         these reports beside Spark's own progress of a stream
worker_process.py   settings of the Python processes that Spark starts
worker_log.py       log lines of these processes
constants.py        the name, internal options, and error messages that several modules raise
options/            option strings -> SinkOptions, all faults in one error
patches/            register(): methods of pyspark's writers that it replaces

pyspark comes with the cluster, or with the extra `spark`.
"""

from spark_kafka_sink.errors import MissingDependencyError

try:
    import pyspark as pyspark  # asked for here, so that its absence is reported in one sentence
except ModuleNotFoundError as error:
    raise MissingDependencyError(
        'The Spark data source needs pyspark 4.0 or newer: install it with pip install "spark-kafka-sink[spark]".'
    ) from error
