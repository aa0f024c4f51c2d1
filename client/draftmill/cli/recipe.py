"""Recipes: a job spec in a file, YAML or JSON."""

from pathlib import Path
from typing import Any

import yaml

from draftmill.problems import Offender

MAX_BYTES = 1 << 20


def read_recipe(path: str | None, offenders: list[Offender], where: str = "--recipe") -> dict[str, Any]:
    """The fields of the spec; empty without a file. What is wrong with the file goes to `offenders`, as wrong with
    `where`."""
    if path is None:
        return {}
    try:
        with Path(path).expanduser().open("rb") as file:
            data = file.read(MAX_BYTES + 1)
        if len(data) > MAX_BYTES:
            raise ValueError(f"has more than {MAX_BYTES} bytes")  # noqa: TRY301
        # JSON is YAML too.
        recipe = yaml.safe_load(data)
        if not isinstance(recipe, dict):
            raise ValueError("is no mapping")  # noqa: TRY301 TRY004
    except OSError as error:
        offenders.append(Offender(where=where, message=error.strerror or "cannot be read", value=path))
    except (yaml.YAMLError, ValueError, RecursionError) as error:
        offenders.append(Offender(where=where, message=" ".join(str(error).split())[:300], value=path))
    else:
        return {str(name): value for name, value in recipe.items()}
    return {}
