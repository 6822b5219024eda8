"""Losses with their gradients, weights and the actor's loss on another device than the CPU: torch's
"meta", whose tensors hold no data. A tensor of the CPU that meets them fails here and not on a
cluster.

Fakes of CUDA tensors would need a torch that is linked with CUDA as soon as one is indexed or has a
gradient.
"""

import pytest
import torch
from composed import job
from torch.fx.experimental import _config as fx_config
from torch.utils._python_dispatch import TorchDispatchMode
from verl.utils.config import omega_conf_to_dataclass

from exgrpo.buffer.tensors import compute_entropy
from exgrpo.loss_settings import NAMED_RESHAPES, REPLAY_LOSS_NAMES, LossSettings
from exgrpo.mix_core_alg import mixed_policy_loss
from exgrpo.on_verl import mix_actor

DEVICE = "meta"
B, T, V = 4, 6, 11


class Read(TorchDispatchMode):
    """What is read of a tensor that holds no data: `answers`, then always true; zeros of a copy."""

    def __init__(self, *answers: bool) -> None:
        super().__init__()
        self.answers = [*answers]

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        if func is torch.ops.aten._local_scalar_dense.default:
            return self.answers.pop(0) if self.answers else True
        if func is torch.ops.aten._to_copy.default and kwargs.get("device") == torch.device("cpu"):
            return torch.zeros(args[0].shape, dtype=args[0].dtype)  # as tolist does first
        return func(*args, **(kwargs or {}))


@pytest.fixture(autouse=True)
def masks_index():
    with fx_config.patch(meta_nonzero_assume_all_nonzero=True):
        yield


def rows(dtype=torch.float32):
    """log_prob, old_log_prob, advantages, is_replayed, response_mask."""
    values = [torch.empty(B, T, device=DEVICE, dtype=dtype) for _ in range(3)]
    values[0].requires_grad_()
    return [*values, *(torch.ones(B, T, device=DEVICE, dtype=torch.bool) for _ in range(2))]


def on_device(tensors):
    assert tensors and {tensor.device.type for tensor in tensors} == {DEVICE}


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize(
    "changed",
    [{"off_policy_loss": name} for name in REPLAY_LOSS_NAMES]
    + [
        {"off_policy_reshape": name, "on_policy_reshape": name}
        for name in (*NAMED_RESHAPES, "p_div_p_0.1")
    ]
    + [
        {
            "off_policy_max_clip": 2.0,
            "off_policy_min_clip": 0.1,
            "all_max_clip": 0.9,
            "loss_remove_clip": False,
        }
    ],
    ids=lambda changed: "-".join(map(str, changed.values())),
)
def test_a_loss_stays_on_the_device(changed, dtype):
    tensors = rows(dtype)
    with Read(False):  # no value is NaN; there are replayed rows
        loss, metrics = mixed_policy_loss(*tensors, settings=LossSettings(**changed))
        loss.backward()
    on_device([loss, *metrics.values(), tensors[0].grad])


def test_a_tensor_of_a_cpu_is_noticed():
    log_prob, *others = rows()
    with Read(False), pytest.raises(RuntimeError, match="device"):
        mixed_policy_loss(log_prob, torch.empty(B, T), *others[1:], settings=LossSettings())


@pytest.mark.parametrize("fresh", ["exgrpo", "vanilla", "gspo"])
@pytest.mark.parametrize("mixed", [True, False])
@pytest.mark.parametrize("aggregated", ["token-mean", "seq-mean-token-sum-norm"])
def test_the_actors_loss_stays_on_the_device(fresh, aggregated, mixed):
    actor = omega_conf_to_dataclass(
        job("stack=cpu", "actor_rollout_ref.model.path=none").actor_rollout_ref.actor
    )
    object.__setattr__(actor.policy_loss, "fresh_loss_mode", fresh)
    actor.global_batch_info.update(
        dp_size=1, batch_num_tokens=B * T, global_batch_size=B, loss_scale_factor=T
    )
    log_prob, old_log_prob, advantages, _, mask = rows()
    phase = torch.empty(B, T, device=DEVICE)
    with Read(mixed, False):
        loss, _ = mix_actor.compute_policy_loss_exgrpo(
            old_log_prob, log_prob, advantages, mask, aggregated, actor, rollout_is_weights=phase
        )
        loss.backward()
    on_device([loss, log_prob.grad])


def test_entropies_stay_on_the_device():
    logits, mask = (
        torch.empty(B, T, V, device=DEVICE),
        torch.ones(B, T, device=DEVICE, dtype=torch.bool),
    )
    with Read():
        on_device([compute_entropy(logits, mask)])
