"""The dashboard as an application of its own, mounted in the service's."""

from fastapi import FastAPI
from fastapi.exceptions import RequestValidationError
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import RedirectResponse, Response
from starlette.staticfiles import StaticFiles

from draftmill.problems import ProblemError
from draftmill_service.ledger import LedgerUnavailable
from draftmill_service.web import batches, compare, job, jobs, log, operations, receipts, signin, submit
from draftmill_service.web.guard import SignedOut, signed_in
from draftmill_service.web.headers import SecureHeaders
from draftmill_service.web.pages import STATIC, address, problem_page
from draftmill_service.web.site import Site

_HTTP = {
    404: ("not-found", "there is no such page"),
    405: ("method-not-allowed", "this page is not asked for in that way"),
    413: ("payload-too-large", "the form is larger than this service takes"),
}


class _Static(StaticFiles):
    def file_response(self, *args: object, **kwargs: object) -> Response:
        answer = super().file_response(*args, **kwargs)  # type: ignore[arg-type]
        # Pages name files with a mark of their content.
        answer.headers["Cache-Control"] = "public, max-age=31536000, immutable"
        return answer


def create_web(site: Site) -> FastAPI:
    app = FastAPI(openapi_url=None, docs_url=None, redoc_url=None, redirect_slashes=False)
    app.state.site = site
    for module in (signin, jobs, log, job, submit, batches, compare, receipts, operations):
        app.include_router(module.router)
    app.add_api_route("/", _home)
    app.mount("/static", _Static(directory=STATIC))
    app.add_exception_handler(SignedOut, _sign_in)
    for kind in (ProblemError, LedgerUnavailable, RequestValidationError, HTTPException):
        app.add_exception_handler(kind, _problem)
    app.add_middleware(SecureHeaders)
    return app


async def _home() -> Response:
    return RedirectResponse(address("/jobs"), 303)


async def _sign_in(request: Request, _: Exception) -> Response:
    to = request.url.path + (f"?{request.url.query}" if request.url.query else "")
    place = address("/sign-in", to=to if request.method == "GET" else None)
    if request.headers.get("hx-request") == "true":
        # A part of a page cannot show the sign-in page: the whole page goes there.
        return Response(status_code=401, headers={"HX-Redirect": place})
    return RedirectResponse(place, 303)


async def _problem(request: Request, error: Exception) -> Response:
    return problem_page(request, signed_in(request), _named(error).problem)


def _named(error: Exception) -> ProblemError:
    match error:
        case ProblemError():
            return error
        case LedgerUnavailable():
            return ProblemError("ledger-unavailable", "try again; nothing was lost")
        case RequestValidationError():
            said = "; ".join(f"{'.'.join(map(str, each['loc'][1:]))}: {each['msg']}" for each in error.errors())
            return ProblemError("invalid-request", said[:500])
        case HTTPException(status_code=status) if status in _HTTP:
            return ProblemError(*_HTTP[status])
    return ProblemError("invalid-request", "the request cannot be read")
