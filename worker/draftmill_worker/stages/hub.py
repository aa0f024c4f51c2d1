"""The Hub as the worker's settings describe it."""

from draftmill_worker.pull import HubSettings
from draftmill_worker.settings import StageSettings


def hub_settings(settings: StageSettings) -> HubSettings:
    return HubSettings(
        endpoint=settings.hub_endpoint,
        stall_seconds=settings.stall_seconds,
        disk_budget_bytes=settings.disk_budget_bytes,
    )
