"""A run's report made again: eval/reports/command.py says how."""

from exgrpo.console import in_one_line
from exgrpo_eval.reports.command import main

if __name__ == "__main__":
    with in_one_line("exgrpo-eval report"):
        main()
