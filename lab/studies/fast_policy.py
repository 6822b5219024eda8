"""A Policy for tiny Qwen2 models that samples and trains several times faster than transformers on one core.

Same weights, same arithmetic in float32 (a test compares the log-probs). Sampling: keys and values are kept in one
block, a row leaves the batch when it ends, equal questions share one pass over their prompt. Training: rows of similar
length are computed together, the head is applied to response positions alone.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

import torch
from minimal_loop import Given, Look, Policy, own_tokens
from torch import Tensor
from torch.nn import functional
from torch.nn.utils.rnn import pad_sequence
from transformers import PreTrainedModel, PreTrainedTokenizerBase

from exgrpo import Trajectory

_CHUNK = 256  # rows sampled at once: their cache fits the processor's
_PADDING = 1.3  # a batch's longest row may be this much longer than its shortest


class FastPolicy(Policy):
    """`Policy` with a sampler and a forward pass of its own.

    Args:
        model: a Qwen2 with as many key-value heads as heads.
    """

    def __init__(self, model: PreTrainedModel, tokenizer: PreTrainedTokenizerBase, max_tokens: int) -> None:
        super().__init__(model, tokenizer, max_tokens)
        self._encoded: dict[str, list[int]] = {}

    def encode(self, question: str) -> list[int]:
        if question not in self._encoded:
            self._encoded[question] = super().encode(question)
        return self._encoded[question]

    def look(self, rows: Sequence[tuple[str, Trajectory]]) -> Look:
        """As `Policy.look`, but of responses alone, [B, T] with T the longest; the entropies have no gradient."""
        network = Network(self.model)
        longest = max(len(row) for _, row in rows)
        past_BT, mask_BT = torch.zeros(2, len(rows), longest)
        for number, (_, row) in enumerate(rows):
            past_BT[number, : len(row)], mask_BT[number, : len(row)] = torch.tensor(row.log_probs), own_tokens(row)
        log_probs, entropies, order = [], [], []
        for batch in _similar([len(self.encode(question)) + len(row) for question, row in rows]):
            mine = [rows[number] for number in batch]
            heads = [self.encode(question) for question, _ in mine]
            tokens_BS = pad_sequence(
                [torch.tensor(head + row.tokens.tolist()) for head, (_, row) in zip(heads, mine, strict=True)], True
            )
            kept_BS = torch.zeros(tokens_BS.shape, dtype=torch.bool)
            for number, (head, (_, row)) in enumerate(zip(heads, mine, strict=True)):
                kept_BS[number, len(head) : len(head) + len(row)] = True
            hidden_BSW = network.forward(tokens_BS[:, :-1])  # padding is on the right: causality is enough
            log_probs_NV = network.logits(hidden_BSW[kept_BS[:, 1:]]).log_softmax(-1)
            log_probs.append(log_probs_NV.gather(-1, tokens_BS[kept_BS][:, None])[:, 0])
            with torch.no_grad():
                entropies.append(-(log_probs_NV.exp() * log_probs_NV).sum(-1))
            order += [number * longest + place for number in batch for place in range(len(rows[number][1]))]
        places = torch.tensor(order)
        flat = torch.zeros(past_BT.numel())
        log_prob_BT = flat.index_copy(0, places, torch.cat(log_probs)).view_as(past_BT)
        entropy_BT = flat.index_copy(0, places, torch.cat(entropies)).view_as(past_BT)
        return Look(log_prob_BT, past_BT, entropy_BT, mask_BT)

    @torch.no_grad()
    def sample(self, questions: Sequence[str], step: int, given: Sequence[Given] | None = None) -> list[Trajectory]:
        """One response to each question, as sampled, with its log-probs and its mean entropy."""
        rows: list[Trajectory] = []
        prefixes = given or [None] * len(questions)
        for first in range(0, len(questions), _CHUNK):
            part = slice(first, first + _CHUNK)
            rows += map(self.behind, prefixes[part], self._sample(questions[part], prefixes[part], step))
        return rows

    def _sample(self, questions: Sequence[str], prefixes: Sequence[Given], step: int) -> list[Trajectory]:
        heads = [head.tolist() for head in self.heads(questions, prefixes)]
        decoder = _Decoder(Network(self.model), heads, self.max_tokens)
        end, count = self.tokenizer.eos_token_id, len(questions)
        tokens_BT = torch.zeros(count, self.max_tokens, dtype=torch.long)
        log_probs_BT, entropies_BT = torch.zeros(2, count, self.max_tokens)
        lengths, left = torch.full((count,), self.max_tokens), torch.arange(count)
        logits = decoder.logits
        for place in range(self.max_tokens):
            log_probs_RV = logits.log_softmax(-1)
            probs_RV = log_probs_RV.exp()
            # exponential races: the distribution of multinomial, in one pass
            drawn = (probs_RV / torch.empty_like(probs_RV).exponential_()).argmax(-1)
            tokens_BT[left, place] = drawn
            log_probs_BT[left, place] = log_probs_RV.gather(-1, drawn[:, None])[:, 0]
            entropies_BT[left, place] = -(probs_RV * log_probs_RV).sum(-1)
            ended = drawn == end
            lengths[left[ended]] = place + 1
            kept = (~ended).nonzero()[:, 0]
            left = left[kept]
            if not len(left) or place == self.max_tokens - 1:
                break
            logits = decoder.step(drawn[kept], kept if len(kept) < len(ended) else None)
        means = entropies_BT.sum(1) / lengths
        columns = zip(tokens_BT.numpy(), log_probs_BT.numpy(), lengths.tolist(), means.tolist(), strict=True)
        return [Trajectory(tokens[:n], log_probs[:n], step, entropy) for tokens, log_probs, n, entropy in columns]


def _similar(lengths: Sequence[int]) -> Iterator[list[int]]:
    """Numbers of rows in batches of similar length, the shortest first."""
    batch: list[int] = []
    for row in sorted(range(len(lengths)), key=lengths.__getitem__):
        if batch and lengths[row] > _PADDING * lengths[batch[0]]:
            yield batch
            batch = []
        batch.append(row)
    yield batch


class _Layer(NamedTuple):
    """Weights of one decoder layer; query, key and value in one matrix, gate and up in another."""

    norm_in: Tensor
    qkv: Tensor
    qkv_bias: Tensor
    out: Tensor
    norm_mlp: Tensor
    gate_up: Tensor
    down: Tensor


class Network:
    """A Qwen2's forward pass. W is the width, H heads of size D, S positions, R rows."""

    def __init__(self, model: Any) -> None:
        config = model.config
        self.heads, self.size = config.num_attention_heads, config.hidden_size // config.num_attention_heads
        self._epsilon = config.rms_norm_eps
        self.embedding, self._final, self._head = (
            model.model.embed_tokens.weight,
            model.model.norm.weight,
            model.lm_head.weight,
        )
        cos, sin = model.model.rotary_emb(torch.zeros(1), torch.arange(config.max_position_embeddings)[None])
        self._cos, self._sin = cos[0], sin[0]
        self.layers = [self._layer(layer) for layer in model.model.layers]

    @staticmethod
    def _layer(layer: Any) -> _Layer:
        attention, mlp = layer.self_attn, layer.mlp
        projections = (attention.q_proj, attention.k_proj, attention.v_proj)
        return _Layer(
            layer.input_layernorm.weight,
            torch.cat([projection.weight for projection in projections]),
            torch.cat([projection.bias for projection in projections]),
            attention.o_proj.weight,
            layer.post_attention_layernorm.weight,
            torch.cat([mlp.gate_proj.weight, mlp.up_proj.weight]),
            mlp.down_proj.weight,
        )

    def _norm(self, hidden: Tensor, weight: Tensor) -> Tensor:
        return functional.rms_norm(hidden, weight.shape, weight, self._epsilon)

    def rotate(self, values: Tensor, positions: Tensor) -> Tensor:
        """Rotary embedding of [R, H, S, D] at positions [S] or [R, 1, S]."""
        half = self.size // 2
        turned = torch.cat([-values[..., half:], values[..., :half]], -1)
        return values * self._cos[positions] + turned * self._sin[positions]

    def projected(self, layer: _Layer, hidden: Tensor) -> tuple[Tensor, ...]:
        """Query, key and value [R, H, S, D] of hidden states [R, S, W]."""
        rows, length, _ = hidden.shape
        flat = functional.linear(self._norm(hidden, layer.norm_in), layer.qkv, layer.qkv_bias)
        return flat.view(rows, length, 3, self.heads, self.size).permute(2, 0, 3, 1, 4).unbind(0)

    def rest(self, layer: _Layer, hidden: Tensor, attended: Tensor) -> Tensor:
        """The layer's output, of its input [R, S, W] and what its heads gathered [R, H, S, D]."""
        joined = attended.transpose(1, 2).reshape(hidden.shape)
        hidden = hidden + functional.linear(joined, layer.out)
        gate, up = functional.linear(self._norm(hidden, layer.norm_mlp), layer.gate_up).chunk(2, -1)
        return hidden + functional.linear(functional.silu(gate) * up, layer.down)

    def forward(self, tokens: Tensor) -> Tensor:
        """Hidden states [R, S, W] of tokens [R, S]."""
        positions = torch.arange(tokens.shape[1])
        hidden = functional.embedding(tokens, self.embedding)
        for layer in self.layers:
            query, key, value = self.projected(layer, hidden)
            query, key = self.rotate(query, positions), self.rotate(key, positions)
            attended = functional.scaled_dot_product_attention(query, key, value, is_causal=True)
            hidden = self.rest(layer, hidden, attended)
        return hidden

    def logits(self, hidden: Tensor) -> Tensor:
        return functional.linear(self._norm(hidden, self._final), self._head)


