"""How large a run has to be: eval/estimate/sample_size.py says how."""

if not __package__:  # started by its path: only this folder is on the import path
    import on_path  # noqa: F401

from eval.estimate.sample_size import main
from exgrpo.console import in_one_line

if __name__ == "__main__":
    with in_one_line("exgrpo-eval sample-size"):
        main()
