#!/usr/bin/env bash
# The baseline: on-policy GRPO with the settings of run_exgrpo.sh and the same program. Same environment variables.
exec bash "$(dirname "$0")/run_exgrpo.sh" trainer.experience=False trainer.experiment_name=on_policy "$@"
