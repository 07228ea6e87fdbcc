"""Patches for pyspark: register(), and the methods that it installs in pyspark's writer classes.

drop_in.py          defines register(), which replaces the methods and configures the redaction of secrets
write_methods.py    defines the methods, which check a write, select its columns and adapt its mode
task_limits.py      applies the options that limit the number of tasks or their rate
lineage_hooks.py    sends OpenLineage events before and after a write if Spark's settings request them
recorded_writer.py  records the method calls of pyspark's writers
plain_errors.py     raises this package's errors without the text that Spark puts around them
"""
