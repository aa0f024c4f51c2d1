"""The dashboard without a browser: sessions, forms from elsewhere, hostile text, weight, live parts."""

import json
import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import httpx
import pytest

from draftmill import (
    Auto,
    BatchSpec,
    Benchmark,
    Client,
    EngineArgs,
    Format,
    Job,
    JobSpec,
    JobState,
    Outcome,
    PathSource,
    PromptSet,
    Reason,
    RepoSource,
)
from draftmill.benchmarks import Interval, Verdict
from draftmill.choices import Candidate, Choice, Refused, Sensitivity
from draftmill.heads import (
    CaptureOptions,
    Coverage,
    Divergence,
    DraftVocab,
    HeadGroup,
    HeadOptions,
    HeadPlan,
    HeadReport,
)
from draftmill.jobs import AcceptanceSummary, QuantizeOptions, ResolvedSource, ResolvedSpec, Summary
from draftmill.plans import OutputTensor
from draftmill.problems import ProblemError
from draftmill_service.keyring import Keyring, Scope
from draftmill_service.ledger import WorkerLedger
from draftmill_service.web.forms import Form
from draftmill_service.web.submit import planned
from draftmill_service.web.submit_form import like_job, read
from draftmill_service.web.tickets import SIGN_IN, Tickets
from tests.fixtures.verdicts import SHA, acceptance, write
from tests.integration.live import Live, live_service

HOSTILE = "<img src=x onerror=alert(1)>\"'</script><script>alert(2)</script>"
PAGES = ("/jobs", "/batches", "/compare", "/receipts", "/queues", "/capabilities", "/submit")
MAX_BYTES = 150_000
SUMMARY = Summary(
    source_bytes=1000,
    variant_bytes=600,
    tensors_quantized=1,
    tensors_kept=1,
    checks_passed=1,
    checks_warned=0,
    checks_failed=0,
)


class Page(HTMLParser):
    """What a page holds that a policy without unsafe-inline forbids, its links, and its text."""

    def __init__(self, html: str) -> None:
        super().__init__()
        self.inline: list[str] = []
        self.links: list[str] = []
        self.fields: dict[str, str] = {}
        self.text = ""
        self.feed(html)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        given = {name: value or "" for name, value in attrs}
        self.inline += [f"<{tag} {name}>" for name in given if name == "style" or name.startswith("on")]
        if tag == "style" or (tag == "script" and "src" not in given):
            self.inline.append(f"<{tag}>")
        if tag == "a":
            self.links.append(given.get("href", ""))
        if tag == "input":
            self.fields[given.get("name", "")] = given.get("value", "")

    def handle_data(self, data: str) -> None:
        self.text += data


@pytest.fixture
def browser(live: Live) -> Iterator[httpx.Client]:
    """Signed in with every scope; follows redirects."""
    with signed_in(live, live.token) as client:
        yield client


@contextmanager
def signed_in(live: Live, token: str) -> Iterator[httpx.Client]:
    with httpx.Client(base_url=live.url, follow_redirects=True, timeout=10) as client:
        answer = client.post("/ui/sign-in", data={"key": token, "to": "/ui/jobs"})
        assert answer.url.path == "/ui/jobs"
        yield client


def live_jobs(live: Live) -> list[Job]:
    with Client(live.url, live.token) as client:
        return list(client.list())


def csrf(client: httpx.Client) -> str:
    return Page(client.get("/ui/jobs").text).fields["csrf"]


@pytest.fixture
def submit(live: Live) -> Iterator[Callable[..., Job]]:
    with Client(live.url, live.token) as api:

        def run(**fields: Any) -> Job:
            spec = {"source": RepoSource(repo="org/drafter"), "format": Format.FP8, **fields}
            return api.submit(JobSpec.model_validate(spec))

        yield run


def test_pages_ask_for_a_session_and_lead_back(live: Live) -> None:
    with httpx.Client(base_url=live.url) as anonymous:
        for path in PAGES:
            answer = anonymous.get(f"/ui{path}?a=1")
            assert (answer.status_code, answer.headers["location"]) == (
                303,
                f"/ui/sign-in?to=%2Fui{path.replace('/', '%2F')}%3Fa%3D1",
            )
        assert anonymous.get("/").headers["location"] == "/ui/"
        part = anonymous.get("/ui/jobs", headers={"HX-Request": "true", "HX-Target": "jobs-table"})
        assert part.headers["hx-redirect"] == "/ui/sign-in?to=%2Fui%2Fjobs"


def test_a_session_is_a_cookie_that_scripts_and_other_sites_do_not_get(live: Live) -> None:
    with httpx.Client(base_url=live.url) as client:
        answer = client.post("/ui/sign-in", data={"key": live.token})
        cookie = answer.headers["set-cookie"]
        assert {"HttpOnly", "SameSite=lax", "Path=/ui"} <= set(cookie.split("; "))
        assert live.token not in cookie
        # It opens the dashboard alone: a form of another site could send it to the API.
        assert client.get("/v1/jobs").status_code == 401
        assert (live.data_dir / "web.secret").stat().st_mode & 0o777 == 0o600


