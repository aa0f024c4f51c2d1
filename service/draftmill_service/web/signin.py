"""Signing in with an API key or a one-time link, signing out, and the theme."""

from typing import Annotated

from fastapi import APIRouter, Query
from pydantic import StringConstraints
from starlette.requests import Request
from starlette.responses import RedirectResponse, Response

from draftmill.problems import ProblemError
from draftmill_service.keyring import ApiKey, Scope
from draftmill_service.web.forms import read_form
from draftmill_service.web.guard import Posting, require_same_origin, signed_in
from draftmill_service.web.pages import PREFIX, THEME_COOKIE, THEMES, address, page
from draftmill_service.web.sessions import SESSION_SECONDS
from draftmill_service.web.site import site

router = APIRouter()

HOME = address("/jobs")
YEAR = 365 * 24 * 3600
WRONG_KEY = (
    "This is no valid key of this service. A key looks like dm_… and is made with `draftmill-service keys create`."
)
NO_READ = "This key may not read. The dashboard needs the scope read; write as well to submit, cancel and retry."
OLD_LINK = (
    "This link was used, or is more than an hour old. `draftmill up` prints a new one when it starts; "
    "the key itself is `api_key` in embedded.json in its data directory."
)
Onward = Annotated[str, StringConstraints(max_length=2048)]


def onward(path: str) -> str:
    """Where to go after signing in: a page of ours, never another site."""
    safe = path.startswith(f"{PREFIX}/") and "\\" not in path and path.isprintable()
    return path if safe else HOME


@router.get("/sign-in")
async def show(
    request: Request,
    to: Onward = HOME,
    ticket: Annotated[str | None, Query(max_length=256)] = None,
) -> Response:
    if ticket is not None:
        return _by_link(request, ticket)
    if signed_in(request) is not None:
        return RedirectResponse(onward(to), 303)
    return page(request, None, "sign_in.html", {"to": onward(to), "error": None})


def _by_link(request: Request, ticket: str) -> Response:
    here = site(request)
    key_id = here.tickets.redeem(ticket)
    key = None if key_id is None else here.keyring.get(key_id)
    if key is not None:
        return _begin(request, key, HOME)
    if signed_in(request) is not None:
        # The link of the terminal, clicked once more.
        return RedirectResponse(HOME, 303)
    return page(request, None, "sign_in.html", {"to": HOME, "error": OLD_LINK}, 403)


@router.post("/sign-in")
async def sign_in(request: Request) -> Response:
    require_same_origin(request)
    form = await read_form(request)
    key = site(request).keyring.authenticate(form.text("key"))
    to = onward(form.text("to"))
    if key is None or Scope.READ not in key.scopes:
        error = WRONG_KEY if key is None else NO_READ
        return page(request, None, "sign_in.html", {"to": to, "error": error}, 403)
    return _begin(request, key, to)


def _begin(request: Request, key: ApiKey, to: str) -> Response:
    sessions = site(request).sessions
    answer = RedirectResponse(to, 303)
    answer.set_cookie(
        sessions.cookie_name,
        sessions.start(key.id),
        max_age=SESSION_SECONDS,
        path=PREFIX,
        secure=request.url.scheme == "https",
        httponly=True,
        samesite="lax",
    )
    return answer


@router.post("/sign-out")
async def sign_out(by: Posting) -> Response:
    answer = RedirectResponse(address("/sign-in"), 303)
    answer.delete_cookie(by.site.sessions.cookie_name, path=PREFIX)
    return answer


@router.post("/theme")
async def theme(request: Request, by: Posting) -> Response:
    chosen = by.form.text("theme")
    if chosen not in THEMES:
        raise ProblemError("invalid-request", f"theme is one of {', '.join(THEMES)}")
    answer = RedirectResponse(onward(by.form.text("to")), 303)
    answer.set_cookie(
        THEME_COOKIE,
        chosen,
        max_age=YEAR,
        path=PREFIX,
        secure=request.url.scheme == "https",
        httponly=True,
        samesite="lax",
    )
    return answer
