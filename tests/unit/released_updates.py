"""Cases, a tiny model and rows for updates by verl's actor, the processes that run them, and the
released formula.
"""

import copy
import os
import socket
import sys
from pathlib import Path

import torch
import watched

from exgrpo.on_verl.correct import FRESH, REPLAYED

SCRIPT = Path(__file__).parent / "one_update.py"
LENGTH, ROWS, COEFFICIENT = (
    64,
    32,
    0.001,
)  # longest response, rows of a mini-batch, of the entropy bonus
BASE = [
    f"data.max_response_length={LENGTH}",
    "actor_rollout_ref.rollout.n=4",
    "actor_rollout_ref.actor.ppo_mini_batch_size=8",
    "actor_rollout_ref.actor.optim.lr=0",
    "actor_rollout_ref.actor.use_kl_loss=False",
]
NO_CLIPPING = "actor_rollout_ref.actor.optim.clip_grad=1e9"
PACKED = [
    "actor_rollout_ref.actor.use_dynamic_bsz=True",
    "actor_rollout_ref.actor.ppo_max_token_len_per_gpu=64",
]
BY_FOUR = [
    "actor_rollout_ref.actor.use_dynamic_bsz=False",
    "actor_rollout_ref.actor.ppo_micro_batch_size_per_gpu=4",
]
SCALE = "actor_rollout_ref.actor.loss_scale_factor=${exgrpo.released_scale:}"
ENTROPY = [
    f"actor_rollout_ref.actor.entropy_coeff={COEFFICIENT}",
    "actor_rollout_ref.actor.policy_loss.entropy_agg=released",
]
VANILLA = "actor_rollout_ref.actor.policy_loss.loss_mode=vanilla"
USERS_LOSS = "+actor_rollout_ref.actor.policy_loss.fresh_loss_mode=users_loss"
BOUND = "actor_rollout_ref.actor.optim.skip_grad_bound"
WHOLE = {"calculate_entropy": True, "global_batch_size": ROWS, "mini_batch_size": ROWS}
HALVES = {"calculate_entropy": True, "global_batch_size": 16, "mini_batch_size": 16}


def case(*overrides, rows="mixed", settings=WHOLE):
    return {"overrides": [*BASE, *overrides], "rows": rows, "settings": settings}


CASES = {
    "released": case(*PACKED, NO_CLIPPING, SCALE, *ENTROPY),
    "rows_mean": case(*PACKED, NO_CLIPPING, *ENTROPY),
    "verl_entropy": case(*PACKED, NO_CLIPPING, SCALE, ENTROPY[0]),
    "on_policy": case(*PACKED, NO_CLIPPING, SCALE, *ENTROPY, VANILLA, rows="fresh"),
    "users_loss": case(*PACKED, NO_CLIPPING, SCALE, *ENTROPY, USERS_LOSS),
    "clipped": case(*PACKED, "actor_rollout_ref.actor.optim.clip_grad=0.01", SCALE, *ENTROPY),
    "skipped": case(*PACKED, f"{BOUND}=0.01", SCALE, *ENTROPY),
    "review": case(*BY_FOUR, *ENTROPY, SCALE, rows="sixteen", settings=HALVES),
    "one_replayed": case(*BY_FOUR, *ENTROPY, SCALE, rows="one_replayed", settings=HALVES),
    "two_replayed": case(*BY_FOUR, *ENTROPY, SCALE, rows="two_replayed", settings=HALVES),
}


def tiny_model(folder):
    from transformers import Qwen2Config, Qwen2ForCausalLM

    torch.manual_seed(0)
    config = Qwen2Config(
        vocab_size=32,
        hidden_size=32,
        intermediate_size=64,
        num_hidden_layers=2,
        num_attention_heads=2,
        num_key_value_heads=1,
        initializer_range=0.2,
        eos_token_id=0,
        tie_word_embeddings=False,
    )
    model = Qwen2ForCausalLM(config)
    model.save_pretrained(folder)
    return model.double()


def of_response(model, prompt, response):
    """Log-probs and entropies of the response's tokens, [T] each."""
    logits = model(input_ids=torch.cat([prompt, response])[None]).logits[0, len(prompt) - 1 : -1]
    logs = torch.log_softmax(logits, -1)
    return logs.gather(-1, response[:, None])[:, 0], -(logs.exp() * logs).sum(-1)


