"""How often a pre-filter by recorded entropy would miss the trajectory that replay chooses, on a saved checkpoint.

    python lab/benchmarks/prefilter.py --checkpoint CHECKPOINTS/global_step_N --train_files FILE.parquet [--json FILE]

Every trajectory of every question with two or more is scored with the checkpoint's own weights, merged first by verl's
model merger (or already merged in ``--model``). With ``trainer.exp_max_candidates=m`` only the m trajectories with the
lowest recorded entropy would be scored. For each m: the share of questions whose true argmin is not among these, and
the mean entropy lost, in nats and as a share of the argmin's mean advantage over a question's candidates.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import TypeAlias

import benchmark_folders  # noqa: F401
import numpy as np
import numpy.typing as npt
from common import Figures, at_least, machine, parser, refuse, report, spread

from exgrpo.data_files import read_question_ids
from exgrpo.experience.trajectory import Trajectory
from exgrpo.saved.pool_files import read_saved

Entropies: TypeAlias = npt.NDArray[np.float64]


def main() -> None:
    """Score the pool, then filter it."""
    cli = parser(__doc__)
    cli.add_argument(
        "--checkpoint", type=Path, required=True, help="a folder global_step_N, with actor/ and experience/"
    )
    cli.add_argument("--train_files", type=Path, required=True)
    cli.add_argument("--model", type=Path, help="the checkpoint's merged weights; default: merged now")
    cli.add_argument("--limit", type=at_least(1), default=2000, help="questions, at most; drawn at random")
    options = cli.parse_args()
    for folder in ("actor", "experience"):
        if not (options.checkpoint / folder).is_dir():
            refuse(f"--checkpoint={options.checkpoint}: must be a checkpoint, with a folder {folder}")
    if not options.train_files.is_file():
        refuse(f"--train_files={options.train_files}: must be the training's questions")
    facts = machine("torch", "transformers")
    questions = held(options.checkpoint / "experience", options.limit)
    with tempfile.TemporaryDirectory() as folder:
        model = options.model or merged(options.checkpoint, Path(folder))
        scored = list(scores(questions, model, options.train_files))
    report(f"pre-filter, {options.checkpoint}", compare(questions, scored), facts, options)


def held(pool: Path, limit: int) -> dict[str, list[Trajectory]]:
    """question -> its trajectories, for questions with several candidates, all of known entropy."""
    trajectories: dict[str, list[Trajectory]] = {}
    for question, trajectory in read_saved(pool).trajectories():
        trajectories.setdefault(question, []).append(trajectory)
    usable = [
        question
        for question, candidates in trajectories.items()
        if len(candidates) > 1 and not any(np.isnan(candidate.entropy) for candidate in candidates)
    ]
    if not usable:
        refuse(f"--checkpoint={pool.parent}: must have a question with two trajectories")
    names = np.random.default_rng(0).permutation(sorted(usable))[:limit].tolist()
    return {name: trajectories[name] for name in names}


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


def scores(questions: dict[str, list[Trajectory]], model: Path, file: Path) -> Iterator[tuple[Entropies, Entropies]]:
    """Recorded and current mean entropies of each question's candidates, [C] each."""
    import pandas as pd
    from transformers import AutoTokenizer

    from exgrpo_tools.inspect.recompute import LogProbScorer, prompt_tokens

    tokenizer = AutoTokenizer.from_pretrained(model)
    scorer = LogProbScorer(str(model), len(tokenizer))
    messages = dict(zip(read_question_ids([str(file)]), pd.read_parquet(file)["prompt"], strict=True))
    for question, candidates in questions.items():
        prompt = prompt_tokens(tokenizer, list(messages[question]))
        now = [float(scorer.score(prompt, candidate.tokens)[1].mean()) for candidate in candidates]
        yield np.array([candidate.entropy for candidate in candidates]), np.array(now)


def compare(questions: dict[str, list[Trajectory]], scored: list[tuple[Entropies, Entropies]]) -> Figures:
    """name -> figure, for each m."""
    counts = [len(now_C) for _, now_C in scored]
    gain = float(np.mean([now_C.mean() - now_C.min() for _, now_C in scored]))
    steps = [candidate.step for candidates in questions.values() for candidate in candidates]
    differences = np.concatenate([recorded_C - now_C for recorded_C, now_C in scored])
    figures: Figures = {
        "questions with a choice": len(scored),
        "candidates a question": spread(counts),
        "age of the candidates, steps": spread([max(steps) - step for step in steps]),
        "recorded minus current entropy, nats": spread(differences.tolist()),
        "what the argmin gains over any candidate, nats": gain,
    }
    for m in range(1, max(counts)):
        lost, missed = [], []
        for recorded_C, now_C in scored:
            best = np.argsort(recorded_C, kind="stable")[:m]
            lost.append(float(now_C[best].min() - now_C.min()))
            missed.append(float(now_C.argmin() not in best))
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
