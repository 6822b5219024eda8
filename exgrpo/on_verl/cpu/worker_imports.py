"""What the processes of a training with replay import on a CPU; the prepared process imports this module."""

# ruff: noqa: F401
from __future__ import annotations

import importlib

from exgrpo.on_verl.cpu.verl_imports import fits, forked  # first: it prepares the process for the others

# isort: split
import exgrpo.on_verl.agent_loop
import exgrpo.on_verl.mix_actor
from exgrpo.on_verl.cpu import weight_socket
from exgrpo.on_verl.task_runner import MixTaskRunner

weight_socket.install()
importlib.import_module(MixTaskRunner.trainers)
