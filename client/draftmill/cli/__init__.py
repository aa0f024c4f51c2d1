"""The command line. `draftmill.cli:main` is the console script."""

from draftmill.cli.interrupt import quiet_interrupt

with quiet_interrupt():
    from draftmill.cli.main import main

__all__ = ["main"]
