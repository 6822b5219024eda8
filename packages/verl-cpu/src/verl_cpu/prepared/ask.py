"""``python -I -S ask.py NAME script.py ...``: run the script in a fork of the prepared process of
that name.

Imports what a bare Python has: it starts once for each worker of Ray.
"""

import json
import os
import socket
import sys


def main() -> None:
    """Hand over arguments, environment, working folder and the three standard streams; then this
    process ends.
    """
    name, *arguments = sys.argv[1:]
    wanted = json.dumps(
        {"arguments": arguments, "environment": dict(os.environ), "folder": os.getcwd()}
    ).encode()
    try:
        with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as connection:
            connection.connect(f"\0{name}")
            socket.send_fds(connection, [len(wanted).to_bytes(8, "big")], [0, 1, 2])
            connection.sendall(wanted)
            forked = connection.recv(1) != b""  # nothing: it ended while it imported
    except OSError:
        forked = False
    if not forked:
        os.execv(sys.executable, [sys.executable, *arguments])


if __name__ == "__main__":
    main()
