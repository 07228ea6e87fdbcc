"""Changes to pyspark: register(), and the methods that it installs in pyspark's writer classes.

drop_in.py          register(): replaces the methods and sets the redaction of secrets
write_methods.py    the methods: checks before planning, column selection, mode append, output mode update
lineage_hooks.py    sends OpenLineage events before and after a write, if Spark's settings say so
recorded_writer.py  records the method calls of pyspark's writers
plain_errors.py     raises this package's errors without the text of Spark's job around them
"""
