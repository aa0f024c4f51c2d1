"""A file of a variant, for a browser to save."""

from pathlib import Path

from starlette.responses import FileResponse, Response

from draftmill.reports import ManifestFile


def download(found: Path, listed: ManifestFile) -> Response:
    """Never shown in the page's origin: it is somebody else's file."""
    return FileResponse(
        found,
        filename=found.name,
        media_type="application/octet-stream",
        content_disposition_type="attachment",
        headers={"ETag": f'"{listed.sha256}"'},
    )
