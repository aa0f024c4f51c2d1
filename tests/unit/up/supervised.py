"""A supervisor over the processes named on the command line, for tests that watch it from outside.

`python -m tests.unit.up.supervised LOGS GRACE name=code...`: each code is Python. Says what it does on stdout.
"""

import os
import sys
from pathlib import Path

from draftmill_service.up.child import Child, Command
from draftmill_service.up.errors import UpError
from draftmill_service.up.supervisor import Supervisor


def main() -> int:
    logs, grace, *commands = sys.argv[1:]
    with Supervisor(lambda text: print(text, flush=True)) as supervisor:
        children = []
        for name, _, code in (word.partition("=") for word in commands):
            child = Child(Command(name, (sys.executable, "-c", code), os.environ, float(grace)), Path(logs))
            supervisor.add(child)
            children.append(child)
        ready = Path(logs) / "ready"
        try:
            if not supervisor.wait_for("the last one", ready.exists, children[-1], 20):
                return 3
        except UpError as error:
            print(error, flush=True)
            return 2
        (Path(logs) / "up").touch()
        supervisor.run()
    print("stopped", flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
