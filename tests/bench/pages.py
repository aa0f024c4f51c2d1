"""How fast and how heavy the dashboard's pages are: `python -m tests.bench.pages`.

A service with 10,000 jobs, each submitted and finished by the ledger's own steps, and a Chromium on the same machine.
Timed by the browser: from the start of the navigation to the first contentful paint. Weight is of the page's HTML.
"""

import shutil
import sys
import tempfile
from pathlib import Path
from statistics import median

from playwright.sync_api import Browser, Page, sync_playwright

from draftmill import Client, Format, JobSpec, RepoSource
from draftmill.jobs import Summary
from draftmill.states import Outcome
from draftmill_service.ledger import WorkerLedger
from tests.integration.live import Live, live_service
from tests.redis_server import RedisServer

JOBS = 10_000
VISITS = 20
TARGET_SECONDS = 0.3
MAX_BYTES = 150_000
FLAGS = ["--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run", "--disable-background-networking"]
# The page's policy forbids what Playwright's own waiting does.
PAINT = """() => new Promise((done) => {
    const observer = new PerformanceObserver((list) => {
        for (const entry of list.getEntriesByName("first-contentful-paint")) done(entry.startTime);
    });
    observer.observe({ type: "paint", buffered: true });
})"""
SUMMARY = Summary(
    source_bytes=2_100_000_000,
    variant_bytes=1_270_000_000,
    tensors_quantized=29,
    tensors_kept=42,
    checks_passed=40,
    checks_warned=1,
    checks_failed=0,
)


def fill(live: Live, redis_url: str) -> str:
    """Makes the jobs; the id of the last."""
    worker = WorkerLedger.connect(redis_url)
    job_id = ""
    with Client(live.url, live.token) as client:
        for number in range(JOBS):
            spec = JobSpec(
                source=RepoSource(repo=f"org/drafter-{number % 97}"),
                format=list(Format)[number % 4],
                labels={"team": f"t{number % 7}", "sweep": f"s{number % 101}"},
            )
            job_id = client.submit(spec).id
            claim = worker.claim(job_id, "bench", 600)
            # The last ones stay as they are, so that every state is there.
            if claim is not None and number < JOBS - 5:
                worker.finish(claim, Outcome.SUCCEEDED, summary=SUMMARY)
    worker.close()
    return job_id


def visit(page: Page, address: str) -> tuple[float, int]:
    """Seconds to the first contentful paint, bytes of the HTML."""
    answer = page.goto(address)
    if answer is None or not answer.ok:
        raise SystemExit(f"{address} cannot be read")
    return page.evaluate(PAINT) / 1000, len(answer.body())


def measure(browser: Browser, live: Live, paths: dict[str, str]) -> dict[str, tuple[list[float], int]]:
    page = browser.new_page()
    page.goto(f"{live.url}/ui/sign-in")
    page.get_by_label("API key").fill(live.token)
    page.get_by_role("button", name="Sign in").click()
    page.wait_for_url("**/ui/jobs")
    found = {}
    for name, path in paths.items():
        visits = [visit(page, f"{live.url}/ui{path}") for _ in range(VISITS)]
        found[name] = [seconds for seconds, _ in visits], max(size for _, size in visits)
    return found


def main() -> int:
    executable = shutil.which("chromium") or shutil.which("google-chrome")
    if executable is None:
        print("there is no Chromium on PATH: not measured")
        return 0
    with tempfile.TemporaryDirectory() as folder:
        server = RedisServer(Path(folder))
        server.start()
        try:
            (data := Path(folder) / "data").mkdir()
            with live_service(server.url, data) as live, sync_playwright() as playwright:
                last = fill(live, server.url)
                browser = playwright.chromium.launch(executable_path=executable, args=FLAGS)
                paths = {
                    "jobs": "/jobs",
                    "jobs, oldest first": "/jobs?sort=oldest",
                    "jobs by two labels": "/jobs?label=team%3Dt3&label=sweep",
                    "one job": f"/jobs/{last}",
                    "queues": "/queues",
                    "compare": "/compare",
                }
                found = measure(browser, live, paths)
                browser.close()
        finally:
            server.stop()
    print(f"{JOBS} jobs, {VISITS} visits of each page, first contentful paint in seconds, HTML in bytes")
    print(f"{'':22}{'median':>9}{'slowest':>9}{'bytes':>9}")
    for name, (seconds, size) in found.items():
        print(f"{name:22}{median(seconds):9.3f}{max(seconds):9.3f}{size:9}")
    fast = median(found["jobs"][0]) < TARGET_SECONDS
    light = all(size <= MAX_BYTES for _, size in found.values())
    print(f"target: the jobs page paints within {TARGET_SECONDS} s: {'met' if fast else 'MISSED'}")
    print(f"target: no page above {MAX_BYTES} bytes: {'met' if light else 'MISSED'}")
    return 0 if fast and light else 1


if __name__ == "__main__":
    sys.exit(main())
