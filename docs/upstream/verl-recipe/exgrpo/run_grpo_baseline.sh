#!/usr/bin/env bash
# The same program and settings without replay: verl's own GRPO.
exec bash "$(dirname "$0")/run_exgrpo_qwen2.5_math_7b.sh" trainer.experience=False "$@"
