"""A model of the paper's size with random weights, for what a step costs and holds where no model can be fetched.

    python benchmarks/untrained.py 1.5B FOLDER
    python benchmarks/step.py --stack one_gpu --model FOLDER --response_length 1024 --pairs 4 --warmup 2 \\
        reward.custom_reward_function.path=$PWD/benchmarks/untrained.py reward.custom_reward_function.name=chance

So for the page gpu/h100.md, with the further settings in gpu/h100/untrained-1.5b.json. Sizes are those of
``exgrpo-sizing``; the tokenizer is the quickstart's. A reward by chance fills the pool: times and memory are
real, learning and the lengths of responses are not.
"""

from __future__ import annotations

import argparse
import shutil
import zlib
from pathlib import Path
from typing import Any

TOKENIZER = Path(__file__).resolve().parent.parent / "exp_scripts" / "quickstart" / "base_model"
HEAD = 128  # width of a head, of both models


def main() -> None:
    """Write the model's folder."""
    import torch
    from transformers import AutoModelForCausalLM, Qwen2Config

    from exgrpo_tools.sizing import NAMED

    cli = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    cli.add_argument("size", choices=list(NAMED))
    cli.add_argument("folder", type=Path)
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
    with torch.device("cuda" if torch.cuda.is_available() else "cpu"):
        network = AutoModelForCausalLM.from_config(config, dtype=torch.bfloat16)
    network.save_pretrained(options.folder)
    for file in ("tokenizer.json", "tokenizer_config.json", "chat_template.jinja", "generation_config.json"):
        shutil.copy(TOKENIZER / file, options.folder)
    print(f"{options.folder}: {sum(each.numel() for each in network.parameters()) / 1e9:.2f} billion parameters")


def chance(data_source: str, solution_str: str, ground_truth: str, extra_info: Any = None, **_: Any) -> float:
    """1 for half of all responses, by the response alone."""
    return float(zlib.crc32(solution_str.encode()) % 2)


if __name__ == "__main__":
    main()
