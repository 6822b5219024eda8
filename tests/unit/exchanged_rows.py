"""Training questions, trajectories and a tokenizer of letters, for the tests of imports and
exports.
"""

import re

import numpy as np
import pandas

from exgrpo.experience.trajectory import Trajectory

VOCABULARY = ["<end>", *"abcdefgh"]


class Letters:
    """A tokenizer of letters: a is 1, b is 2, and 0 ends a response."""

    eos_token_id = 0

    def __len__(self):
        return len(VOCABULARY)

    def get_vocab(self):
        return {token: number for number, token in enumerate(VOCABULARY)}

    def __call__(self, text, add_special_tokens=True):
        assert not add_special_tokens
        return {"input_ids": [VOCABULARY.index(token) for token in re.findall("<end>|.", text)]}

    def decode(self, tokens, skip_special_tokens, clean_up_tokenization_spaces):
        return "".join(VOCABULARY[token] for token in tokens)


def question(text):
    turns = [("system", "Think."), ("user", "Hello."), ("assistant", "Hello."), ("user", text)]
    return {"prompt": [{"role": role, "content": content} for role, content in turns]}


def write_train_file(path):
    """Write two questions that are known by their text and one that the file names itself; the
    path.
    """
    rows = [question("How many?"), question("What is\n1 + 1?"), question("Why?")]
    for number, row in enumerate(rows):
        name = {"question_id": "why" if number == 2 else None}
        row |= {"reward_model": {"ground_truth": str(number), "style": "rule"}, "extra_info": name}
    pandas.DataFrame(rows).to_parquet(path)
    return path


def random_trajectories(count, seed=0):
    """Log-probs of every magnitude a float32 has, entropies of every kind, a third without
    log-probs.
    """
    rng = np.random.default_rng(seed)
    for number in range(count):
        tokens = rng.integers(0, 9, rng.integers(1, 9))
        log_probs = -np.exp(rng.uniform(-90, 5, len(tokens))).astype(np.float32) * (
            rng.random(len(tokens)) < 0.9
        )
        entropy = float("nan") if rng.random() < 0.2 else float(rng.random())
        if number % 3:
            yield Trajectory(tokens, log_probs, number, entropy)
        else:
            yield Trajectory.without_log_probs(tokens, number, entropy)


def bits(trajectory):
    """All of a trajectory; of NaN entropies there is one."""
    return trajectory.key, trajectory.log_probs.tobytes(), repr(trajectory.entropy)


TOKENS = {"question": "Why?", "tokens": [1, 2, 0], "log_probs": [-1.0, -0.5, -0.1]}
