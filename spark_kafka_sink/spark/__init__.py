"""The Spark data source `pykafka`.

Elsewhere in the library, only the testing package, the demo job and `pykafka doctor --spark-conf` depend on Spark.
pyspark is provided by the cluster, or by the extra `spark`.

Entry points: datasource.py defines KafkaDataSource, the class that Spark instantiates. patches/ contains `register` and
the methods that it installs in pyspark's writers. map_in_arrow.py writes through mapInArrow instead of the data source
(on Spark 3.5, or with writeMethod=mapInArrow).

On the driver, before any task: options/ parses the option strings, columns.py plans the columns, checks.py checks the
write, topic_creation.py creates a missing topic, and distribution.py moves each row to the task that writes it.

In the tasks: write_task.py sends the rows and returns a report (task_report.py), using the producers in pool.py.
failures.py builds the exception raised when a task fails.

On the driver, after the tasks: writer.py commits or aborts, exactly_once.py does so with transactions, and
report_publishing.py, progress.py and lineage.py publish what was written.
"""

from spark_kafka_sink.errors import MissingDependencyError

try:
    import pyspark as pyspark  # imported once here, so that a missing pyspark gives one clear error
except ModuleNotFoundError as error:
    raise MissingDependencyError(
        'The Spark data source requires pyspark 3.5 or newer: pip install "spark-kafka-sink[spark]".'
    ) from error
