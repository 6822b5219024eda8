#!/usr/bin/env bash
# Makes the environment EXGRPO_VENV (default .venv) with the pinned CPU stack and this checkout in it; does nothing when
# that has been done, and makes it anew where a call was interrupted. Python 3.11 or 3.12, the older first: verl does not
# allow 3.13.
#   bash exp_scripts/setup_cpu.sh [--python 3.12] [--replace FILE] [requirements file ...]
# --python: that version only. --replace: FILE's pins replace those of requirements/cpu.txt, now and in later calls for this
# environment. Requirements files come beside requirements/cpu.txt, such as requirements/cpu-tests.txt.
set -euo pipefail
cd "$(dirname "$0")/.."
. exp_scripts/environment.sh
. exp_scripts/find_python.sh
. exp_scripts/unfinished.sh

# An installer that failed took back what it had done; only an environment that never was whole is made anew.
fail() {
    [ -n "$new" ] || changes_end
    echo "exgrpo: $*" >&2
    exit 2
}

new="" versions="" replace=""
while [[ "${1:-}" = --* ]]; do
    case $1 in
        --python)
            [[ "${2:-}" =~ ^3\.1[12]$ ]] || fail "--python ${2:-}: must be 3.11 or 3.12, for which the CPU stack is pinned"
            versions=$2
            ;;
        --replace) replace=${2:-} ;;
        *) fail "$1: setup_cpu.sh takes --python and --replace" ;;
    esac
    [ -n "${2:-}" ] || fail "$1: needs a value"
    shift 2
done
for file in ${replace:+"$replace"} "$@"; do
    [ -f "$file" ] || fail "$file: no such file"
done

[ "$(uname -sm)" = "Linux x86_64" ] || fail "$(uname -sm): the CPU stack has wheels for Linux x86_64 only"

if was_interrupted "$EXGRPO_VENV"; then
    echo "set-up: the last one was interrupted; $(basename "$EXGRPO_VENV") is made anew"
    versions=${versions:-$(cat "$EXGRPO_VENV/unfinished")} new=yes
    empty "$EXGRPO_VENV"
fi
if [ ! -x "$python" ]; then
    for version in ${versions:-3.11 3.12}; do
        interpreter=$(find_python "$version")
        [ -z "$interpreter" ] || break
    done
    [ -n "$interpreter" ] || fail "no Python ${versions:-3.11 or 3.12} found that runs; the CPU stack is pinned for 3.11 and 3.12"
    echo "set-up: making $(basename "$EXGRPO_VENV") with $("$interpreter" --version)"
    new=yes
    changes_begin "$EXGRPO_VENV" "$version"
    "$interpreter" -m venv "$EXGRPO_VENV"
fi
version=$(python_version "$python")
[[ "$version" =~ ^(${versions:-3.11|3.12})$ ]] ||
    fail "$EXGRPO_VENV has Python ${version:-that does not run}; must be ${versions:-3.11 or 3.12}: delete it, or name another by EXGRPO_VENV"
[ -z "$replace" ] || cmp -s "$replace" "$EXGRPO_VENV/replaced-pins.txt" || {
    changes_begin "$EXGRPO_VENV" "$version"
    cp "$replace" "$EXGRPO_VENV/replaced-pins.txt"
}

installer=""
quiet=yes # on a terminal, uv and pip show a line that moves
[ ! -t 2 ] || quiet=""
# Nothing is compiled to byte code here: of 28,000 modules a run imports 7,400, and whichever process is first compiles one.
pip() { "$python" -m pip --disable-pip-version-check ${quiet:+-qq} install --no-compile "$@"; }
uv() { "$python" -m uv pip install ${quiet:+--quiet} --python "$python" "$@"; }

# requirements/cpu.txt, with the replaced pins of this environment.
pins() {
    [ -f "$EXGRPO_VENV/replaced-pins.txt" ] || { cat requirements/cpu.txt; return; }
    awk -F== '/^#/ { next } { pin[$1] = $0 } END { for (name in pin) print pin[name] }' \
        requirements/cpu.txt "$EXGRPO_VENV/replaced-pins.txt" | sort
}

