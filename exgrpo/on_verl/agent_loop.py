"""verl's single-turn rollout with a seed each: a repeated run asks vLLM for the same samples.

Enabled by ``trainer.rollout_seeded=True`` (exgrpo.preflight.checks.resolve).
"""

from __future__ import annotations

import hashlib
import re
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


class SeededAgentLoop(SingleTurnAgentLoop):
    """A seed by place: in training step and position in the batch, in validation the question."""

    async def run(
        self, sampling_params: dict[str, Any], priority: int = 0, **kwargs: Any
    ) -> AgentLoopOutput:
        uid = str(kwargs["uid"])
        place = uid if _TRAINING_UID.fullmatch(uid) else str(kwargs.get("question_id", uid))
        seed = sampling_seed(self.rollout_config.seed, place, int(kwargs.get("session_id", 0)))
        return await super().run({**sampling_params, "seed": seed}, priority=priority, **kwargs)
