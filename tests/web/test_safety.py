"""Against pages and data of others, in a real browser."""

from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from threading import Thread

import pytest
from playwright.sync_api import Page, expect

from draftmill import Client, Format, JobSpec, PathSource
from tests.web.conftest import PATIENCE, Console

expect.set_options(timeout=PATIENCE)
HOSTILE = '<img src=x onerror="window.hit=1"><script>window.hit=1</script>'


def test_hostile_text_is_shown_and_does_nothing(page: Page, url: str, client: Client) -> None:
    spec = JobSpec(source=PathSource(path=f"/models/{HOSTILE}"), format=Format.FP8, labels={"team": HOSTILE})
    job = client.wait(client.submit(spec))
    for path in ("/jobs", f"/jobs/{job.id}", f"/jobs/{job.id}/log", "/queues", f"/submit?like={job.id}"):
        page.goto(url + path)
        page.wait_for_load_state()
        assert page.evaluate("window.hit") is None
        assert page.locator("img[src=x]").count() == 0
    page.goto(f"{url}/jobs/{job.id}")
    expect(page.get_by_role("heading", level=1)).to_contain_text(HOSTILE)


def test_the_policy_stops_script_that_would_get_into_a_page(page: Page, url: str, console: Console) -> None:
    console.expected = "Content Security Policy"
    page.goto(f"{url}/jobs")
    page.evaluate(
        """() => {
            const script = document.createElement("script");
            script.textContent = "window.hit = 1";
            document.body.append(script);
            const box = document.createElement("div");
            box.innerHTML = '<p style="color: red" onclick="window.hit = 1">x</p>';
            document.body.append(box);
            box.firstElementChild.click();
        }"""
    )
    assert page.evaluate("window.hit") is None
    assert page.evaluate("getComputedStyle(document.body.lastElementChild.firstElementChild).color") != "rgb(255, 0, 0)"
    assert console.errors


@pytest.fixture
def elsewhere() -> Iterator[Callable[[str], str]]:
    """Serves one page from another origin; its address."""
    shown: dict[str, str] = {}

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            body = shown["page"].encode()
            self.send_response(200)
            self.send_header("Content-Type", "text/html")
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *args: object) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.2", 0), Handler)
    thread = Thread(target=server.serve_forever)
    thread.start()

    def serve(page: str) -> str:
        shown["page"] = f"<!doctype html><link rel=icon href=data:,>{page}"
        return f"http://127.0.0.2:{server.server_port}/"

    yield serve
    server.shutdown()
    thread.join(10)
    server.server_close()


def test_no_page_is_shown_in_a_frame(page: Page, url: str, console: Console, elsewhere: Callable[[str], str]) -> None:
    console.expected = "frame|Frame"
    page.goto(elsewhere(f'<iframe src="{url}/jobs"></iframe>'))
    page.wait_for_load_state("networkidle")
    inside = page.frames[1]
    assert inside.locator("#jobs-table").count() == 0
    assert console.errors


def test_a_form_of_another_site_changes_nothing(
    page: Page, url: str, client: Client, console: Console, elsewhere: Callable[[str], str]
) -> None:
    # Refused with 403, or led to sign in: the cookie is not sent.
    console.expected = "status of 403"
    before = [job.id for job in client.list()]
    form = (
        f'<form method="post" action="{url}/submit/confirm"><input name="source" value="org/x">'
        '<input name="format" value="fp8"><button>go</button></form>'
    )
    page.goto(elsewhere(form))
    page.get_by_role("button", name="go").click()
    page.wait_for_load_state()
    assert not page.url.startswith(f"{url}/jobs/")
    assert [job.id for job in client.list()] == before
