"""The command line. `draftmill.cli:main` is the console script."""

import os
import signal
import threading


def _quit(*_: object) -> None:
    os._exit(130)


if threading.current_thread() is threading.main_thread():
    # Ctrl-C while modules load ends the command without a traceback of imports.
    _before = signal.signal(signal.SIGINT, _quit)
    from draftmill.cli.main import main

    signal.signal(signal.SIGINT, _before)
else:
    from draftmill.cli.main import main

__all__ = ["main"]
