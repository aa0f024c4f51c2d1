"""Stages that do no work of their own, so that the template needs no imports."""

PRELOAD = ()


def warm() -> None:
    """Nothing to do."""
