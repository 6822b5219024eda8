"""How large a run has to be: eval/estimate/sample_size.py says how."""

from exgrpo.console import in_one_line
from exgrpo_eval.estimate.sample_size import main

if __name__ == "__main__":
    with in_one_line("exgrpo-eval sample-size"):
        main()
