from draftmill.errors import DraftmillError


class UpError(DraftmillError):
    """The embedded service cannot run as asked."""
