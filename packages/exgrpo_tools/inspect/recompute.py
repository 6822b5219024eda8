"""Log-probs and entropies of responses under a model, as for its own samples at temperature 1."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

CHUNK = (
    256  # tokens whose logits are in memory at a time: half a gigabyte for a vocabulary of 150,000
)


class LogProbScorer:
    """A causal language model that scores one response at a time, on a GPU if there is one.

    Args:
        model: folder in Hugging Face format, or a name on the hub.
        vocab_size: the tokenizer's; the model must have at least as many tokens.

    Raises:
        ValueError: the model cannot be loaded, or has fewer tokens.
    """

    def __init__(self, model: str, vocab_size: int) -> None:
        import torch
        from transformers import AutoModelForCausalLM

        on_gpu = torch.cuda.is_available()
        dtype = (
            "auto" if on_gpu else torch.float32
        )  # many CPUs emulate bfloat16 slowly through float32
        try:
            self._model = AutoModelForCausalLM.from_pretrained(model, dtype=dtype).eval()
            self._model.to("cuda" if on_gpu else "cpu")
        except (OSError, ValueError, RuntimeError) as error:
            raise ValueError(
                f"--model={model}: cannot be loaded ({' '.join(str(error).split())[:200]})"
            ) from error
        known = self._model.get_input_embeddings().num_embeddings
        if known < vocab_size:
            raise ValueError(
                f"--model={model}: knows {known} tokens, the tokenizer {vocab_size}: must "
                "know as many"
            )

    def score(
        self, prompt_P: list[int], tokens_T: npt.NDArray[np.int32]
    ) -> tuple[npt.NDArray[np.float32], npt.NDArray[np.float32]]:
        """Natural log-probs and entropies in nats of the response's tokens, [T] each.

        The model processes CHUNK tokens at a time with a KV cache: all logits of a long response
        with a large vocabulary would not fit into memory.

        Args:
            prompt_P: the prompt's tokens, including those of the chat template, at least one.
        """
        import torch

        tokens = torch.tensor(prompt_P + tokens_T.tolist(), device=self._model.device)
        log_probs, entropies, cache = [], [], None
        with torch.inference_mode():
            for start in range(0, len(tokens) - 1, CHUNK):
                chunk = tokens[start : min(start + CHUNK, len(tokens) - 1)]
                output = self._model(input_ids=chunk[None], past_key_values=cache, use_cache=True)
                cache = output.past_key_values
                # the last token of the prompt predicts the first response token
                skip = max(len(prompt_P) - 1 - start, 0)
                logs = torch.log_softmax(output.logits[0, skip:].float(), dim=-1)
                targets = tokens[start + 1 + skip : start + 1 + len(chunk)]
                log_probs.append(logs.gather(-1, targets[:, None])[:, 0])
                entropies.append(torch.special.entr(logs.exp()).sum(-1))
        return _joined(log_probs), _joined(entropies)


def prompt_tokens(tokenizer: Any, messages: list[dict[str, Any]]) -> list[int]:
    """A prompt's tokens as in training, including the generation prompt.

    Raises:
        ValueError: the tokenizer has no chat template, or the template fails on these messages.
    """
    try:
        tokens = tokenizer.apply_chat_template(
            messages, add_generation_prompt=True, tokenize=True, return_dict=False
        )
    except Exception as error:  # a template may raise any error
        raise ValueError(
            f"the chat template refuses the prompt ({' '.join(str(error).split())[:200]})"
        ) from error
    return list(tokens)


def _joined(parts: list[Any]) -> npt.NDArray[np.float32]:
    import torch

    joined: npt.NDArray[np.float32] = torch.cat(parts).cpu().numpy()
    return joined
