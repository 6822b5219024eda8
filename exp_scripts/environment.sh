# Sourced by the scripts: sets $python to the interpreter of the environment EXGRPO_VENV (default .venv), a folder of this
# checkout or any absolute path.
EXGRPO_VENV=${EXGRPO_VENV:-.venv}
[ "${EXGRPO_VENV:0:1}" = / ] || EXGRPO_VENV=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)/$EXGRPO_VENV
export EXGRPO_VENV
python=$EXGRPO_VENV/bin/python
unset PYTHONDONTWRITEBYTECODE # some containers set it; every process would compile what it imports anew