class _Decoder:
    """Keys and values [R, H, S, D] of the rows that have not ended, after left-padded prompts."""

    def __init__(self, network: Network, heads: Sequence[list[int]], max_tokens: int) -> None:
        self._network = network
        unique = list(dict.fromkeys(map(tuple, heads)))
        number = {head: index for index, head in enumerate(unique)}
        self._length = max(map(len, unique))
        tokens_US = torch.zeros(len(unique), self._length, dtype=torch.long)
        padding_U = torch.tensor([self._length - len(head) for head in unique])
        for row, head in enumerate(unique):
            tokens_US[row, self._length - len(head) :] = torch.tensor(head)
        copies = torch.tensor([number[tuple(head)] for head in heads])
        logits, caches = self._prompts(tokens_US, padding_U)
        self.logits, self._padding = logits[copies], padding_U[copies]
        room = (0, 0, 0, max_tokens)
        self._caches = [
            (functional.pad(keys[copies], room), functional.pad(values[copies], room)) for keys, values in caches
        ]

    def _prompts(self, tokens: Tensor, padding: Tensor) -> tuple[Tensor, list[tuple[Tensor, Tensor]]]:
        """Logits after the prompts, and their keys and values."""
        network, places = self._network, torch.arange(self._length)
        positions = (places[None] - padding[:, None]).clamp(min=0)[:, None]
        seen = (places[None, :] <= places[:, None])[None] & (places[None, None] >= padding[:, None, None])
        seen = (seen | torch.eye(self._length, dtype=torch.bool)[None])[:, None]
        hidden, caches = functional.embedding(tokens, network.embedding), []
        for layer in network.layers:
            query, key, value = network.projected(layer, hidden)
            query, key = network.rotate(query, positions), network.rotate(key, positions)
            attended = functional.scaled_dot_product_attention(query, key, value, attn_mask=seen)
            hidden = network.rest(layer, hidden, attended)
            caches.append((key, value))
        return network.logits(hidden[:, -1]), caches

    def step(self, tokens: Tensor, kept: Tensor | None) -> Tensor:
        """Logits [R, V] after one more token of each row that is left; `kept` are those rows' numbers so far."""
        network = self._network
        if kept is not None:
            self._padding = self._padding[kept]
            self._caches = [(keys[kept], values[kept]) for keys, values in self._caches]
        place, self._length = self._length, self._length + 1
        positions = (place - self._padding)[:, None, None]
        unseen = (torch.arange(place + 1)[None] < self._padding[:, None])[:, None, None]
        hidden = functional.embedding(tokens[:, None], network.embedding)
        for layer, (keys, values) in zip(network.layers, self._caches, strict=True):
            query, key, value = network.projected(layer, hidden)
            keys[:, :, place : place + 1] = network.rotate(key, positions)
            values[:, :, place : place + 1] = value
            scores = network.rotate(query, positions) @ keys[:, :, : place + 1].transpose(-1, -2) * network.size**-0.5
            weights = scores.masked_fill(unseen, float("-inf")).softmax(-1)
            hidden = network.rest(layer, hidden, weights @ values[:, :, : place + 1])
        return network.logits(hidden[:, 0])
