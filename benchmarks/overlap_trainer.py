"""The trainer of benchmarks/overlap.py: separate_async with stamps of when the actor works and when
servers generate.

    python benchmarks/overlap_trainer.py +stamps=FILE key=value ...

The keys are those of exgrpo.main_mix_ppo.

FILE gets a line of JSON per interval: what it is, its begin and its end on the machine's clock.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from functools import wraps
from typing import Any

import hydra
from omegaconf import DictConfig
from trainer_start import start
from verl.trainer.ppo.v1.trainer_base import register_trainer
from verl.workers.rollout.llm_server import FullyAsyncLLMServerClient

from exgrpo.mix_trainer_experience import ExperienceMixPPOTrainerSeparateAsync
from exgrpo.on_verl.task_runner import MixTaskRunner

NAME = "exgrpo_overlap"
ACTOR = {
    "compute_log_prob": "log_probs",
    "update_actor": "update",
}  # the actor's methods -> name of the interval


def note(config: DictConfig, what: str, begin: float, **more: Any) -> None:
    """Append an interval that ends now; lines this short are written in one piece."""
    with open(config.stamps, "a") as file:
        file.write(json.dumps({"what": what, "begin": begin, "end": time.time(), **more}) + "\n")


class StampedClient(FullyAsyncLLMServerClient):
    """verl's client of the rollout servers; lives in the agent loop's process."""

    async def _acquire_server(self, request_id: str, **extra: Any) -> tuple[str, Any]:
        server, handle = await super()._acquire_server(request_id, **extra)
        self.__dict__.setdefault("begun", {})[request_id] = time.time()
        return server, handle

    def _release_server(self, server_id: str, request_id: str | None = None) -> None:
        super()._release_server(server_id, request_id)
        note(self.config, "rollout", self.__dict__["begun"].pop(request_id), server=server_id)


@register_trainer(NAME)
class StampedTrainer(ExperienceMixPPOTrainerSeparateAsync):
    """exgrpo's trainer; the actor's calls and the weight transfers are stamped."""

    def get_llm_client(self) -> StampedClient:
        return self.standalone_server_manager.get_client(client_cls=StampedClient)  # type: ignore[no-any-return]

    def on_train_begin(self) -> None:
        """The first prompts are submitted here."""
        note(
            self.config,
            "hybrid",
            time.time(),
            servers=list(self.llm_server_manager.server_addresses),
        )
        for method, what in ACTOR.items():
            setattr(
                self.actor_rollout_wg,
                method,
                self._stamped(getattr(self.actor_rollout_wg, method), what),
            )
        manager = self.standalone_checkpoint_manager
        manager.update_weights = self._stamped(manager.update_weights, "weights")
        super().on_train_begin()

    def _stamped(self, call: Callable[..., Any], what: str) -> Callable[..., Any]:
        @wraps(call)
        def stamped(*args: Any, **kwargs: Any) -> Any:
            begin = time.time()
            result = call(*args, **kwargs)
            note(self.config, what, begin)
            return result

        return stamped


class StampedRunner(MixTaskRunner):
    """exgrpo's task runner with the trainer above."""

    trainers = "overlap_trainer"  # the worker imports it through PYTHONPATH


@hydra.main(config_path="pkg://exgrpo.config", config_name="exgrpo_trainer", version_base=None)
def main(config: DictConfig) -> None:
    """As exgrpo.main_mix_ppo, with the other trainer."""
    start(config, NAME, StampedRunner)


if __name__ == "__main__":
    main()
