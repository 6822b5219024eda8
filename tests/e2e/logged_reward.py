"""The reward of our trainings, which notes when it judged; for ledger_sweep.py."""

import os
import time

from exgrpo import math_verify_reward


def compute_score(data_source, solution_str, ground_truth, extra_info=None, **more):
    result = math_verify_reward.compute_score(
        data_source, solution_str, ground_truth, extra_info, **more
    )
    with open(os.environ["JUDGED"], "a") as file:
        file.write(f"{time.time()}\n")
    return result
