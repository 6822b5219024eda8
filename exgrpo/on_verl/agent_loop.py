"""verl's single-turn rollout with a sampling seed of its own for each: a repeated run asks vLLM for the same draws.

Chosen by ``trainer.rollout_seeded=True`` (exgrpo.preflight.checks.resolve).
"""

from __future__ import annotations

import hashlib
import re
from typing import Any

from verl.experimental.agent_loop.agent_loop import AgentLoopOutput
from verl.experimental.agent_loop.single_turn_agent_loop import SingleTurnAgentLoop

_TRAINING_UID = re.compile(r"\d+q\d+")  # ExperienceMixCollateFn: step and place; verl's own uids are random


def sampling_seed(run_seed: int, place: str, session: int) -> int:
    """31 bits that differ between runs, places in a step and the K rollouts of one place.

    verl's full_determinism gives all K the same seed, and so the same tokens.
    """
    digest = hashlib.sha256(f"{run_seed} {place} {session}".encode()).digest()
    return int.from_bytes(digest[:4], "big") >> 1


class SeededAgentLoop(SingleTurnAgentLoop):
    """For training, a place is the step and the position in its batch; for validation, the question."""

    async def run(self, sampling_params: dict[str, Any], priority: int = 0, **kwargs: Any) -> AgentLoopOutput:
        uid = str(kwargs["uid"])
        place = uid if _TRAINING_UID.fullmatch(uid) else str(kwargs.get("question_id", uid))
        seed = sampling_seed(self.rollout_config.seed, place, int(kwargs.get("session_id", 0)))
        return await super().run({**sampling_params, "seed": seed}, priority=priority, **kwargs)