def test_wrong_keys_and_spoiled_cookies_are_refused(live: Live) -> None:
    with httpx.Client(base_url=live.url) as client:
        for key in ("", "dm_0123456789ab_" + "0" * 64, live.tokens[Scope.WRITE]):
            answer = client.post("/ui/sign-in", data={"key": key})
            assert answer.status_code == 403
            assert "set-cookie" not in answer.headers
    with signed_in(live, live.token) as client:
        ((name, value),) = client.cookies.items()
        for wrong in (value[:-2] + "AA", "x" + value, value.split(".", 1)[1], "", "é"):
            answer = httpx.get(f"{live.url}/ui/jobs", headers={"Cookie": f"{name}={wrong}".encode()})
            assert answer.status_code == 303


def test_a_revoked_key_ends_its_sessions_and_signing_out_ends_one(live: Live) -> None:
    keyring = Keyring(live.settings.keys_file)
    key, token = keyring.create("for a while", {Scope.READ})
    with signed_in(live, token) as client:
        assert client.get("/ui/jobs").url.path == "/ui/jobs"
        keyring.revoke(key.id)
        assert client.get("/ui/jobs").url.path == "/ui/sign-in"
    with signed_in(live, live.token) as client:
        client.post("/ui/sign-out", data={"csrf": csrf(client)})
        assert not client.cookies


@pytest.mark.parametrize(
    "to", ["//evil.example", "https://evil.example/ui/", "/ui/\\evil", "/v1/jobs", "javascript:1", ""]
)
def test_signing_in_leads_to_no_other_site(live: Live, to: str) -> None:
    answer = httpx.post(f"{live.url}/ui/sign-in", data={"key": live.token, "to": to})
    assert (answer.status_code, answer.headers["location"]) == (303, "/ui/jobs")


def test_a_link_signs_in_once(live: Live) -> None:
    ticket = Tickets(live.data_dir).issue(live.token.split("_")[1])
    with httpx.Client(base_url=live.url, follow_redirects=True) as first:
        assert first.get(SIGN_IN + ticket).url.path == "/ui/jobs"
        # Once more, in the browser that it signed in.
        assert first.get(SIGN_IN + ticket).url.path == "/ui/jobs"
    with httpx.Client(base_url=live.url, follow_redirects=True) as second:
        for wrong in (ticket, "x", ""):
            answer = second.get(SIGN_IN + wrong)
            assert answer.status_code == 403
            assert not second.cookies


def test_a_link_that_waited_too_long_is_refused(live: Live, monkeypatch: pytest.MonkeyPatch) -> None:
    ticket = Tickets(live.data_dir).issue(live.token.split("_")[1])
    monkeypatch.setattr("draftmill_service.web.tickets.TICKET_SECONDS", -1)
    assert httpx.get(live.url + SIGN_IN + ticket).status_code == 403


FORMS = ("/jobs/{job}/cancel", "/jobs/{job}/retry", "/submit", "/submit/confirm", "/sign-out", "/theme")


@pytest.mark.parametrize("form", FORMS)
def test_a_form_of_another_site_does_nothing(live: Live, submit: Callable[..., Job], form: str) -> None:
    job = submit()
    path = "/ui" + form.format(job=job.id)
    fields = {"source": "org/drafter", "format": "fp8", "theme": "dark"}
    with signed_in(live, live.token) as client, signed_in(live, live.token) as other, live.client() as api:
        token, foreign = csrf(client), csrf(other)
        assert token != foreign
        tries: list[tuple[dict[str, str], dict[str, str]]] = [
            (fields, {}),
            (fields | {"csrf": ""}, {}),
            (fields | {"csrf": foreign}, {}),
            (fields | {"csrf": token}, {"Sec-Fetch-Site": "cross-site"}),
            (fields | {"csrf": token}, {"Sec-Fetch-Site": "same-site"}),
            (fields | {"csrf": token}, {"Origin": "https://evil.example"}),
            (fields | {"csrf": token}, {"Origin": "null"}),
        ]
        for data, headers in tries:
            assert client.post(path, data=data, headers=headers).status_code == 403
        assert client.post(path, content=b"{}", headers={"Content-Type": "application/json"}).status_code == 422
        assert client.get(path).status_code in {405, 200}
        assert [item["id"] for item in api.get("/v1/jobs").json()["items"]] == [job.id]
        assert api.get(f"/v1/jobs/{job.id}").json()["state"] == "queued"


def test_signing_in_from_another_site_is_refused(live: Live) -> None:
    for headers in ({"Sec-Fetch-Site": "cross-site"}, {"Origin": "https://evil.example"}):
        answer = httpx.post(f"{live.url}/ui/sign-in", data={"key": live.token}, headers=headers)
        assert answer.status_code == 403
        assert "set-cookie" not in answer.headers


def test_a_key_that_may_not_write_sees_no_buttons_and_cannot_use_them(live: Live, submit: Callable[..., Job]) -> None:
    job = submit()
    with signed_in(live, live.tokens[Scope.READ]) as client:
        page = client.get(f"/ui/jobs/{job.id}").text
        assert "/cancel" not in page
        assert client.post(f"/ui/jobs/{job.id}/cancel", data={"csrf": csrf(client)}).status_code == 403
        assert client.post("/ui/submit/confirm", data={"csrf": csrf(client)}).status_code == 403


