"""Write Spark DataFrames to Apache Kafka from Python workers: columns all the way to the socket, no JAR."""
