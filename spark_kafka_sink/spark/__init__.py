"""The Spark data source `pykafka`: the only folder that knows Spark.

datasource.py       what Spark finds: KafkaDataSource
drop_in.py          register(): which methods of pyspark it replaces, and what it sets
save_and_start.py   what takes their place: a look before Spark plans, fewer columns, mode append, output mode update
plain_errors.py     what they raise: the sentence, without the stages of a job around it
recorded_writer.py  writers of pyspark that remember what was said to them
option_names.py     names of options as a job writes them, also in the words of the producer
options.py          option strings -> SinkOptions, all faults in one error
columns.py          the column contract, and Arrow batches -> columns per topic
writer.py           what Spark calls: a batch and a stream writer over one write task
write_task.py       one task: Arrow batches in, acknowledged offsets out
checks.py           what the driver looks at before any task: options, schema, connection; also for Spark Connect
failures.py         the error of a failed task
dead_letters.py     where records go that no broker takes
pool.py             producers that outlive a task
report.py           what a task has written, as its commit message, and the sum of them
publish.py          where the report of a write goes: a file, a topic, a function
progress.py         these reports beside Spark's own progress of a stream
words.py            refusals that more than one file has to say

pyspark comes with the cluster, or with the extra `spark`.
"""

from spark_kafka_sink.errors import MissingDependencyError

try:
    import pyspark as pyspark  # asked for here, so that its absence is reported in one sentence
except ModuleNotFoundError as error:
    raise MissingDependencyError(
        'The Spark data source needs pyspark 4.1 or newer: install it with pip install "spark-kafka-sink[spark]".'
    ) from error