def test_every_answer_forbids_inline_code_and_frames(
    live: Live, browser: httpx.Client, submit: Callable[..., Job]
) -> None:
    job = submit(labels={"team": HOSTILE})
    paths = [*PAGES, *(f"/jobs/{job.id}{tab}" for tab in ("", "/plan", "/verify", "/acceptance", "/files", "/log"))]
    for path in (*paths, "/nothing", "/static/draftmill.js", "/jobs?state=odd"):
        answer = browser.get(f"/ui{path}")
        policy = answer.headers["content-security-policy"]
        assert "unsafe" not in policy
        assert {"default-src 'none'", "script-src 'self'", "style-src 'self'", "frame-ancestors 'none'"} <= set(
            policy.split("; ")
        )
        assert answer.headers["x-frame-options"] == "DENY"
        assert answer.headers["x-content-type-options"] == "nosniff"
        if "html" in answer.headers["content-type"]:
            assert Page(answer.text).inline == []
            assert answer.headers["cache-control"] == "no-store"
            assert len(answer.content) <= MAX_BYTES


def test_hostile_text_stays_text(
    live: Live, browser: httpx.Client, submit: Callable[..., Job], worker: WorkerLedger
) -> None:
    job = submit(source=PathSource(path=f"/models/{HOSTILE}"), labels={"team": HOSTILE})
    claim = worker.claim(job.id, HOSTILE, 60)
    assert claim is not None
    worker.log(claim, "info", HOSTILE + "\x1b[31m \u202e right to left\r\nsecond line")
    refusal = ProblemError("path-not-allowed", HOSTILE).problem
    worker.finish(claim, Outcome.FAILED, Reason.PULL_FAILED, refusal)
    label = {"label": f"team={HOSTILE}"}
    pages = [browser.get(path) for path in ("/ui/jobs", f"/ui/jobs/{job.id}", f"/ui/jobs/{job.id}/log", "/ui/queues")]
    pages += [browser.get("/ui/jobs", params=label), browser.get("/ui/submit", params={"like": job.id})]
    pages += [browser.post("/ui/submit", data={"csrf": csrf(browser), "source": HOSTILE, "format": HOSTILE})]
    for answer in pages:
        assert "<img" not in answer.text
        assert Page(answer.text).inline == []
        assert "\x1b" not in answer.text
        assert "\u202e" not in answer.text
    assert HOSTILE in Page(pages[1].text).text
    stream = browser.get(f"/ui/jobs/{job.id}/events")
    lines = [line.removeprefix("data: ") for line in stream.text.splitlines() if line.startswith("data: <li")]
    assert "<img" not in stream.text
    assert any(HOSTILE in Page(line).text and "second line" in Page(line).text for line in lines)


def test_filters_order_and_pages_are_in_the_address(browser: httpx.Client, submit: Callable[..., Job]) -> None:
    jobs = [submit(format=list(Format)[n % 2], labels={"n": str(n % 3)}).id for n in range(60)]

    def listed(path: str) -> list[str]:
        return re.findall(r'id="job-(j[0-9a-z]{26})"', browser.get(path).text)

    assert listed("/ui/jobs") == jobs[::-1][:50]
    (following,) = [link for link in Page(browser.get("/ui/jobs").text).links if "cursor=" in link]
    assert listed(following) == jobs[::-1][50:]
    assert listed("/ui/jobs?sort=oldest&state=&format=&family=&label=") == jobs[:50]
    assert listed("/ui/jobs?label=n%3D1&label=n") == [job for n, job in enumerate(jobs) if n % 3 == 1][::-1]
    assert listed(f"/ui/jobs?format={list(Format)[1]}") == jobs[1::2][::-1]
    assert listed("/ui/jobs?state=failed") == []
    chosen = submit(format="auto", auto=Auto(max_size=0.5)).id
    assert listed("/ui/jobs?format=auto") == [chosen]
    assert listed("/ui/jobs?format=keep") == []
    assert browser.get(following.replace("cursor=", "state=failed&cursor=")).status_code == 422
    assert browser.get("/ui/jobs?sort=random").status_code == 422


def test_a_live_part_is_sent_when_something_changed(
    browser: httpx.Client, submit: Callable[..., Job], worker: WorkerLedger
) -> None:
    job = submit()
    for path, target in (("/ui/jobs", "jobs-table"), (f"/ui/jobs/{job.id}", "status"), ("/ui/queues", "queues-live")):
        ask = {"HX-Request": "true", "HX-Target": target}
        part = browser.get(path, headers=ask)
        assert part.text.lstrip().startswith(f'<div id="{target}"')
        seen = re.search(r'X-Seen": "([0-9a-f]{16})"', part.text)
        assert seen is not None
        ask["X-Seen"] = seen[1]
        assert browser.get(path, headers=ask).status_code == 204
        with_claim = worker.claim(job.id, "w1", 60)
        assert with_claim is not None
        assert "running" in browser.get(path, headers=ask).text
        worker.hand_back(with_claim)


