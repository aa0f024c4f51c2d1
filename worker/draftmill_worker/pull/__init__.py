"""Brings a checkpoint to this machine, or reads just its headers: from the Hub or from a local folder."""

from typing import TYPE_CHECKING

from draftmill._lazy import lazy

if TYPE_CHECKING:
    from draftmill_worker.pull.hub import HubSettings, pull_repo, resolve
    from draftmill_worker.pull.local import LocalSettings, pull_path, read_local
    from draftmill_worker.pull.remote import read_remote
    from draftmill_worker.pull.store import Pulled

# Who needs the rules for local folders alone must not pay for the Hub's client.
__getattr__ = lazy(
    __name__,
    {
        "hub": "HubSettings pull_repo resolve",
        "local": "LocalSettings pull_path read_local",
        "remote": "read_remote",
        "store": "Pulled",
    },
)

__all__ = ["HubSettings", "LocalSettings", "Pulled", "pull_path", "pull_repo", "read_local", "read_remote", "resolve"]
