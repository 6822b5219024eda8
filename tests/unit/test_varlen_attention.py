"""Attention over packed rows by torch's kernel, with a stand-in for the kernel, which runs on GPUs
alone.
"""

import pytest
import torch
from torch.nn.functional import scaled_dot_product_attention
from transformers import AutoModelForCausalLM, LlamaConfig, MistralConfig, Qwen2Config

from exgrpo.config.kernels import VARLEN
from exgrpo.on_verl import varlen_attention

SIZES = {
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "vocab_size": 61,
    "tie_word_embeddings": True,
}
MODELS = {
    "Qwen2, grouped heads": Qwen2Config(num_key_value_heads=2, **SIZES),
    "Qwen2, a window": Qwen2Config(
        num_key_value_heads=2,
        use_sliding_window=True,
        sliding_window=3,
        max_window_layers=1,
        **SIZES,
    ),
    "Mistral, a window": MistralConfig(num_key_value_heads=2, sliding_window=3, **SIZES),
    "Llama": LlamaConfig(num_key_value_heads=4, **SIZES),
    "SmolLM2's heads": LlamaConfig(
        **SIZES | {"num_attention_heads": 6, "hidden_size": 48}, num_key_value_heads=3
    ),
}
LENGTHS = (7, 1, 12, 2, 9)


def stand_in(
    query,
    key,
    value,
    ends,
    ends_of_keys,
    longest,
    longest_key,
    *,
    scale,
    window_size,
    enable_gqa=False,
):
    """Each sequence by itself, in the kernel's layout: [tokens, heads, d]."""
    left, right = window_size
    assert right == 0 and torch.equal(ends, ends_of_keys) and ends.dtype == torch.int32
    assert longest == longest_key == int(ends.diff().max())
    parts = []
    for begin, end in zip(ends[:-1].tolist(), ends[1:].tolist(), strict=True):
        q, k, v = (each[begin:end].transpose(0, 1)[None] for each in (query, key, value))
        behind = torch.arange(end - begin)[:, None] - torch.arange(end - begin)
        mask = (behind >= 0) & ((behind <= left) | (left < 0))
        parts.append(
            scaled_dot_product_attention(q, k, v, mask, scale=scale, enable_gqa=True)[0].transpose(
                0, 1
            )
        )
    return torch.cat(parts)


@pytest.fixture(autouse=True)
def on_a_cpu(monkeypatch):
    monkeypatch.setattr(varlen_attention, "_kernel", stand_in)


def packed():
    tokens = torch.randint(
        0, SIZES["vocab_size"], (1, sum(LENGTHS)), generator=torch.Generator().manual_seed(0)
    )
    return tokens, torch.cat([torch.arange(length) for length in LENGTHS])[None]


def passed(config, attention, tokens, positions, checkpointing=False):
    """Logits and gradients of a model with the attention; weights by a seed."""
    torch.manual_seed(1)
    model = AutoModelForCausalLM.from_config(config, attn_implementation=attention).train()
    if checkpointing:
        model.gradient_checkpointing_enable(gradient_checkpointing_kwargs={"use_reentrant": False})
    logits = model(
        input_ids=tokens, attention_mask=None, position_ids=positions, use_cache=False
    ).logits
    logits.square().mean().backward()
    return logits.detach(), torch.cat([each.grad.flatten() for each in model.parameters()])


@pytest.mark.parametrize("checkpointing", [False, True])
@pytest.mark.parametrize("name", MODELS)
def test_a_packed_row_gives_what_its_sequences_give_alone(name, checkpointing):
    tokens, positions = packed()
    logits, gradients = passed(MODELS[name], VARLEN, tokens, positions, checkpointing)
    alone = [
        passed(MODELS[name], "sdpa", row[None], place[None])
        for row, place in each_of(tokens, positions)
    ]
    torch.testing.assert_close(
        logits, torch.cat([each for each, _ in alone], dim=1), atol=2e-6, rtol=1e-5
    )
    weights = [
        len(row) / sum(LENGTHS) for row, _ in each_of(tokens, positions)
    ]  # of the mean of a row's squares
    together = sum(weight * gradient for weight, (_, gradient) in zip(weights, alone, strict=True))
    torch.testing.assert_close(gradients, together, atol=1e-7, rtol=1e-4)


def each_of(tokens, positions):
    return list(zip(tokens[0].split(LENGTHS), positions[0].split(LENGTHS), strict=True))


def test_one_row_after_the_other_has_its_own_boundaries():
    first, second = torch.tensor([[0, 1, 2, 0, 1]]), torch.tensor([[0, 1, 0, 1, 2, 3]])
    for positions, ends, longest in (
        (first, [0, 3, 5], 3),
        (second, [0, 2, 6], 4),
        (first, [0, 3, 5], 3),
    ):
        found, found_longest = varlen_attention.boundaries(positions)
        assert (found.tolist(), found_longest) == (ends, longest)
    assert varlen_attention.boundaries(first)[0] is varlen_attention.boundaries(first)[0]


@pytest.mark.parametrize(
    "wrong",
    [
        {"attention_mask": torch.ones(1, 1, 3, 3)},
        {"query": torch.zeros(2, 1, 3, 4)},
        {"position_ids": None},
        {"dropout": 0.1},
    ],
)
def test_padded_rows_and_dropout_are_refused_with_the_key(wrong):
    row = torch.zeros(1, 1, 3, 4)
    given = {
        "query": row,
        "key": row,
        "value": row,
        "attention_mask": None,
        "position_ids": torch.arange(3)[None],
    }
    varlen_attention.attend(torch.nn.Identity(), **given)
    with pytest.raises(
        ValueError, match=r"attn_implementation=torch_varlen: .*use_remove_padding=True"
    ):
        varlen_attention.attend(torch.nn.Identity(), **given | wrong)