def test_a_stream_goes_on_behind_the_last_line_that_a_browser_has(
    browser: httpx.Client, submit: Callable[..., Job], worker: WorkerLedger
) -> None:
    job = submit()
    claim = worker.claim(job.id, "w1", 60)
    assert claim is not None
    for number in range(5):
        worker.log(claim, "info", f"line {number}")
    worker.finish(claim, Outcome.SUCCEEDED)
    whole = browser.get(f"/ui/jobs/{job.id}/events").text
    ids = re.findall(r"^id: (.+)$", whole, re.MULTILINE)
    assert len(ids) == len(set(ids))
    assert whole.rstrip().endswith("event: end\ndata: done")
    for headers, path in (({"Last-Event-ID": ids[3]}, "/events?after=0"), ({}, f"/events?after={ids[3]}")):
        rest = browser.get(f"/ui/jobs/{job.id}{path}", headers=headers).text
        assert re.findall(r"^id: (.+)$", rest, re.MULTILINE) == ids[4:]


def test_long_logs_come_by_the_page(browser: httpx.Client, submit: Callable[..., Job], worker: WorkerLedger) -> None:
    job = submit()
    claim = worker.claim(job.id, "w1", 60)
    assert claim is not None
    for number in range(450):
        worker.log(claim, "info", f"line {number} " + "x" * (8000 if number % 50 == 0 else 10))
    seen: list[int] = []
    path = f"/ui/jobs/{job.id}/log"
    while path:
        answer = browser.get(path)
        assert len(answer.content) <= MAX_BYTES
        seen = [int(number) for number in re.findall(r"<span>line (\d+) ", answer.text)] + seen
        path = next((link for link in Page(answer.text).links if "before=" in link), "")
    assert seen == list(range(450))
    assert browser.get(f"/ui/jobs/{job.id}/log.txt").text.count("line ") == 450


def test_a_click_twice_is_one_job_and_a_wrong_form_says_all_that_is_wrong(browser: httpx.Client, live: Live) -> None:
    token = csrf(browser)
    fields = {"csrf": token, "once": "a", "source": "org/drafter", "format": "nvfp4", "labels": "team=x\nsize="}
    fields |= {
        "exclude": "*fc*\n\n*norm*",
        "target": "/models/target",
        "num_speculative_tokens": "4",
        "max_al_drop": "0.1",
    }
    first, second = (browser.post("/ui/submit/confirm", data=fields) for _ in range(2))
    assert first.url == second.url
    with live.client() as api:
        (item,) = api.get("/v1/jobs").json()["items"]
    spec = JobSpec.model_validate(item["spec"])
    assert spec.quantize.exclude == ("*fc*", "*norm*")
    assert spec.labels == {"team": "x", "size": ""}
    assert spec.benchmark is not None
    assert spec.benchmark.target == PathSource(path="/models/target")
    assert spec.benchmark.gate.max_al_drop == 0.1
    # The form of another like it is filled in with the same.
    again = Page(browser.get("/ui/submit", params={"like": item["id"]}).text).fields
    assert {name: again[name] for name in ("source", "target", "num_speculative_tokens")} == {
        "source": "org/drafter",
        "target": "/models/target",
        "num_speculative_tokens": "4",
    }
    wrong = browser.post("/ui/submit", data={"csrf": token, "source": "no good", "format": "x", "labels": "a"})
    assert wrong.status_code == 422
    assert "is not written as key=value" in wrong.text
    wrong = browser.post("/ui/submit", data={"csrf": token, "source": "no good", "format": "x"})
    assert "drafter" in Page(wrong.text).text
    assert Page(wrong.text).text.count("format: ") >= 1
    assert "Field required" not in wrong.text


def test_a_budget_chooses_and_says_beside_its_fields_what_is_wrong(browser: httpx.Client, live: Live) -> None:
    fields = {"csrf": csrf(browser), "once": "auto", "source": "org/drafter", "format": "auto"}
    wrong = browser.post("/ui/submit", data={**fields, "auto_max_size": "7", "auto_boots": "one"})
    assert wrong.status_code == 422
    for name, place in (("auto_max_size", "auto.max_size"), ("auto_boots", "auto.boots")):
        assert re.search(rf'name="{name}"[^>]* aria-invalid="true" aria-describedby="wrong-{name}"', wrong.text)
        assert re.search(rf'id="wrong-{name}">{place}: Input should', wrong.text)
        assert f'<a href="#{name}">{place}</a>' in wrong.text
    assert 'id="wrong-auto_max_size">auto: must have' in browser.post("/ui/submit", data=fields).text
    # What a budget of acceptance needs is not a field of the budget.
    needs = browser.post("/ui/submit", data={**fields, "auto_max_al_drop": "0.1"})
    assert 'id="wrong-auto_max_al_drop">the job: `auto.max_al_drop` needs a benchmark' in needs.text
    # Fields of groups that the format hides are as if they were empty.
    right = fields | {"auto_max_size": "0.4", "auto_fp8": "1", "auto_nvfp4": "1", "head": "1", "vocab": "ids"}
    browser.post("/ui/submit/confirm", data=right)
    (item,) = live_jobs(live)
    assert item.spec.auto == Auto(max_size=0.4, formats=(Format.FP8, Format.NVFP4))
    assert item.spec.head is None
    again = browser.get("/ui/submit", params={"like": item.id}).text
    assert re.search(r'name="format" value="auto" checked', again)
    boxes = re.findall(r'name="auto_(\w+)"[^>]* value="1"([^>]*)>', again)
    assert [name for name, rest in boxes if "checked" in rest] == ["fp8", "nvfp4"]


