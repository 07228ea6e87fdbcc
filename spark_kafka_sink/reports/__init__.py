"""Reports of batch jobs and micro-batches. The driver stores, reads and displays them; Spark workers do not.

write_report.py   WriteReport: its log line, its JSON, and sums over several reports
store.py          storage of reports in files and folders
text_report.py    reports as text for a terminal
html_page.py      reports as an HTML page, with the charts of figures.py, drawn by charts.py
skew.py           distribution of rows over tasks and partitions
number_format.py  short number formats
"""
