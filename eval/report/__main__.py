"""``python -m eval.report``: as eval/report.py, which is started by its path."""

from eval.report.command import main

main()
