"""Reports of batch jobs and micro-batches.

The driver stores reports, and the driver or the command line reads and displays them. Spark workers do neither.

write_report.py   defines WriteReport, converts it to JSON and to a log line, and combines several reports
store.py          saves reports to files and directories, and reads them back
report_totals.py  adds up several reports
text_report.py    renders reports as text for a terminal
html_page.py      renders reports as an HTML page; figures.py builds its figures, and charts.py draws the charts
skew.py           describes how evenly rows are distributed over tasks and partitions
receipts.py       compares a report's receipt with the records in a topic
number_format.py  formats numbers, durations and ratios in few characters
"""