HEAD = {"head": "1", "head_bits": "8", "head_method": "gptq_mse", "head_damp": "0.02", "head_mtp": "1"}
VOCAB = {"vocab": "own_outputs", "vocab_size": "600", "vocab_layout": "community"}
CAPTURE = {"capture": "1", "capture_target": "/models/target", "capture_texts": "org/texts:train.jsonl"}
CAPTURE |= {"capture_limit": "9", "capture_max_tokens": "64", "capture_max_rows": "4096"}
KEPT = [
    (
        HEAD | VOCAB | CAPTURE,
        {
            "head": {"bits": 8, "method": "gptq_mse", "damp": 0.02, "mtp": 8},
            "draft_vocab": {"own_outputs": True, "size": 600, "layout": "community"},
            "capture": {
                "target": {"path": "/models/target"},
                "texts": {"repo": {"repo": "org/texts"}, "file": "train.jsonl", "limit": 9, "max_tokens": 64},
                "own_outputs": False,
                "max_rows": 4096,
            },
        },
    ),
    (
        {"vocab": "ids", "vocab_ids": "/models/ids.json", "vocab_layout": "native"},
        {"draft_vocab": {"ids": {"path": "/models/ids.json"}}},
    ),
    (
        {"vocab": "count_over", "vocab_texts": "/texts.jsonl", "vocab_size": "9", "capture": "1"}
        | {"capture_own_outputs": "1"},
        {"draft_vocab": {"count_over": {"path": {"path": "/texts.jsonl"}}, "size": 9}, "capture": {}},
    ),
]


@pytest.mark.parametrize(("fields", "said"), KEPT)
def test_a_head_or_a_draft_vocabulary_by_the_form(
    browser: httpx.Client, live: Live, fields: dict[str, str], said: dict[str, object]
) -> None:
    sent = {"csrf": csrf(browser), "once": "keep", "source": "org/drafter", "format": "keep", **fields}
    # There is no plan of tensors to wait for.
    shown = browser.post("/ui/submit", data=sent)
    assert shown.status_code == 200
    assert "Submit this job" in shown.text
    browser.post("/ui/submit/confirm", data=sent)
    (item,) = live_jobs(live)
    wanted = JobSpec.model_validate({"source": {"repo": "org/drafter"}, "format": "keep", **said})
    assert item.spec == wanted
    # The form of another like it makes the same job.
    assert like_job(wanted).left_out == []
    assert read(Form(list(like_job(wanted).values.items())))[1] == wanted


@pytest.mark.parametrize(
    ("fields", "beside", "place"),
    [
        ({}, "head", "the job"),
        ({"head": "1"}, "capture", "the job"),
        ({"vocab": "own_outputs", "capture": "1"}, "vocab", "draft_vocab"),
        ({"vocab": "ids", "vocab_ids": "ids.json"}, "vocab_ids", "draft_vocab.ids.path"),
        (
            {"vocab": "count_over", "vocab_size": "9", "vocab_texts": "org/texts"},
            "vocab_texts",
            "draft_vocab.count_over",
        ),
        ({"head": "1", "head_method": "rtn", "target": "org/target"}, "target", "the job"),
        ({"head": "1", "capture": "1", "capture_max_rows": "1"}, "capture_max_rows", "capture.max_rows"),
    ],
)
def test_what_is_wrong_with_a_head_is_said_beside_its_field(
    browser: httpx.Client, fields: dict[str, str], beside: str, place: str
) -> None:
    sent = {"csrf": csrf(browser), "source": "org/drafter", "format": "keep", "num_speculative_tokens": "3"}
    page = browser.post("/ui/submit", data=sent | fields)
    assert page.status_code == 422
    assert f'id="wrong-{beside}">{place}: ' in page.text
    assert re.search(rf'(name|id)="{beside}"[^>]* aria-invalid="true"', page.text)


def test_what_the_form_cannot_say_is_told(browser: httpx.Client, submit: Callable[..., Job]) -> None:
    target = RepoSource(repo="org/target")
    benchmark = Benchmark(target=target, num_speculative_tokens=3, engine_args=EngineArgs(max_model_len=512))
    some = PromptSet(limit=5)
    plain = submit(benchmark=Benchmark(target=target, num_speculative_tokens=3, prompts=some), labels={"a": "b"})
    assert "cannot say all" not in browser.get("/ui/submit", params={"like": plain.id}).text
    page = browser.get("/ui/submit", params={"like": submit(benchmark=benchmark).id}).text
    assert 'Left as a new job has it: <span class="mono">benchmark</span>' in page
    captured = JobSpec(
        source=target, format="keep", head=HeadOptions(), capture=CaptureOptions(texts=PromptSet(max_tokens=32))
    )
    assert like_job(captured).left_out == []


