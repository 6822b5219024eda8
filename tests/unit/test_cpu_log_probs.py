"""exgrpo.on_verl.cpu.log_probs: verl's numbers to the bit, a few operations, and verl's engine calls it on a CPU."""

import os
import subprocess
import sys

import pytest
import torch
from verl.utils import torch_functional

from exgrpo.on_verl.cpu import log_probs

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


def test_verls_engine_takes_them_from_here_on_a_cpu():
    variables = os.environ | {"VERL_PLATFORM": "cpu"}
    command = [sys.executable, "-c", ENGINE]
    done = subprocess.run(command, env=variables, capture_output=True, text=True, check=False)
    assert done.stdout.splitlines()[-1:] == ["1"], done.stderr[-2000:]