# uv installs on all cores and takes a fraction of pip's time. It comes from the registry as well; pip_settings.py hands it
# pip's configuration. Where it cannot be had or told, pip does the work.
choose_installer() {
    [ -z "$installer" ] || return 0
    changes_begin "$EXGRPO_VENV" "$version"
    installer=pip
    local settings
    if pip --no-deps "$(pins | grep '^uv==')" 2>/dev/null && settings=$("$python" exp_scripts/pip_settings.py); then
        eval "$settings"
        mkdir -p "${UV_CACHE_DIR:-${XDG_CACHE_HOME:-${HOME:-}/.cache}/uv}" 2>/dev/null && [ -w "$_" ] ||
            export UV_NO_CACHE=1 # a home that cannot be written
        installer=uv
    else
        echo "set-up: uv cannot be used here; installing with pip"
    fi
}

install() {
    choose_installer
    if [ "$installer" = uv ]; then
        uv "$@" && return
        echo "set-up: uv failed; trying pip" >&2
        installer=pip
    fi
    pip "$@"
}

# Installs if there is such a build, and says nothing if there is none.
install_if_there() {
    choose_installer
    if [ "$installer" = uv ] && uv --dry-run "$@" 2>/dev/null; then
        install "$@"
    else
        pip "$@" 2>/dev/null
    fi
}

# torch: the registry's plain Linux build is a CUDA build of several GB. First as pip is configured here, then with
# PyTorch's own index of CPU builds; where neither has one for this Python, the plain build runs as well.
plain_torch() {
    echo "set-up: there is no $torch for this Python here; installing the CUDA build instead (5 GB of disk)"
    pins | grep -v '^torch==' >"$EXGRPO_VENV/constraints.txt"
    install "${torch%+cpu}" --constraint "$EXGRPO_VENV/constraints.txt"
}
torch=$(pins | grep '^torch==')
installed=$("$python" -c 'import importlib.metadata as m; print("torch==" + m.version("torch"))' 2>/dev/null || true)
if [ "${installed%+*}" != "${torch%+*}" ]; then
    echo "set-up: installing $torch"
    install_if_there --no-deps "$torch" ||
        install_if_there --no-deps "$torch" --extra-index-url https://download.pytorch.org/whl/cpu ||
        plain_torch ||
        fail "$torch could not be installed"
fi
stamp=$EXGRPO_VENV/cpu.txt.installed
if ! pins | cmp -s - "$stamp"; then
    echo "set-up: installing $(pins | grep -c '==') packages of requirements/cpu.txt"
    pins | grep -v '^torch==' >"$EXGRPO_VENV/without-torch.txt"
    install --no-deps -r "$EXGRPO_VENV/without-torch.txt" || fail "requirements/cpu.txt could not be installed"
    pins >"$stamp"
fi
for file in "$@"; do
    stamp=$EXGRPO_VENV/$(basename "$file").installed
    if ! cmp -s "$file" "$stamp"; then
        echo "set-up: installing $(grep -c '==' "$file") packages of $file"
        install --no-deps -r "$file" || fail "$file could not be installed"
        cp "$file" "$stamp"
    fi
done
if ! cmp -s setup.py "$EXGRPO_VENV/setup.py.installed"; then
    echo "set-up: installing exgrpo"
    install --no-deps --no-build-isolation --editable . || fail "exgrpo could not be installed"
    cp setup.py "$EXGRPO_VENV/setup.py.installed"
fi
for project in packages/*/pyproject.toml; do
    package=$(dirname "$project")
    name=$(basename "$package")
    if ! cmp -s "$project" "$EXGRPO_VENV/$name.installed"; then
        echo "set-up: installing $name"
        install --no-deps --no-build-isolation --editable "./$package" || fail "$name could not be installed"
        cp "$project" "$EXGRPO_VENV/$name.installed"
    fi
done
changes_end
[ -z "$installer" ] || echo "set-up: done in $SECONDS s"
