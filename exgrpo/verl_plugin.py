"""Entry point ``verl.plugins``: exgrpo's trainers under verl's own command (docs/modes.md).

verl imports this module in every process of every run, so it imports nothing that is large: the
trainers follow when verl's own are imported.
"""

from __future__ import annotations

import importlib
import logging
import sys
from collections.abc import Sequence
from importlib.machinery import ModuleSpec, PathFinder
from types import ModuleType
from typing import Any

from hydra.experimental.callback import Callback
from omegaconf import DictConfig

from exgrpo.on_verl import resolvers

TRAINERS = "verl.trainer.ppo.v1"  # verl's package of trainers, whose table is filled at its import


class AfterVerlsTrainers(PathFinder):
    """Finds :data:`TRAINERS` where it is, and imports exgrpo's trainers after it: verl has no seam
    between the import of its trainers, which takes ten seconds, and the choice of one.
    """

    @classmethod
    def find_spec(
        cls, fullname: str, path: Sequence[str] | None = None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        if fullname != TRAINERS or (spec := PathFinder.find_spec(fullname, path)) is None:
            return None
        execute = spec.loader.exec_module  # type: ignore[union-attr]

        def execute_both(module: ModuleType) -> None:
            execute(module)
            try:
                importlib.import_module("exgrpo.mix_trainer_experience")
            except Exception as error:  # plain verl goes on, and says that it knows no such trainer
                logging.getLogger("exgrpo").warning("exgrpo: no trainer of it works: %r", error)

        spec.loader.exec_module = execute_both  # type: ignore[union-attr, method-assign]
        return spec


class Preflight(Callback):
    """Hydra's callback of our configuration: our checks before verl's own command runs."""

    def on_run_start(self, config: DictConfig, **_: Any) -> None:
        if config.hydra.job.name != "main_ppo":
            return
        from exgrpo.preflight.checks import check, refusals

        with refusals():
            check(config)


resolvers.register()
if not any(each is AfterVerlsTrainers for each in sys.meta_path):
    sys.meta_path.insert(0, AfterVerlsTrainers)
