#!/usr/bin/env bash
# Format and check everything: bash exp_scripts/check.sh (--check: without changes, as in CI).
set -euo pipefail
cd "$(dirname "$0")/.."
. exp_scripts/environment.sh
bash exp_scripts/setup_cpu.sh requirements/cpu-tests.txt
"$python" exp_scripts/write_keys.py "$@"
if [ "${1:-}" = "--check" ]; then
    "$EXGRPO_VENV"/bin/ruff format --check .
    "$EXGRPO_VENV"/bin/ruff check .
else
    "$EXGRPO_VENV"/bin/ruff format .
    "$EXGRPO_VENV"/bin/ruff check --fix .
fi
"$EXGRPO_VENV"/bin/mypy exgrpo packages/*/src eval data benchmarks \
    exp_scripts/*.py exp_scripts/{guarded,quickstart,smollm2} lab/studies lab/benchmarks
