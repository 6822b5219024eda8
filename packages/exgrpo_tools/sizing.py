"""What a run of the released settings needs: `exgrpo-sizing MODEL --gpus 8x80`.

MODEL is 1.5B or 7B, the paper's Qwen2.5-Math, or the folder of a model. Arithmetic, which one H100
bears out for 1.5B (benchmarks/gpu/h100.md): FSDP's fp32 weights and Adam are shared by all GPUs,
bf16 activations are recomputed layer by layer, and vLLM stands beside them.
"""

from __future__ import annotations

import argparse
import json
import math
import re
from pathlib import Path
from typing import Any, NamedTuple

from exgrpo import __version__

GIB, GB = 2**30, 1e9
USABLE = 79 / 80  # of an "80 GB" card 79 GiB
STEPS, SAVE_EVERY, OPTIMIZERS_KEPT = 701, 50, 2  # of exp_scripts/run_exgrpo.sh
# the paper's cost table, with replay; its 1.5B's steps were no shorter
STEP_S, PAPER_GPUS, PAPER_PARAMETERS = 184.9, 8, 7.6e9
PAPER = "the paper: 8 GPUs; a step 155 s, with replay 185 s at 7B; 185 and 189 s at 1.5B"


class Model(NamedTuple):
    """The sizes of a Llama or Qwen model; `queries` and `keys` are the widths of all heads."""

    layers: int
    hidden: int
    inner: int
    queries: int
    keys: int
    vocabulary: int
    tied: bool

    @property
    def parameters(self) -> int:
        layer = self.hidden * (2 * self.queries + 2 * self.keys + 3 * self.inner)
        return self.layers * layer + (2 - self.tied) * self.vocabulary * self.hidden


NAMED = {
    "1.5B": Model(28, 1536, 8960, 1536, 256, 151_936, tied=True),
    "7B": Model(28, 3584, 18_944, 3584, 512, 152_064, tied=False),
}


class Run(NamedTuple):
    """A model on `gpus` cards with `card_gib`; `tokens` is ppo_max_token_len_per_gpu."""

    model: Model
    gpus: int
    card_gib: float
    tokens: int

    def memory(self) -> dict[str, dict[str, float]]:
        """What is done -> part -> GiB of one GPU; of vLLM, what the settings give it."""
        model, tokens = self.model, self.tokens
        resting = {"weights and Adam": 12 * model.parameters / self.gpus / GIB}
        layer = {"a layer": 2 * tokens * (6 * model.hidden + 3 * model.inner) / GIB}
        logits = 2 * tokens * model.vocabulary / GIB
        gradients = {"gradients": 4 * model.parameters / self.gpus / GIB}
        activations = {"activations": 2 * tokens * model.layers * model.hidden / GIB}
        share = 0.4 if self.gpus == 1 else 0.8  # of stack=one_gpu; of run_exgrpo.sh
        logits4 = {"logits, entropy, their gradients": 4 * logits}
        return {
            "update": resting | gradients | activations | layer | logits4,
            "generation": resting | {f"vLLM ({share})": share * self.card_gib, "CUDA": 2.0},
            "scoring": resting | layer | {"logits": logits},
        }

    def disk_gb(self) -> float:
        """4 bytes a parameter in each checkpoint, 8 more in those with an optimizer."""
        checkpoints = math.ceil(STEPS / SAVE_EVERY)
        return (4 * checkpoints + 8 * OPTIMIZERS_KEPT) * self.model.parameters / GB

    def hours(self) -> float:
        """The paper's steps on as many GPUs, and a larger model's in proportion."""
        size = max(1.0, self.model.parameters / PAPER_PARAMETERS)
        return STEPS * STEP_S * size * PAPER_GPUS / self.gpus / 3600

    def table(self) -> str:
        lines = [f"memory of one GPU, of {self.card_gib:.0f} GiB:"]
        for name, parts in self.memory().items():
            fits = "" if sum(parts.values()) <= self.card_gib else "; DOES NOT FIT"
            each = ", ".join(f"{part} {size:.1f}" for part, size in parts.items())
            lines.append(f"  {name:<11}{sum(parts.values()):4.0f} GiB: {each}{fits}")
        disk = f"disk: {self.disk_gb():.0f} GB, and the pool"
        return "\n".join([*lines, disk, f"{STEPS} steps: {self.hours():.0f} hours", PAPER])


def read(name: str) -> Model:
    """A named size, or the model of a folder; ValueError where there is neither."""
    if name in NAMED:
        return NAMED[name]
    file = Path(name).expanduser() / "config.json"
    if not file.is_file():
        raise ValueError(f"{name}: must be {' or '.join(NAMED)}, or a folder with config.json")
    try:
        config: dict[str, Any] = json.loads(file.read_text())
        layers, hidden = config["num_hidden_layers"], config["hidden_size"]
        inner, heads = config["intermediate_size"], config["num_attention_heads"]
        width = config.get("head_dim") or hidden // heads
        keys = config.get("num_key_value_heads", heads) * width
        tied = config.get("tie_word_embeddings", False)
        return Model(layers, hidden, inner, heads * width, keys, config["vocab_size"], tied)
    except (KeyError, TypeError, ValueError) as error:
        raise ValueError(f"{file}: not a text model's configuration: {error!r}") from error


def main() -> None:
    cli = argparse.ArgumentParser("exgrpo-sizing", description=__doc__)
    cli.add_argument("--version", action="version", version=f"exgrpo {__version__}")
    cli.add_argument("model")
    cli.add_argument("--gpus", default="8x80", help="number x GB of each (default 8x80)")
    cli.add_argument("--tokens", default="32768", help="ppo_max_token_len_per_gpu (default 32768)")
    given = cli.parse_args()
    if not (gpus := re.fullmatch(r"([1-9]\d*)x([1-9]\d*)", given.gpus)):
        cli.error(f"--gpus {given.gpus}: must be a number of GPUs x GB of each, such as 8x80")
    if not re.fullmatch(r"[1-9]\d*", given.tokens):
        cli.error(f"--tokens {given.tokens}: must be an integer of at least 1")
    try:
        run = Run(read(given.model), int(gpus[1]), int(gpus[2]) * USABLE, int(given.tokens))
    except ValueError as error:
        cli.error(str(error))
    print(f"{given.model}: {run.model.parameters / GB:.2f} billion parameters, {given.gpus} GB")
    print(run.table())
