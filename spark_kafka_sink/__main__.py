"""Entry point of `python -m spark_kafka_sink`, which is the same program as `pykafka`."""

import sys

from spark_kafka_sink.cli.main import main

if __name__ == "__main__":
    sys.exit(main())