def made(worker: WorkerLedger, job: Job, variant: str) -> None:
    """The job ends well, with a variant of this digest."""
    claim = worker.claim(job.id, "w1", 60)
    assert claim is not None
    source = ResolvedSource(repo="org/drafter", commit="0" * 40, manifest_sha256=SHA)
    format = Format.FP8 if job.spec.format == "auto" else job.spec.format
    spec = {"source": source, "format": format, "quantize": QuantizeOptions(), "family": "eagle3", "quantizer": "q"}
    worker.resolve(claim, ResolvedSpec.model_validate(spec | {"variant": variant}))
    worker.finish(claim, Outcome.SUCCEEDED, summary=SUMMARY)


def test_what_was_weighed_and_chosen_is_a_page(
    live: Live, browser: httpx.Client, submit: Callable[..., Job], worker: WorkerLedger
) -> None:
    job = submit(format="auto", auto=Auto(max_size=0.6))
    assert "there is no choice" in browser.get(f"/ui/jobs/{job.id}/choice").text
    made(worker, job, "a" * 64)
    al = Interval(value=2.5, low=2.25, high=2.75, confidence=0.95)
    units = tuple(f"model.layers.{n}.{HOSTILE}" for n in range(3000))
    measured = Candidate(
        format=Format.NVFP4, variant_bytes=400, weight_error=0.1, al=2.5, al_interval=al, receipt="b" + "0" * 32
    )
    others = [Candidate(format=Format.FP8, kept=units, variant_bytes=500 + n, weight_error=0.02) for n in range(200)]
    found = Choice(
        auto=Auto(max_size=0.6),
        source_bytes=1000,
        base=Format.NVFP4,
        control_al=2.6,
        sensitivities=tuple(Sensitivity(unit=u, weights=(u,), saved_bytes=9, weight_error=0.1) for u in units),
        candidates=(measured, *others),
        refused=(Refused(format=Format.FP8_PB_WO, problem="shape-not-divisible", detail=HOSTILE),),
        chosen=150,
        why=f"because of {HOSTILE}",
    )
    folder = live.data_dir / "evidence" / ("a" * 64) / job.id
    folder.mkdir(parents=True)
    (folder / "choice.json").write_text(found.model_dump_json(by_alias=True))
    page = browser.get(f"/ui/jobs/{job.id}/choice")
    assert len(page.content) <= MAX_BYTES
    assert "<img" not in page.text
    assert Page(page.text).inline == []
    rows = re.search(r'aria-label="Candidates">.*?</table>', page.text, re.DOTALL)
    assert rows is not None
    (chosen,) = re.findall(r'<tr class="chosen" aria-current="true">.*?</tr>', rows[0], re.DOTALL)
    assert "3000 modules" in chosen
    assert "65%" in chosen
    assert "2.250 to 2.750" in rows[0]
    assert f"/ui/receipts/b{'0' * 32}" in rows[0]
    assert "and 160 more" in page.text
    assert ">Choice</a>" in page.text
    assert ">Choice</a>" not in browser.get(f"/ui/jobs/{submit().id}").text


def test_what_was_found_of_a_head_is_a_page(
    live: Live, browser: httpx.Client, submit: Callable[..., Job], worker: WorkerLedger
) -> None:
    job = submit(format="keep", head=HeadOptions(method="gptq"), capture=CaptureOptions())
    assert "there is no head" in browser.get(f"/ui/jobs/{job.id}/head").text
    made(worker, job, "d" * 64)
    report = HeadReport(
        bits=4,
        method="gptq",
        source="model.safetensors: lm_head.weight",
        rows=4096,
        columns=512,
        calibration_rows=900,
        held_out_rows=100,
        rtn=Divergence(kl=0.0123, top1=0.9, weighted_error=0.3),
        gptq=Divergence(kl=0.00456, top1=0.9875, weighted_error=0.1),
    )
    coverage = (Coverage(size=300, covered=0.9), Coverage(size=600, covered=0.995))
    found = HeadPlan(
        source_tensor=HOSTILE,
        groups=(HeadGroup(name="draftmill_head", targets=("lm_head",), bits=4, modules=("lm_head",)),),
        draft_vocab=DraftVocab(size=600, sha256=SHA, layout="native", native=False, coverage=coverage),
        removed=("lm_head.weight",),
        added=tuple(OutputTensor(name=f"t{n}.{HOSTILE}", dtype="I32", shape=(4, n)) for n in range(2000)),
        linked=tuple(f"model-{n}.safetensors" for n in range(2000)),
        kept=7,
        source_bytes=1000,
        variant_bytes=700,
        report=report,
    )
    folder = live.data_dir / "variants" / ("d" * 64)
    folder.mkdir(parents=True)
    (folder / "head.json").write_text(found.model_dump_json(by_alias=True))
    page = browser.get(f"/ui/jobs/{job.id}/head")
    assert len(page.content) <= MAX_BYTES
    assert "<img" not in page.text
    assert Page(page.text).inline == []
    text = " ".join(Page(page.text).text.split())
    for said in ("rtn0.012390.00%0.3", "gptq0.0045698.75%0.1", "on 100 held-out rows", "30090.00%", "70%"):
        assert said in text
    assert "this one" in text
    assert "and 1900 more" in text
    tabs = re.findall(r'<a href="/ui/jobs/j\w+(/\w+)"', page.text)
    assert "/head" in tabs
    assert "/plan" not in tabs


