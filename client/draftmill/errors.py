"""What the client raises.

DraftmillError
 ├─ ProblemError       the service refused or failed; `.problem` is its RFC 9457 document (draftmill.problems)
 ├─ TransportError     no answer arrived: refused connection, time-out, broken stream, TLS
 ├─ ProtocolError      an answer arrived that is not this API's: another server, a proxy's page, an unknown version
 ├─ DownloadError      an artifact's bytes are not what its manifest promises, or cannot be stored here
 │   └─ FolderTakenError   the folder to download to holds files of another checkpoint
 ├─ NoServiceError     nobody said where the service is
 └─ SettingsError      the URL or the API key that was given cannot be one
"""


class DraftmillError(Exception):
    """The base of every error the client raises on purpose."""


class TransportError(DraftmillError):
    """No answer arrived, after the retries that were safe."""


class ProtocolError(DraftmillError):
    """An answer arrived that this client cannot read as Draftmill's."""


class DownloadError(DraftmillError):
    """An artifact could not be stored: wrong bytes, or a folder that does not allow it."""


class FolderTakenError(DownloadError):
    """The folder holds files of another checkpoint, which an engine would read with the variant's; nothing was sent."""


class NoServiceError(DraftmillError):
    """No URL was given, none is in the environment and no embedded service left its address."""


class SettingsError(DraftmillError):
    """A URL or an API key cannot be used as it was given. The message holds neither key nor password."""
