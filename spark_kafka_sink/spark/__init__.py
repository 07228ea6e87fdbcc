"""The Spark data source `pykafka`: the only folder that knows Spark.

datasource.py   what Spark finds: KafkaDataSource
drop_in.py      register(): default save mode, threads, redaction
options.py      option strings -> SinkOptions, all faults in one error
columns.py      the column contract, and Arrow batches -> columns per topic
writer.py       what Spark calls: a batch and a stream writer over one write task
write_task.py   one task: Arrow batches in, acknowledged offsets out
bootstrap.py    the driver's look at the address, before any task
failures.py     the error of a failed task
dead_letters.py where records go that nobody would take
pool.py         producers that outlive a task
report.py       what was written, as messages from tasks, a line in the log, a line of JSON

pyspark comes with the cluster, or with the extra `spark`.
"""

from spark_kafka_sink.errors import MissingDependencyError

try:
    import pyspark as pyspark  # asked for here, so that its absence is told in one sentence
except ModuleNotFoundError as error:
    raise MissingDependencyError(
        'The Spark data source needs pyspark 4.1 or newer: install it with pip install "spark-kafka-sink[spark]".'
    ) from error
