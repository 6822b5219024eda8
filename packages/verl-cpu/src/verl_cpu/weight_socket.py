"""Trainings beside each other on one machine do not take each other's weights.

verl names the socket at which an actor and its rollout server meet by Ray's job id, replica and
rank (``/tmp/rl-colocate-zmq-...``). In a Ray of its own every training has the first job id, so
that two of them meet at one
socket: both wait for ever, or one loads what the other one sent.
"""

from __future__ import annotations

import functools
import os
from typing import Any

# variable with the training's own part of the name; absent: the names are verl's
TRAINING = "VERL_CPU_TRAINING"


def install() -> None:
    """Let both ends of the channel in this process use names with ``TRAINING``. Safe to call more
    than once.
    """
    from verl.workers.rollout.vllm_rollout import bucketed_weight_transfer as transfer

    for end in (transfer.BucketedWeightSender, transfer.BucketedWeightReceiver):
        if not getattr(end.__init__, "names_training", False):
            end.__init__ = _named(end.__init__)


def _named(real: Any) -> Any:
    @functools.wraps(real)
    def __init__(self: Any, zmq_handle: str, *args: Any, **kwargs: Any) -> None:
        training = os.environ.get(TRAINING)
        real(self, f"{zmq_handle}.{training}" if training else zmq_handle, *args, **kwargs)

    __init__.names_training = True  # type: ignore[attr-defined]
    return __init__
