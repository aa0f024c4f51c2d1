"""Pages from templates."""

import hashlib
from functools import cache
from pathlib import Path
from typing import Any
from urllib.parse import urlencode

from jinja2 import Environment, PackageLoader, StrictUndefined
from starlette.requests import Request
from starlette.responses import HTMLResponse, Response

from draftmill.problems import Problem
from draftmill_service.web.guard import Viewer
from draftmill_service.web.words import FILTERS

PREFIX = "/ui"
STATIC = Path(__file__).with_name("static")
THEMES = ("light", "dark")
THEME_COOKIE = "draftmill_theme"


@cache
def static(name: str) -> str:
    """Address of a static file, which changes with its content."""
    mark = hashlib.sha256((STATIC / name).read_bytes()).hexdigest()[:12]
    return f"{PREFIX}/static/{name}?{mark}"


def address(path: str, **query: object) -> str:
    """Of a page, without what is None or empty; lists give their name several times."""
    given = {name: value for name, value in query.items() if value not in (None, "", [], ())}
    return PREFIX + path + (f"?{urlencode(given, doseq=True)}" if given else "")


def _environment() -> Environment:
    environment = Environment(
        loader=PackageLoader("draftmill_service.web"),
        # Everywhere, whatever a template's name ends in.
        autoescape=True,
        undefined=StrictUndefined,
        # They do not change while the service runs.
        auto_reload=False,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters.update(FILTERS)
    environment.globals.update(static=static, address=address, prefix=PREFIX)
    return environment


_ENVIRONMENT = _environment()


def page(
    request: Request, viewer: Viewer | None, template: str, context: dict[str, Any] | None = None, status: int = 200
) -> Response:
    """A page, or a part of one: templates decide. `viewer` is None on pages that need no session."""
    theme = request.cookies.get(THEME_COOKIE)
    shared = {
        "viewer": viewer,
        "theme": theme if theme in THEMES else None,
        "path": request.url.path,
        "here": f"{request.url.path}?{request.url.query}" if request.url.query else request.url.path,
    }
    return HTMLResponse(render(template, **shared, **(context or {})), status, {"Vary": "Cookie, HX-Request"})


def render(template: str, **context: Any) -> str:
    return _ENVIRONMENT.get_template(template).render(**context)


def part_asked(request: Request) -> str | None:
    """Id of the element that htmx wants anew, for a request that it made."""
    return request.headers.get("hx-target") if request.headers.get("hx-request") == "true" else None


def unchanged(request: Request, state: object) -> tuple[str, bool]:
    """A mark of what a live part shows, and whether the browser shows that already."""
    mark = hashlib.sha256(repr(state).encode()).hexdigest()[:16]
    return mark, request.headers.get("x-seen") == mark


def problem_page(request: Request, viewer: Viewer | None, problem: Problem) -> Response:
    answer = page(request, viewer, "problem.html", {"problem": problem}, problem.status)
    if problem.status == 503:
        answer.headers["Retry-After"] = "1"
    return answer
