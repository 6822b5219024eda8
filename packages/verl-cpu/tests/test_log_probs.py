"""verl_cpu.log_probs: verl's numbers to the bit, a few operations, and verl's engine calls it."""

import os
import subprocess
import sys

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode
from verl.utils import torch_functional

from verl_cpu import log_probs

OF_VERL = torch_functional.logprobs_from_logits_v2
while hasattr(OF_VERL, "__wrapped__"):
    OF_VERL = OF_VERL.__wrapped__


@pytest.mark.parametrize("shape", [(300, 265), (3, 7, 50), (1, 30000)])
@pytest.mark.parametrize("at_a_time", [1, 2000, log_probs.AT_A_TIME])
def test_values_and_gradients_are_verls(monkeypatch, shape, at_a_time):
    monkeypatch.setattr(log_probs, "AT_A_TIME", at_a_time)
    generator = torch.Generator().manual_seed(0)
    logits = torch.randn(shape, generator=generator) * 5
    labels = torch.randint(shape[-1], shape[:-1], generator=generator)
    weights = torch.randn(shape[:-1], generator=generator)
    outcomes = []
    for function in (OF_VERL, log_probs.log_probs_of):
        leaf = logits.clone().requires_grad_()
        values = function(leaf, labels)
        (values * weights).sum().backward()
        outcomes.append((values.detach(), leaf.grad))
    assert all(torch.equal(*pair) for pair in zip(*outcomes, strict=True))


def test_no_tokens():
    assert log_probs.log_probs_of(torch.zeros(0, 5), torch.zeros(0, dtype=torch.long)).shape == (0,)


class Copied(TorchDispatchMode):
    """Notes the number of values of which 32 bits are made, by a cast or within logsumexp."""

    def __init__(self):
        super().__init__()
        self.values = []

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        if (
            function in (torch.ops.aten.logsumexp.default, torch.ops.aten._to_copy.default)
            and args[0].dim() > 1
        ):
            self.values.append(args[0].numel())
        return function(*args, **(kwargs or {}))


def test_of_a_large_micro_batch_64_megabytes_are_copied_at_a_time():
    tokens, vocabulary = 8192, 152_064  # of meta, which computes nothing and takes no memory
    logits = torch.empty(tokens, vocabulary, device="meta", requires_grad=True)
    with Copied() as copied:
        log_probs.log_probs_of(
            logits, torch.zeros(tokens, dtype=torch.long, device="meta")
        ).sum().backward()
    assert sum(copied.values) >= logits.numel() and max(copied.values) <= 2**24


ENGINE = """
import torch, verl
from verl.workers.engine.fsdp import transformer_impl
calls, real = [], torch.logsumexp
torch.logsumexp = lambda *inputs, **named: calls.append(1) or real(*inputs, **named)
for dtype in (torch.float32, torch.bfloat16):
    logits, labels = torch.zeros(1000, 8, dtype=dtype), torch.zeros(1000, dtype=torch.long)
    values = transformer_impl.logprobs_from_logits(logits, labels)
    assert values.shape == (1000,) and values.dtype == dtype
print(len(calls))
"""


@pytest.mark.parametrize(("platform", "calls"), [("cpu", "1"), ("", "1000")])
def test_verls_engine_takes_them_from_here_on_a_cpu_and_nowhere_else(platform, calls):
    """verl's own loop calls once for each of a thousand tokens, of 32 bits only: of 16 it takes
    log_softmax.
    """
    variables = os.environ | {"VERL_PLATFORM": platform}
    command = [sys.executable, "-c", ENGINE]
    done = subprocess.run(command, env=variables, capture_output=True, text=True, check=False)
    assert done.stdout.splitlines()[-1:] == [calls], done.stderr[-2000:]