def make_rows(model):
    """Rows of unequal lengths; every seventh replayed, with ratios well off 1."""
    torch.manual_seed(1)
    rows = {
        name: []
        for name in ("row", "prompts", "responses", "input_ids", "position_ids", "response_mask")
    }
    rows |= {
        name: [] for name in ("loss_mask", "old_log_probs", "advantages", "rollout_is_weights")
    }
    for row in range(ROWS):
        prompt, response = (
            torch.randint(1, 32, (int(torch.randint(low, high, ())),))
            for low, high in ((2, 7), (3, 25))
        )
        with torch.no_grad():
            now = of_response(model, prompt, response)[0].float()
        size = len(prompt) + len(response)
        replayed = row % 7 == 3
        rows["row"].append(row)
        rows["prompts"].append(prompt)
        rows["responses"].append(response)
        rows["input_ids"].append(torch.cat([prompt, response]))
        rows["position_ids"].append(torch.arange(size))
        rows["response_mask"].append(torch.ones(len(response), dtype=torch.long))
        rows["loss_mask"].append((torch.arange(size) >= len(prompt)).long())
        rows["old_log_probs"].append(now + (0.7 if replayed else 0.05) * torch.randn(len(response)))
        rows["advantages"].append(torch.full((len(response),), float(torch.randn(()))))
        rows["rollout_is_weights"].append(
            torch.full((len(response),), REPLAYED if replayed else FRESH)
        )
    return rows


def with_replayed(rows, model, old, noise=0.0):
    """The rows with these and no others replayed; row -> what is added to their log-probs to make
    the recorded ones.
    """
    rows = copy.deepcopy(rows)
    for row in range(ROWS):
        rows["rollout_is_weights"][row].fill_(REPLAYED if row in old else FRESH)
        with torch.no_grad():
            now = of_response(model, rows["prompts"][row], rows["responses"][row])[0].float()
        rows["old_log_probs"][row] = now + old.get(row, 0.0) + noise * torch.randn(len(now))
    return rows


def run(*folders):
    """One rank in the first folder, two in the second; of each folder name -> what its rank 0
    wrote.
    """
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    path = [SCRIPT.parents[1], *filter(None, [os.environ.get("PYTHONPATH")])]
    environment = {
        "PYTHONPATH": os.pathsep.join(map(str, path)),
        "VERL_USE_EXTERNAL_MODULES": "users_functions",
    }
    done = watched.run([sys.executable, SCRIPT, str(port), *folders], env=os.environ | environment)
    assert done.returncode == 0, done.stderr[-3000:]
    return [
        {name: torch.load(folder / f"{name}.pt", weights_only=False) for name in CASES}
        for folder in folders
    ]


def token_losses(row, rows, log_prob, vanilla):
    """Of the released objective, by equation 4: f(w) = w / (w + 0.1) of replayed tokens, w of fresh
    ones; or PPO's.
    """
    ratio = torch.exp(log_prob - rows["old_log_probs"][row].double())
    advantage = rows["advantages"][row].double()
    if vanilla:
        return -torch.minimum(ratio * advantage, ratio.clamp(0.8, 1.2) * advantage)
    replayed = rows["rollout_is_weights"][row] == REPLAYED
    return -torch.where(replayed, ratio / (ratio + 0.1), ratio) * advantage


def released_gradient(model, rows, micro_batches, vanilla=False):
    """The release's formula: on each of 8 GPUs micro-batches are added, over the GPUs is
    averaged.
    """
    gpus = [micro_batches[gpu::8] for gpu in range(8)]
    model.zero_grad()
    for gpu in gpus:
        for micro_batch in gpu:
            losses, entropies = [], []
            for row in micro_batch:
                log_prob, entropy = of_response(model, rows["prompts"][row], rows["responses"][row])
                losses.append(token_losses(row, rows, log_prob, vanilla))
                entropies.append(entropy)
            loss = torch.cat(losses).sum() / LENGTH - COEFFICIENT * torch.cat(entropies).mean()
            (loss / 8).backward()
    return {name: parameter.grad.clone() for name, parameter in model.named_parameters()}
