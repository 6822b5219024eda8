"""verl's single-turn rollout that goes on from a prefix, and one with a seed for each rollout, so
that a repeated run asks vLLM for the same samples.

Enabled by ``trainer.exp_unit=prefix`` and ``trainer.rollout_seeded=True``
(exgrpo.preflight.checks.resolve).
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Sequence
from typing import Any

from verl.experimental.agent_loop.agent_loop import AgentLoopOutput
from verl.experimental.agent_loop.single_turn_agent_loop import SingleTurnAgentLoop

# ExperienceMixCollateFn: step and position; verl's own uids are random
_TRAINING_UID = re.compile(r"\d+q\d+")


def sampling_seed(run_seed: int, place: str, session: int) -> int:
    """A 31-bit seed that differs between runs, places and the K rollouts of one place.

    verl's full_determinism gives all K rollouts the same seed, and so the same tokens.
    """
    digest = hashlib.sha256(f"{run_seed} {place} {session}".encode()).digest()
    return int.from_bytes(digest[:4], "big") >> 1


class PrefixAgentLoop(SingleTurnAgentLoop):
    """A row's column ``prefix``, token ids as text, is the beginning of its response: the engine
    gets it behind the prompt, the reward judges it with what follows, and it is masked.
    """

    _prefix: Sequence[int] = ()

    async def run(
        self, sampling_params: dict[str, Any], priority: int = 0, **kwargs: Any
    ) -> AgentLoopOutput:
        self._prefix = prefix = [*map(int, str(kwargs.get("prefix", "")).split())]
        if not prefix:
            return await super().run(sampling_params, priority=priority, **kwargs)
        room = {**sampling_params, "max_tokens": self.response_length - len(prefix)}
        output = await super().run(room, priority=priority, **kwargs)
        # verl has made it a part of the prompt
        output.prompt_ids = output.prompt_ids[: -len(prefix)]
        output.response_ids = [*prefix, *output.response_ids]
        output.response_mask = [0] * len(prefix) + output.response_mask
        if output.response_logprobs is not None:
            output.response_logprobs = [0.0] * len(prefix) + output.response_logprobs
        return output

    async def ct_build_initial_tokens(self, *args: Any, **kwargs: Any) -> list[int]:
        return [*await super().ct_build_initial_tokens(*args, **kwargs), *self._prefix]


class SeededAgentLoop(PrefixAgentLoop):
    """A seed by place: in training step and position in the batch, in validation the question."""

    async def run(
        self, sampling_params: dict[str, Any], priority: int = 0, **kwargs: Any
    ) -> AgentLoopOutput:
        uid = str(kwargs["uid"])
        place = uid if _TRAINING_UID.fullmatch(uid) else str(kwargs.get("question_id", uid))
        seed = sampling_seed(self.rollout_config.seed, place, int(kwargs.get("session_id", 0)))
        return await super().run({**sampling_params, "seed": seed}, priority=priority, **kwargs)
