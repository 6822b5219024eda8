#!/usr/bin/env bash
# Format and check everything: bash exp_scripts/check.sh (--check: change nothing, as CI does).
set -euo pipefail
cd "$(dirname "$0")/.."
if [ "${1:-}" = "--check" ]; then
    .venv/bin/ruff format --check .
    .venv/bin/ruff check .
else
    .venv/bin/ruff format .
    .venv/bin/ruff check --fix .
fi
.venv/bin/mypy exgrpo
