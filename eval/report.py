"""A run's report made again: eval/report/command.py says how. By name, ``-m eval.report``, its __main__ runs."""

if not __package__:  # started by its path: only this folder is on the import path
    import on_path  # noqa: F401

from eval.report.command import main
from exgrpo.accidents import in_one_line

if __name__ == "__main__":
    with in_one_line("report.py"):
        main()
