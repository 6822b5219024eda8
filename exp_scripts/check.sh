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
# mypy does not see that setup.py gives eval/ and data/ other names
named=$EXGRPO_VENV/named
mkdir -p "$named"
ln -sfn "$PWD/eval" "$named/exgrpo_eval"
ln -sfn "$PWD/data" "$named/exgrpo_data"
MYPYPATH=$named:packages "$EXGRPO_VENV"/bin/mypy exgrpo packages/{exgrpo_tools,*/src} "$named"/* benchmarks \
    exp_scripts/*.py exp_scripts/{guarded,quickstart,smollm2} lab/studies lab/benchmarks
