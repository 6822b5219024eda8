# Sourced. A mark in an environment, the file unfinished: there from the first change to the end of a set-up, however that
# is interrupted, so that the next call knows that packages may be half there. It holds the environment's Python version, and
# a lock that the set-up's installers share: a second call waits for them.
changing=""

# Without util-linux two calls at once are not held apart.
lock() { ! command -v flock >/dev/null || flock "$@" 9; }

# changes_begin ENVIRONMENT VERSION
changes_begin() {
    [ -z "$changing" ] || return 0
    mkdir -p "$1"
    exec 9>>"$1/unfinished"
    lock
    echo "$2" >"$1/unfinished"
    changing=$1
}

changes_end() {
    [ -n "$changing" ] || return 0
    rm -f "$changing/unfinished"
    exec 9>&-
    changing=""
}

# Whether a set-up of this environment was interrupted; if so, the changes have begun again.
was_interrupted() {
    [ -e "$1/unfinished" ] || return 1
    exec 9>>"$1/unfinished"
    lock -n || { echo "set-up: waiting for another one in $1"; lock; }
    [ ! -e "$1/unfinished" ] || changing=$1
    [ -n "$changing" ]
}

# Deletes what an environment has but for the mark, and the pins that somebody chose for it.
empty() {
    local path
    for path in "$1"/* "$1"/.[!.]* "$1"/..?*; do
        case ${path##*/} in unfinished | replaced-pins.txt) ;; *) rm -rf "$path" ;; esac
    done
}
