"""Who may see a page, and who may change something with it."""

import hmac
from typing import Annotated, NamedTuple
from urllib.parse import urlsplit

from fastapi import Depends
from starlette.requests import Request

from draftmill.problems import ProblemError
from draftmill_service.keyring import ApiKey, Scope
from draftmill_service.web.forms import Form, read_form
from draftmill_service.web.site import Site, site

CSRF_FIELD = "csrf"


class SignedOut(Exception):  # noqa: N818 (says what is so)
    """The request has no session; the answer leads to the sign-in page and back."""


class Viewer(NamedTuple):
    """A browser with a session, and what its pages are made from."""

    key: ApiKey
    csrf: str
    site: Site

    @property
    def may_write(self) -> bool:
        return Scope.WRITE in self.key.scopes


class Editor(NamedTuple):
    """A viewer who sent a form of ours."""

    viewer: Viewer
    form: Form

    @property
    def site(self) -> Site:
        return self.viewer.site


async def viewer(request: Request) -> Viewer:
    """Raises SignedOut, and ProblemError("forbidden") for a key that may not read."""
    found = signed_in(request)
    if found is None:
        raise SignedOut
    if Scope.READ not in found.key.scopes:
        raise ProblemError("forbidden", f"the dashboard needs a key with the scope {Scope.READ}")
    return found


def signed_in(request: Request) -> Viewer | None:
    """Also tells the gate whose request it is, for its log."""
    here = site(request)
    cookie = request.cookies.get(here.sessions.cookie_name)
    session = None if cookie is None else here.sessions.read(cookie)
    key = None if session is None else here.keyring.get(session.key_id)
    if session is None or key is None:
        return None
    request.scope["draftmill.key"] = key
    return Viewer(key, session.csrf, here)


async def poster(request: Request, viewer: Annotated[Viewer, Depends(viewer)]) -> Editor:
    """A form of this session, from this site. ProblemError("forbidden") for any other."""
    require_same_origin(request)
    form = await read_form(request)
    if not hmac.compare_digest(form.text(CSRF_FIELD).encode(), viewer.csrf.encode()):
        raise ProblemError("forbidden", "this form does not belong to your session; load the page again")
    return Editor(viewer, form)


async def editor(poster: Annotated[Editor, Depends(poster)]) -> Editor:
    """As `poster`, with a key that may write."""
    if not poster.viewer.may_write:
        raise ProblemError("forbidden", f"this needs a key with the scope {Scope.WRITE}")
    return poster


def require_same_origin(request: Request) -> None:
    """ProblemError("forbidden") for a request that a page of another site made.

    Sec-Fetch-Site, which browsers send over HTTPS and to the loopback, holds behind a proxy that changes Host too.
    """
    fetched_from = request.headers.get("sec-fetch-site")
    origin = request.headers.get("origin")
    if fetched_from is not None:
        foreign = fetched_from not in {"same-origin", "none"}
    else:
        foreign = origin is not None and urlsplit(origin).netloc != request.headers.get("host")
    if foreign:
        raise ProblemError("forbidden", "the form came from another site")


Viewing = Annotated[Viewer, Depends(viewer)]
Posting = Annotated[Editor, Depends(poster)]
Editing = Annotated[Editor, Depends(editor)]
