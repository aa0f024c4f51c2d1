"""What others wrote and ships with the dashboard is what its note says."""

import hashlib
import re

from draftmill_service.web.pages import STATIC


def test_htmx_is_the_one_that_was_taken() -> None:
    folder = STATIC / "vendor"
    note = (folder / "README.md").read_text()
    (script,) = folder.glob("htmx-*.js")
    assert re.findall(r"sha256 ([0-9a-f]{64})", note) == [hashlib.sha256(script.read_bytes()).hexdigest()]
    assert script.name.removeprefix("htmx-").removesuffix(".min.js") in note
    assert (folder / "htmx-LICENSE.txt").is_file()
