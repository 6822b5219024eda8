#!/usr/bin/env bash
# Build what a release publishes and check it: bash exp_scripts/release.sh [FOLDER], default dist/. Wheels of the three
# distributions, and exgrpo's source archive; twine checks their metadata, and an empty environment installs exgrpo's wheel.
set -euo pipefail
cd "$(dirname "$0")/.."
. exp_scripts/environment.sh
bash exp_scripts/setup_cpu.sh
folder=$(realpath -m "${1:-dist}")
mkdir -p "$folder"
[ -z "$(ls -A "$folder")" ] || { echo "release: $folder is not empty" >&2; exit 2; }

tools=$(mktemp -d)
trap 'rm -rf "$tools" build packages/*/build' EXIT
rm -rf build packages/*/build # of an earlier call: setuptools would take its files along
"$python" -m uv venv --quiet "$tools/venv"
"$python" -m uv pip install --quiet --python "$tools/venv/bin/python" build twine
build() { "$tools/venv/bin/python" -m build --outdir "$folder" "$@" >"$tools/log" 2>&1 || { cat "$tools/log" >&2; exit 1; }; }
build .
for project in packages/*/pyproject.toml; do build --wheel "$(dirname "$project")"; done
"$tools/venv/bin/twine" check --strict "$folder"/*

"$python" -m uv venv --quiet "$tools/empty"
"$python" -m uv pip install --quiet --python "$tools/empty/bin/python" "$folder"/exgrpo-[0-9]*.whl
(cd "$tools" && empty/bin/exgrpo-train --version && empty/bin/python -c "import exgrpo; exgrpo.TrajectoryBuffer()")
ls "$folder"
