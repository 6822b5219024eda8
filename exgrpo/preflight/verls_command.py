"""Our checks where verl's own command trains with our configuration (docs/verl-command.md)."""

from __future__ import annotations

from typing import Any

from hydra.experimental.callback import Callback
from omegaconf import DictConfig


class Preflight(Callback):
    """Hydra's callback of our configuration; our own command checks by itself."""

    def on_run_start(self, config: DictConfig, **_: Any) -> None:
        if config.hydra.job.name != "main_ppo":
            return
        from exgrpo.preflight.checks import check, refusals

        with refusals():
            check(config)
