#!/usr/bin/env bash
# Train a tiny model with ExGRPO on this machine's CPU: verl, Ray, vLLM, FSDP2 and Math-Verify as on a cluster.
#
#   bash exp_scripts/quickstart.sh [--restart] [--seed N] [--output DIR] [key=value ...]
#
# The first call installs the pinned stack into .venv (EXGRPO_VENV: another folder; a few minutes). An unfinished run is
# continued; --restart, or a call after a finished run, starts over and keeps the old run's folder beside it. All Hydra
# overrides are passed on: trainer.experience_ratio=0.25, trainer.experience=False, trainer.total_training_steps=80, ...
set -euo pipefail
. "$(dirname "$0")/environment.sh"
bash "$(dirname "$0")/setup_cpu.sh"
exec "$python" "$(dirname "$0")/quickstart/run.py" "$@"
