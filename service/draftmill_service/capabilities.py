"""The capability table: the newest that `draftmill canary` measured in the data directory, else the one that ships."""

from pathlib import Path
from typing import NamedTuple

from pydantic import ValidationError

from draftmill.canary import Table

_SHIPPED = (Path(__file__).with_name("canary.json"), Path(__file__).parents[2] / "docs" / "canary.json")
"""In the installed package, or in the repository."""


class Capabilities(NamedTuple):
    table: Table
    own: bool
    """Measured here."""


def capabilities(data_dir: Path) -> Capabilities | None:
    """None when there is no table at all. Files that cannot be read are passed over."""
    # Names are times.
    measured = sorted((data_dir / "canary").glob("*.json"), reverse=True)
    for path in (*measured, *_SHIPPED):
        try:
            return Capabilities(Table.model_validate_json(path.read_bytes()), path in measured)
        except (ValidationError, FileNotFoundError):
            continue
    return None
