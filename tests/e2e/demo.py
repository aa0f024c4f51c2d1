"""The main job from end to end, on this machine, with everything real: `make demo`.

A Hub stand-in serves a small drafter that ships here; `draftmill up` runs Redis, API and worker in .draftmill/demo.
The demo submits the drafter, shows what happens, downloads the variant and checks it. It ends with exit code 1 when
anything is not as it should be.
"""

import hashlib
import sys
import time
from pathlib import Path

from draftmill import Benchmark, Client, EventKind, Format, Gate, Job, JobSpec, JobState, PromptSet, RepoSource
from draftmill.benchmarks import Verdict
from draftmill.cli.acceptance_text import acceptance_lines
from draftmill.cli.output import size
from draftmill.cli.text import event_line, format_lines, job_lines, plan_lines, source, verify_lines
from tests.e2e.embedded import Up, standin

ROOT = Path(__file__).parents[2]
DATA = ROOT / ".draftmill" / "demo"
REPO = "demo/eagle3-drafter"
DRAFTER = ROOT / "tests" / "fixtures" / "models" / "eagle3"
TARGET_REPO = "demo/target"
TARGET = DRAFTER.with_name("target")
SPEC = JobSpec(source=RepoSource(repo=REPO), format=Format.FP8_PC_PT, labels={"from": "demo"})
BENCHMARK = Benchmark(
    target=RepoSource(repo=TARGET_REPO),
    num_speculative_tokens=3,
    prompts=PromptSet(builtin="draftmill-1", limit=20, max_tokens=64),
    # Twenty prompts leave an interval of several percent.
    gate=Gate(max_al_drop=0.15, min_control_al=2.0),
)


class WrongError(Exception):
    """The demo saw something that must not be."""


def must(holds: bool, what: str) -> None:
    if not holds:
        raise WrongError(what)


def title(text: str) -> None:
    print(f"\n== {text}", flush=True)


def show(lines: list[str]) -> None:
    print("\n".join(lines), flush=True)


def mill(client: Client, spec: JobSpec) -> tuple[Job, float]:
    """One job from submit to its end, its states shown as they come; the job and the seconds from submit to answer."""
    begun = time.monotonic()
    job = client.submit(spec)
    for event in client.watch(job):
        if event.kind is not EventKind.PROGRESS:
            print("  " + event_line(event), flush=True)
    ended = client.get(job)
    seconds = time.monotonic() - begun
    must(ended.state is JobState.SUCCEEDED, "\n".join(["the job did not succeed", *job_lines(ended)]))
    return ended, seconds


def show_result(client: Client, job: Job) -> None:
    title("The plan: what becomes of every tensor, and why")
    show(plan_lines(client.plan(job)))
    title("The verify report")
    report = client.verify(job)
    show(verify_lines(report))
    must(report.passed, "the verify report did not pass")
    summary = job.summary
    must(summary is not None, "the job has no summary")
    if summary is not None:
        title("Sizes (weight tensors by their headers)")
        before, after = summary.source_bytes, summary.variant_bytes
        print(f"before {size(before)}, after {size(after)}: {after / before:.1%}")
        must(0 < after < before, "the variant is not smaller than its source")


def show_variant(job: Job) -> None:
    must(job.resolved_spec is not None, "the job has no resolved spec")
    if job.resolved_spec is not None:
        folder = DATA / "variants" / job.resolved_spec.variant
        title("The variant, sealed and addressed by what decides its bytes")
        print(folder)
        show(sorted(f"  {path.relative_to(folder)}" for path in folder.rglob("*") if path.is_file()))
        must((folder / "config.json").is_file(), f"there is no variant in {folder}")


def download(client: Client, job: Job) -> None:
    title("Downloading it again over the API")
    folder = DATA / "downloaded"
    for old in sorted(folder.rglob("*"), reverse=True):
        old.unlink() if old.is_file() else old.rmdir()
    done = client.download(job, folder)
    for file in done.artifacts.files:
        data = (folder / file.path).read_bytes()
        must(hashlib.sha256(data).hexdigest() == file.sha256, f"{file.path} has another hash than the manifest says")
    print(f"{len(done.artifacts.files)} files, {size(done.received_bytes)}, every SHA-256 right, in {folder}")


def compare(client: Client, up: Up) -> None:
    title(f"Job 3: acceptance length of that variant beside its control, in vLLM, on {TARGET_REPO}")
    print("three boots, each a process of its own: the target alone, with the bf16 drafter, with the variant")
    job, seconds = mill(client, SPEC.model_copy(update={"benchmark": BENCHMARK}))
    found = client.acceptance(job)
    show(acceptance_lines(found))
    print(f"measured in {seconds:.1f} s")
    arms = [arm for arm in (found.none, found.control, found.variant) if arm is not None]
    must(len(arms) == 3, "an arm is missing")
    must(not any(arm.parts_from_none for arm in arms), "speculation changed the output")
    must(found.gate.verdict is Verdict.PASSED, "the variant failed its gate")
    title("The receipts of these boots, and the proof that nobody changed them")
    for arm in arms:
        receipt = client.receipt(arm.receipt)
        print(f"  {arm.receipt} {arm.name}: {len(receipt.rules)} rules hold, {receipt.engine_build}")
        must(all(rule.passed for rule in receipt.rules), f"receipt {arm.receipt} breaks a rule")
    verified = up.run("receipts", "verify")
    print(verified.stdout.strip() or verified.stderr.strip())
    must(verified.returncode == 0, "the archive of receipts is not as it was left")


def run(hub: str) -> None:
    title(f"Starting Redis, the API and one worker in {DATA}")
    with Up(DATA, hub) as up, up.client() as client:
        print(f"API {up.announced['url']}, Redis {up.announced['redis']}", flush=True)
        print("the worker imports torch, ModelOpt and vLLM once", flush=True)
        up.wait_until_warm()

        title(f"Job 1: {source(SPEC.source)} as {SPEC.format}")
        show([line for line in format_lines() if line.startswith(("FORMAT", f"{SPEC.format} "))])
        job, seconds = mill(client, SPEC)
        known = ", answered from the store: this variant was sealed by an earlier run" if job.cached else ""
        print(f"succeeded in {seconds:.2f} s{known}")
        must(not job.cached or seconds < 1.0, f"an answer from the store took {seconds:.2f} s, not under a second")
        show_result(client, job)
        show_variant(job)
        download(client, job)

        title("Job 2: the same request again")
        again, seconds = mill(client, SPEC)
        must(again.cached, "the second job was not answered from the store")
        must(again.resolved_spec == job.resolved_spec, "the second job resolved to another variant")
        must(seconds < 1.0, f"the answer from the store took {seconds:.2f} s, not under a second")
        print(f"succeeded in {seconds:.2f} s, answered from the content-addressed store: nothing was built again")
        compare(client, up)
        title("Stopping")
        must(up.stop() == 0, "draftmill up did not stop cleanly")
    print("stopped cleanly; everything is kept, and the next `make demo` answers from the store at once")


def main() -> int:
    try:
        with standin({REPO: DRAFTER, TARGET_REPO: TARGET}) as hub:
            run(hub)
    except (WrongError, AssertionError) as error:
        print(f"\nThe demo failed: {error}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
