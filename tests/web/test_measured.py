"""What was measured, in the browser: comparison, receipts, what differs between two boots."""

import re

import pytest
from playwright.sync_api import Page, expect

from draftmill import Client, Job
from tests.web.conftest import PATIENCE

pytestmark = pytest.mark.vllm
expect.set_options(timeout=PATIENCE)


def test_chosen_jobs_are_compared_and_every_point_leads_to_its_job(
    page: Page, url: str, client: Client, measured: list[Job]
) -> None:
    page.goto(f"{url}/jobs?label=team%3Dx")
    for job in measured:
        page.get_by_label(f"Compare {job.id}").check()
    # The table is drawn anew now and then: what was chosen stays so.
    with page.expect_response(lambda answer: answer.request.headers.get("hx-target") == "jobs-table"):
        pass
    page.get_by_role("button", name="Compare the chosen").click()
    chart = page.get_by_role("img", name="Acceptance length by size of the weights")
    points = chart.locator("a.point")
    expect(points).to_have_count(len(measured))
    expect(chart.locator(".point.control")).to_have_count(1)
    assert {point.get_attribute("href") for point in points.all()} == {f"/ui/jobs/{job.id}" for job in measured}
    assert len({point.locator("circle").get_attribute("cx") for point in points.all()}) > 1
    for job in measured:
        found = client.acceptance(job)
        row = (
            page.get_by_role("region", name="Acceptance by position")
            .get_by_role("row")
            .filter(has=page.get_by_role("rowheader", name=str(job.spec.format), exact=True))
        )
        assert found.variant.counts is not None
        for rate, samples in zip(
            found.variant.conditional_acceptance,
            (found.variant.counts.drafts, *found.variant.counts.accepted_per_position),
            strict=False,
        ):
            expect(row).to_contain_text(f"{rate:.1%} of {samples}")
    categories = client.acceptance(measured[0]).control.al_by_category
    bars = page.get_by_role("img", name="Acceptance length by category of prompts").locator("rect.fill")
    expect(bars).to_have_count(len(categories) * (1 + len(measured)))
    points.first.locator("circle").click()
    expect(page).to_have_url(re.compile("/ui/jobs/j"))


def test_what_was_measured_against_one_control_is_found(page: Page, url: str, measured: list[Job]) -> None:
    page.goto(f"{url}/compare")
    page.get_by_role("link", name="org/eagle3-drafter").click()
    expect(page.locator("a.point")).to_have_count(len(measured))


def test_acceptance_of_one_job(page: Page, url: str, measured: list[Job]) -> None:
    page.goto(f"{url}/jobs/{measured[0].id}/acceptance")
    expect(page.get_by_role("region", name="Arms").get_by_role("row")).to_have_count(3)
    page.get_by_role("link", name="What differs between the boots").click()
    expect(page.locator("#diff tbody tr").filter(has_text="arm").first).to_contain_text("control")


def test_two_boots_differ_in_what_differs_alone(page: Page, url: str, client: Client, measured: list[Job]) -> None:
    boots = [client.acceptance(job).variant.receipt for job in measured[:2]]
    page.goto(f"{url}/receipts?arm=variant")
    for boot in boots:
        page.get_by_label(f"Compare {boot}").check()
    page.get_by_role("button", name="Show what differs").click()
    # The list is newest first, and so are the two.
    found = client.diff_receipts(boots[1], boots[0])
    rows = page.locator("#diff tbody tr")
    expect(rows).to_have_count(len(found.changes))
    assert rows.locator("th").all_text_contents() == [change.path for change in found.changes]
    page.get_by_label("also what differs between any two runs").check()
    page.get_by_role("button", name="Show", exact=True).click()
    every = client.diff_receipts(boots[1], boots[0], all=True)
    expect(rows).to_have_count(len(every.changes))
    page.goto(f"{url}/receipts/diff?boot={boots[0]}&boot={boots[0]}")
    expect(page.get_by_text("No difference.")).to_be_visible()


def test_one_receipt(page: Page, url: str, client: Client, measured: list[Job]) -> None:
    boot = client.acceptance(measured[0]).variant.receipt
    page.goto(f"{url}/receipts/{boot}")
    receipt = client.receipt(boot)
    expect(page.get_by_role("region", name="Rules").get_by_role("row")).to_have_count(1 + len(receipt.rules))
    assert receipt.view is not None
    expect(page.get_by_role("region", name="Modules").get_by_role("row")).to_have_count(1 + len(receipt.view.modules))


def test_how_far_a_head_is_from_its_original(page: Page, url: str, client: Client, captured: Job) -> None:
    page.goto(f"{url}/jobs/{captured.id}")
    page.get_by_role("link", name="Head", exact=True).click()
    found = client.head(captured)
    assert found.report is not None
    assert found.report.gptq is not None
    row = page.get_by_role("region", name="Head").get_by_role("row").filter(has_text="gptq")
    expect(row).to_contain_text(f"{found.report.gptq.kl:.3g}")
    expect(row).to_contain_text(f"{found.report.gptq.top1:.2%}")
    assert found.draft_vocab is not None
    coverage = page.get_by_role("region", name="Coverage").get_by_role("row")
    expect(coverage).to_have_count(1 + len(found.draft_vocab.coverage))
    expect(coverage.filter(has_text="this one")).to_contain_text("600")
    expect(page.get_by_role("region", name="Written tensors").get_by_role("row")).to_have_count(1 + len(found.added))
