# Sourced. find_python 3.12 prints the first interpreter of that version that runs: PYTHON if it is set, otherwise one on
# the PATH, pyenv's or uv's own. A command that does not run, such as a pyenv shim of an unselected version, is skipped.
python_version() { "$1" -c 'import sys; print("%d.%d" % sys.version_info[:2])' 2>/dev/null || true; }

find_python() {
    local candidate
    for candidate in ${PYTHON:-"python$1" python3 python "${PYENV_ROOT:-$HOME/.pyenv}"/versions/"$1".*/bin/python \
        "${XDG_DATA_HOME:-$HOME/.local/share}"/uv/python/cpython-"$1".*/bin/python}; do
        if [ "$(python_version "$candidate")" = "$1" ]; then
            echo "$candidate"
            return
        fi
    done
}
