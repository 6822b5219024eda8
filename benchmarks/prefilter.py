"""How often a pre-filter by recorded entropy would miss the trajectory that replay chooses, on a saved checkpoint.

    python benchmarks/prefilter.py --checkpoint CHECKPOINTS/global_step_N --train_files FILE.parquet [--json FILE]

Every trajectory of every question with two or more goes through the checkpoint's own weights, which verl's model
merger puts together first (``--model`` names them where that is done). With ``trainer.exp_max_candidates=m`` only the m
with the lowest recorded entropy would be scored. For each m: the share of questions whose true argmin is not among
those, and the entropy lost on the average, in nats and as a share of what the argmin gains over any candidate.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import TypeAlias

import numpy as np
import numpy.typing as npt
from common import Figures, at_least, machine, parser, refuse, report, spread

from exgrpo.experience.trajectory import Trajectory
from exgrpo.preflight.train_files import read_question_ids
from exgrpo.saved.pool_files import read_saved

Entropies: TypeAlias = npt.NDArray[np.float64]


def main() -> None:
    """Score the pool, then filter it."""
    made = parser(__doc__)
    made.add_argument(
        "--checkpoint", type=Path, required=True, help="a folder global_step_N, with actor/ and experience/"
    )
    made.add_argument("--train_files", type=Path, required=True)
    made.add_argument("--model", type=Path, help="the checkpoint's merged weights; default: merged now")
    made.add_argument("--limit", type=at_least(1), default=2000, help="questions, at most; drawn at random")
    given = made.parse_args()
    for folder in ("actor", "experience"):
        if not (given.checkpoint / folder).is_dir():
            refuse(f"--checkpoint={given.checkpoint}: must be a checkpoint, with a folder {folder}")
    if not given.train_files.is_file():
        refuse(f"--train_files={given.train_files}: must be the training's questions")
    facts = machine("torch", "transformers")
    found = held(given.checkpoint / "experience", given.limit)
    with tempfile.TemporaryDirectory() as folder:
        model = given.model or merged(given.checkpoint, Path(folder))
        scored = list(scores(found, model, given.train_files))
    report(f"pre-filter, {given.checkpoint}", compare(found, scored), facts, given)


def held(pool: Path, limit: int) -> dict[str, list[Trajectory]]:
    """question -> its trajectories, of those that have a choice and know all their entropies."""
    found: dict[str, list[Trajectory]] = {}
    for question, trajectory in read_saved(pool).trajectories():
        found.setdefault(question, []).append(trajectory)
    able = [name for name, all_C in found.items() if len(all_C) > 1 and not any(np.isnan(one.entropy) for one in all_C)]
    if not able:
        refuse(f"--checkpoint={pool.parent}: must have a question with two trajectories")
    names = np.random.default_rng(0).permutation(sorted(able))[:limit].tolist()
    return {name: found[name] for name in names}


def merged(checkpoint: Path, target: Path) -> Path:
    """The checkpoint's weights as a Hugging Face folder."""
    command = ["-m", "verl.model_merger", "merge", "--backend", "fsdp", "--local_dir", str(checkpoint / "actor")]
    environment = {**os.environ, "VERL_PLATFORM": "cpu"}
    done = subprocess.run(
        [sys.executable, *command, "--target_dir", str(target)], env=environment, capture_output=True, text=True
    )
    if done.returncode:
        raise SystemExit(done.stderr)
    return target


def scores(found: dict[str, list[Trajectory]], model: Path, file: Path) -> Iterator[tuple[Entropies, Entropies]]:
    """Of each question the recorded and the current mean entropies of its candidates, [C] each."""
    import pandas as pd
    from transformers import AutoTokenizer

    from exgrpo.inspect.recompute import LogProbScorer, prompt_tokens

    tokenizer = AutoTokenizer.from_pretrained(model)
    scorer = LogProbScorer(str(model), len(tokenizer))
    messages = dict(zip(read_question_ids([str(file)]), pd.read_parquet(file)["prompt"], strict=True))
    for question, candidates in found.items():
        prompt = prompt_tokens(tokenizer, list(messages[question]))
        now = [float(scorer.score(prompt, one.tokens)[1].mean()) for one in candidates]
        yield np.array([one.entropy for one in candidates]), np.array(now)


def compare(found: dict[str, list[Trajectory]], scored: list[tuple[Entropies, Entropies]]) -> Figures:
    """name -> figure, for each m."""
    counts = [len(now_C) for _, now_C in scored]
    gain = float(np.mean([now_C.mean() - now_C.min() for _, now_C in scored]))
    newest = max(one.step for candidates in found.values() for one in candidates)
    figures: Figures = {
        "questions with a choice": len(scored),
        "candidates a question": spread(counts),
        "age of the candidates, steps": spread([newest - one.step for all_C in found.values() for one in all_C]),
        "recorded minus current entropy, nats": spread([float(d) for r_C, n_C in scored for d in r_C - n_C]),
        "what the argmin gains over any candidate, nats": gain,
    }
    for m in range(1, max(counts)):
        best = [np.argsort(recorded_C, kind="stable")[:m] for recorded_C, _ in scored]
        lost = [float(now_C[b].min() - now_C.min()) for b, (_, now_C) in zip(best, scored, strict=True)]
        missed = [float(now_C.argmin() not in b) for b, (_, now_C) in zip(best, scored, strict=True)]
        concerned = [miss for miss, count in zip(missed, counts, strict=True) if count > m]
        figures |= {
            f"m = {m}: candidates scored, share": sum(min(m, n) for n in counts if m > 1) / sum(counts),
            f"m = {m}: argmin missed, share of questions": float(np.mean(missed)),
            f"m = {m}: argmin missed, share of those with more than {m}": float(np.mean(concerned)),
            f"m = {m}: entropy lost, nats": float(np.mean(lost)),
            f"m = {m}: entropy lost, share of the gain": float(np.mean(lost)) / gain if gain else 0.0,
        }
    return figures


if __name__ == "__main__":
    main()
