"""Entry point of `python -m spark_kafka_sink.cli`."""

import sys

from spark_kafka_sink.cli.main import main

if __name__ == "__main__":
    sys.exit(main())