def test_a_budgets_plan_is_that_of_the_format_that_most_shapes_fit() -> None:
    spec = JobSpec(source=RepoSource(repo="org/drafter"), format="auto", auto=Auto(max_size=0.5))
    assert planned(spec).format is Format.FP8
    some = Auto(max_size=0.5, formats=(Format.FP8_PB_WO, Format.NVFP4))
    assert planned(spec.model_copy(update={"auto": some})).format is Format.NVFP4


def test_without_a_worker_the_plan_is_not_shown_and_the_job_can_be_made(browser: httpx.Client) -> None:
    answer = browser.post("/ui/submit", data={"csrf": csrf(browser), "source": "org/drafter", "format": "fp8"})
    assert answer.status_code == 504
    assert "Submit without a plan" in answer.text


def test_buttons_cancel_and_retry(browser: httpx.Client, submit: Callable[..., Job], live: Live) -> None:
    job = submit()
    token = csrf(browser)
    with live.client() as api:
        for verb, state in (("cancel", JobState.CANCELED), ("retry", JobState.QUEUED)):
            page = browser.post(f"/ui/jobs/{job.id}/{verb}", data={"csrf": token})
            assert page.url.path == f"/ui/jobs/{job.id}"
            assert api.get(f"/v1/jobs/{job.id}").json()["state"] == state
        assert browser.post(f"/ui/jobs/{job.id}/retry", data={"csrf": token}).status_code == 409


def test_the_theme_is_remembered(browser: httpx.Client) -> None:
    assert "data-theme" not in browser.get("/ui/jobs").text
    page = browser.post("/ui/theme", data={"csrf": csrf(browser), "theme": "dark", "to": "/ui/queues"})
    assert page.url.path == "/ui/queues"
    assert '<html lang="en" data-theme="dark">' in page.text
    assert browser.post("/ui/theme", data={"csrf": csrf(browser), "theme": "pink"}).status_code == 422


def test_the_capability_table_is_the_newest_that_was_measured(browser: httpx.Client, live: Live) -> None:
    assert "As this release ships it" in browser.get("/ui/capabilities").text
    folder = live.data_dir / "canary"
    folder.mkdir()
    row = {"family": "eagle3", "format": "fp8", "loads": True, "runs": False, "engine": "engine-of-mine"}
    table = {"made_at": "2026-11-30T00:00:00Z", "engine": "engine-of-mine", "prompts_sha256": "0" * 64, "prompts": 1}
    document = json.dumps(table | {"max_tokens": 1, "rows": [row], "problems": {"eagle3 fp8": HOSTILE}})
    (folder / "20261130T000000Z.json").write_text(document)
    (folder / "20261130T000001Z.json").write_text("{")
    page = browser.get("/ui/capabilities").text
    assert "Measured here" in page
    assert "engine-of-mine" in page
    assert "<img" not in page


def test_static_files_never_change_under_their_address(browser: httpx.Client) -> None:
    page = browser.get("/ui/jobs").text
    addresses = re.findall(r'(?:src|href)="(/ui/static/[^"]+)"', page)
    assert len(addresses) == 4
    for address in addresses:
        answer = browser.get(address)
        assert answer.status_code == 200
        assert "immutable" in answer.headers["cache-control"]
    assert browser.get("/ui/static/../app.py").status_code == 404
    assert browser.get("/ui/static/%2e%2e/app.py").status_code == 404


def test_a_batch_is_a_matrix_coloured_by_outcome(live: Live, browser: httpx.Client, worker: WorkerLedger) -> None:
    formats = (Format.FP8, Format.NVFP4)
    sources = tuple(RepoSource(repo=f"org/drafter-{n}") for n in range(3))
    with Client(live.url, live.token) as client:
        batch = client.submit_batch(BatchSpec(sources=sources, formats=formats, labels={"team": HOSTILE}))
        items = list(client.batch_items(batch))
    endings = {0: (Outcome.SUCCEEDED, None), 3: (Outcome.FAILED, Reason.PLAN_REFUSED)}
    for number, (outcome, reason) in endings.items():
        claim = worker.claim(str(items[number].job), "w1", 60)
        assert claim is not None
        worker.finish(claim, outcome, reason, summary=SUMMARY if reason is None else None)
    page = browser.get(f"/ui/batches/{batch.id}").text
    cells = re.findall(r'class="cell (\w+)[^"]*" href="/ui/jobs/(j[0-9a-z]{26})"', page)
    assert cells == [(endings.get(n, ("queued",))[0], item.job) for n, item in enumerate(items)]
    assert "60%" in page
    assert "<img" not in page
    assert batch.id in browser.get("/ui/batches").text
    assert batch.id in browser.get(f"/ui/jobs/{items[0].job}").text
    assert browser.get(f"/ui/batches/{batch.id}/report.csv").text.startswith("index,source")
    ended = browser.post(f"/ui/batches/{batch.id}/cancel", data={"csrf": csrf(browser)})
    assert 'data-state="canceled"' in ended.text or 'data-state="failed"' in ended.text
    again = browser.post(f"/ui/batches/{batch.id}/retry", data={"csrf": csrf(browser)})
    assert 'data-state="queued"' in again.text or 'data-state="running"' in again.text
    assert browser.post(f"/ui/batches/{batch.id}/cancel", data={"csrf": ""}).status_code == 403


