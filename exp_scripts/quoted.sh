# Sourced: a value of Hydra's in quotes, so that a path may have any characters (exgrpo/overrides.py).
quoted() { printf "'%s'" "${1//\'/\\\'}"; }
