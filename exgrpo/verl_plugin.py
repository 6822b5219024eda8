"""Entry point ``verl.plugins``: exgrpo's trainers under verl's own command (docs/verl-command.md).

verl imports this module in every process of every run. It does nothing but in the workers of a run
with our configuration, which sets ``VERL_ENGINE_VENDOR`` for them.
"""

from __future__ import annotations

import importlib
import os
import sys
from collections.abc import Sequence
from importlib.machinery import ModuleSpec, PathFinder
from types import ModuleType

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
            importlib.import_module("exgrpo.mix_trainer_experience")

        spec.loader.exec_module = execute_both  # type: ignore[union-attr, method-assign]
        return spec


if os.environ.get("VERL_ENGINE_VENDOR") == "exgrpo":
    sys.meta_path.insert(0, AfterVerlsTrainers)