def test_a_large_batch_comes_by_the_page(live: Live, browser: httpx.Client) -> None:
    sources = tuple(RepoSource(repo=f"org/drafter-{n}") for n in range(200))
    with Client(live.url, live.token) as client:
        batch = client.submit_batch(BatchSpec(sources=sources, formats=tuple(Format)[:4]))
    seen: list[str] = []
    path = f"/ui/batches/{batch.id}"
    while path:
        answer = browser.get(path)
        assert len(answer.content) <= MAX_BYTES
        seen += re.findall(r'<th scope="row">(org/drafter-\d+)</th>', answer.text)
        path = next(iter(re.findall(r'class="next" href="([^"]+)"', answer.text)), "")
    assert seen == [each.repo for each in sources]


@pytest.fixture
def measured(live: Live, submit: Callable[..., Job], worker: WorkerLedger) -> list[Job]:
    """Two jobs of one control, the second of which failed its gate."""
    jobs = []
    for number, verdict in enumerate(Verdict):
        job = submit(format=list(Format)[number], benchmark=acceptance(verdict).benchmark)
        claim = worker.claim(job.id, "w1", 60)
        assert claim is not None
        variant = str(number) * 64
        source = ResolvedSource(repo="org/drafter", commit="0" * 40, manifest_sha256=SHA)
        worker.resolve(
            claim,
            ResolvedSpec(
                source=source,
                format=job.spec.format,
                quantize=QuantizeOptions(),
                family="eagle3",
                quantizer="q",
                variant=variant,
            ),
        )
        write(live.data_dir, variant, job.id, verdict)
        found = AcceptanceSummary.of(job.id, acceptance(verdict))
        worker.finish(claim, Outcome.SUCCEEDED, summary=SUMMARY.model_copy(update={"acceptance": found}))
        jobs.append(job)
    return jobs


def test_compared_variants_are_points_that_lead_to_their_jobs(browser: httpx.Client, measured: list[Job]) -> None:
    chosen = [("job", job.id) for job in measured]
    control = acceptance(Verdict.PASSED)
    for query in (chosen, [("group", control.control_key)]):
        page = browser.get("/ui/compare", params=query).text
        assert re.findall(r'id="point-(j\w+)" href="/ui/jobs/(j\w+)"', page) == [(job.id, job.id) for job in measured]
        assert 'class="point control"' in page
        # Equal sizes: the one that failed its gate is on no front, and the control is larger.
        front = re.findall(r'<circle class="m\d( best)?"', page)
        assert front == [" best", ""]
    (all_controls,) = re.findall(r'class="main" href="(/ui/compare\?group=[0-9a-f]+)"', browser.get("/ui/compare").text)
    assert all_controls.endswith(control.control_key)
    page = browser.get(f"/ui/jobs/{measured[1].id}/acceptance").text
    assert "acceptance fell by 40%" in page
    assert browser.get("/ui/compare", params={"job": "j" + "0" * 26}).status_code == 404


def test_a_ledger_that_is_away_is_a_page_too(tmp_path: Path) -> None:
    with live_service("redis://127.0.0.1:1/0", tmp_path) as live, httpx.Client(base_url=live.url) as client:
        assert client.post("/ui/sign-in", data={"key": live.token}).status_code == 303
        answer = client.get("/ui/jobs")
        assert (answer.status_code, answer.headers["retry-after"]) == (503, "1")
        assert "The ledger cannot be reached" in answer.text
        assert client.get("/ui/capabilities").status_code == 200


@pytest.mark.parametrize(("deadline", "refused"), [("2001-02-03T04:05", True), ("2999-02-03T04:05", False)])
def test_a_deadline_that_has_passed_is_said_beside_its_field(deadline: str, refused: bool) -> None:
    fields = {"source": "org/drafter", "format": "fp8", "dtype": "bfloat16", "scales": "fused", "deadline": deadline}
    filled, spec = read(Form(list(fields.items())))
    assert (spec is None, set(filled.beside)) == (refused, {"deadline"} if refused else set())
    assert filled.values["deadline"] == deadline


def test_a_comparison_says_why_a_job_has_no_measurement(
    browser: httpx.Client, submit: Callable[..., Job], worker: WorkerLedger
) -> None:
    benchmark = Benchmark(target=RepoSource(repo="org/target"), num_speculative_tokens=3)
    failed = submit(benchmark=benchmark)
    claim = worker.claim(failed.id, "w", 60)
    assert claim is not None
    refusal = ProblemError("path-not-allowed", "no").problem
    worker.finish(claim, Outcome.FAILED, Reason.PULL_FAILED, refusal)
    waiting = submit(benchmark=benchmark, format=Format.NVFP4)
    without = submit(format=Format.MXFP8)
    for job, said in (
        (failed, "Ended before it was measured"),
        (waiting, "Not measured yet"),
        (without, "Without a benchmark, and left out"),
    ):
        text = Page(browser.get("/ui/compare", params={"job": job.id}).text).text
        assert said in text
        assert ("Nothing of this is measured yet" in text) is (job is waiting)
