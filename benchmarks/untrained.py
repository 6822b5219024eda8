"""A model of the paper's size with random weights, for what a step costs and holds where no model
can be fetched.

    python benchmarks/untrained.py 1.5B FOLDER [--mean 240]
    python benchmarks/step.py --stack one_gpu --model FOLDER --response_length 1024 --pairs 4 \\
        --warmup 2 reward.custom_reward_function.path=$PWD/benchmarks/untrained.py \\
        reward.custom_reward_function.name=chance

Sizes are those of ``exgrpo-sizing``. The tokenizer is the quickstart's, with as many further words
as the vocabulary has, since verl masks vLLM's logits beyond the tokenizer's words, and engine and
actor would disagree. A response ends after each token with nearly the same probability: lengths
follow a geometric distribution with the given mean, cut off at the longest response. A reward by
chance fills the pool: times and memory are real, learning is not.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import shutil
import sys
import time
import zlib
from pathlib import Path
from typing import Any

TOKENIZER = Path(__file__).resolve().parent.parent / "exp_scripts" / "quickstart" / "base_model"
HEAD = 128  # width of a head, of both models
END = 2  # the tokenizer's <|im_end|>


def main() -> None:
    """Write the model's folder."""
    import torch
    from transformers import AutoModelForCausalLM, Qwen2Config

    from exgrpo_tools.sizing import NAMED

    cli = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    cli.add_argument("size", choices=list(NAMED))
    cli.add_argument("folder", type=Path)
    cli.add_argument("--mean", type=float, default=240, help="tokens of a response (default 240)")
    options = cli.parse_args()
    model = NAMED[options.size]
    torch.manual_seed(0)
    config = Qwen2Config(
        num_hidden_layers=model.layers,
        hidden_size=model.hidden,
        intermediate_size=model.inner,
        num_attention_heads=model.queries // HEAD,
        num_key_value_heads=model.keys // HEAD,
        vocab_size=model.vocabulary,
        tie_word_embeddings=model.tied,
        max_position_embeddings=4096,
        dtype="bfloat16",
    )
    device = "cuda" if torch.cuda.is_available() else "cpu"
    with torch.device(device):
        network = AutoModelForCausalLM.from_config(config, dtype=torch.bfloat16)
        end_after(network, options.mean)
    network.save_pretrained(options.folder)
    for file in ("tokenizer_config.json", "chat_template.jinja", "generation_config.json"):
        shutil.copy(TOKENIZER / file, options.folder)
    write_tokenizer(options.folder / "tokenizer.json", model.vocabulary)
    print(
        f"{options.folder}: {sum(each.numel() for each in network.parameters()) / 1e9:.2f} "
        "billion parameters"
    )


def end_after(network: Any, mean: float) -> None:
    """Let the network end with probability 1 / mean after each token.

    One dimension of every word's embedding is 1 and no layer writes to it, so that the last hidden
    state always has nearly the same value there; the end's weight in it is raised until its logit
    is above the others' by ln(words / mean).
    """
    import torch

    words = network.config.vocab_size
    with torch.no_grad():
        network.get_input_embeddings().weight[:, 0] = 1.0
        network.get_output_embeddings().weight[:, 0] = 1.0
        for layer in network.model.layers:
            layer.self_attn.o_proj.weight[0] = 0
            layer.mlp.down_proj.weight[0] = 0
        tokens = torch.randint(0, words, (4, 64))
        states = network.model(tokens).last_hidden_state.float()
        logits = network.get_output_embeddings()(states.to(torch.bfloat16)).float()
        others = (torch.logsumexp(logits, -1) - logits[..., END]).mean()
        raised = (others - math.log(mean)) / states[..., 0].mean()
        network.get_output_embeddings().weight[END, 0] += raised.to(torch.bfloat16)


def write_tokenizer(file: Path, words: int) -> None:
    """The quickstart's, with words that no text is split into up to the size of the vocabulary."""
    tokenizer = json.loads((TOKENIZER / "tokenizer.json").read_text())
    vocabulary = tokenizer["model"]["vocab"]
    vocabulary.update({f"w{place}": place for place in range(len(vocabulary), words)})
    file.write_text(json.dumps(tokenizer))


def wait_for(file: str) -> None:
    """Return once the file exists: trainings started together then run one after another.

    Not before Ray, where the reward is rehearsed.
    """
    ray = sys.modules.get("ray")
    while file and ray and ray.is_initialized() and not os.path.exists(file):
        time.sleep(0.2)


def graded(
    data_source: str, solution_str: str, ground_truth: str, turn: str = "", **settings: Any
) -> Any:
    """exgrpo's reward, once the file ``turn`` exists."""
    from exgrpo.math_verify_reward import compute_score

    wait_for(turn)
    return compute_score(data_source, solution_str, ground_truth, **settings)


def chance(
    data_source: str, solution_str: str, ground_truth: str, turn: str = "", **_: Any
) -> float:
    """1 for half of all responses, by the response alone, once the file ``turn`` exists."""
    wait_for(turn)
    # the second bit: it differs for "" and "I do not know.", which preflight asks
    return float(zlib.crc32(solution_str.encode()) >> 1 & 1)


if __name__ == "__main__":
    main()
