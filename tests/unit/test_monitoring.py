"""The dashboard and the alert rules ask for figures that the processes give, with labels that these have."""

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import promql_parser
import pytest
import yaml
from prometheus_client import generate_latest
from prometheus_client.parser import text_string_to_metric_families

from draftmill.formats import Format
from draftmill.jobs import JobSpec, RepoSource
from draftmill.states import JobState, Stage
from draftmill_service.api.metrics import Metrics
from draftmill_service.ledger import Gauges
from draftmill_service.ledger.measures import Measures, Queue
from draftmill_worker import metrics
from draftmill_worker.stage import StageResult

SPEC = JobSpec(source=RepoSource(repo="org/drafter"), format=Format.FP8)
DOCKER = Path(__file__).parents[2] / "docker"
# Of the recorded series themselves, and those that Prometheus adds.
FOREIGN = {"up": {"job", "instance"}}
ADDED = {"job", "instance"}


def _exposed() -> dict[str, set[str]]:
    """Labels of every series by its name, from what the processes really print."""
    service = Metrics({}, lambda: 0)
    service.observe("GET", "/v1/jobs", 200, 0.01)
    gauges = Gauges(dict.fromkeys(JobState, 0), 0.0, 0)
    measures = Measures({"draftmill.jobs": Queue(0, 0, 0.0)}, dict.fromkeys(Stage, 0), 0, 0.0, 1.0)
    text = service.exposition(gauges, measures) + _worker()
    names: dict[str, set[str]] = {}
    for family in text_string_to_metric_families(text.decode()):
        for sample in family.samples:
            names.setdefault(sample.name, set()).update(sample.labels)
    return names


def _worker() -> bytes:
    acceptance = {"al": 2.5, "control_al": 2.6, "verdict": "passed"}
    metrics.stage_ended(Stage.BENCH, SPEC, StageResult(value={"summary": {"acceptance": acceptance}}, seconds=1), 1)
    metrics.ATTEMPTS.labels("succeeded").inc()
    return generate_latest(metrics.REGISTRY)


def _dashboard() -> Iterator[str]:
    for panel in json.loads((DOCKER / "grafana-dashboard.json").read_text())["panels"]:
        for target in panel["targets"]:
            yield target["expr"]


def _rules() -> list[dict[str, Any]]:
    return [rule for group in yaml.safe_load((DOCKER / "alerts.yml").read_text())["groups"] for rule in group["rules"]]


def _series(node: Any) -> Iterator[promql_parser.VectorSelector]:
    if isinstance(node, promql_parser.VectorSelector):
        yield node
    for name in ("expr", "lhs", "rhs", "vector_selector", "param"):
        inner = getattr(node, name, None)
        if inner is not None:
            yield from _series(inner)
    for inner in getattr(node, "args", ()):
        yield from _series(inner)


EXPRESSIONS = [*_dashboard(), *(rule["expr"] for rule in _rules())]


@pytest.mark.parametrize("expression", EXPRESSIONS)
def test_every_query_names_figures_and_labels_that_there_are(expression: str) -> None:
    exposed = _exposed() | FOREIGN
    found = list(_series(promql_parser.parse(expression)))
    assert len(found) == len(re.findall(r"\bdraftmill_\w+|\bup\b", expression))
    labels: set[str] = set()
    for selector in found:
        assert selector.name in exposed
        asked = {matcher.name for matcher in selector.matchers.matchers}
        assert asked <= exposed[selector.name] | ADDED
        labels |= exposed[selector.name]
    by = {label.strip() for group in re.findall(r"by \(([^)]*)\)", expression) for label in group.split(",")}
    assert by <= labels


def test_every_figure_of_ours_is_shown_or_watched() -> None:
    asked = {selector.name for expression in EXPRESSIONS for selector in _series(promql_parser.parse(expression))}
    families = {re.sub(r"_(bucket|sum|count)$", "", name) for name in asked}
    ours = {re.sub(r"_(bucket|sum|count)$", "", name) for name in _exposed() if not name.endswith("_created")}
    # Told by state, without regard to turns; the two queues are what is watched.
    assert ours - families == {
        "draftmill_jobs",
        "draftmill_oldest_queued_seconds",
        "draftmill_doorbells",
        "draftmill_queue_doorbells",
    }


def test_rules_have_what_an_alert_needs() -> None:
    names = [rule["alert"] for rule in _rules()]
    assert len(set(names)) == len(names) > 5
    for rule in _rules():
        assert set(rule) <= {"alert", "expr", "for", "labels", "annotations"}
        assert rule["labels"]["severity"] in ("critical", "warning")
        assert {"summary", "description"} == set(rule["annotations"])
        assert re.fullmatch(r"\d+[mhd]", rule.get("for", "5m"))


def test_panels_do_not_overlap() -> None:
    cells: set[tuple[int, int]] = set()
    for panel in json.loads((DOCKER / "grafana-dashboard.json").read_text())["panels"]:
        at = panel["gridPos"]
        own = {(x, y) for x in range(at["x"], at["x"] + at["w"]) for y in range(at["y"], at["y"] + at["h"])}
        assert at["x"] + at["w"] <= 24
        assert not own & cells
        cells |= own


def test_what_a_stage_adds() -> None:
    def value(name: str, **labels: str) -> float:
        return metrics.REGISTRY.get_sample_value(name, labels) or 0.0

    before = value("draftmill_bytes_in_total"), value("draftmill_bytes_out_total")
    pulled = StageResult(value={"bytes_pulled": 5, "target": {"bytes_pulled": 7}}, seconds=1)
    metrics.stage_ended(Stage.PULL, SPEC, pulled, 1.0)
    metrics.stage_ended(Stage.SEAL, SPEC, StageResult(value={"summary": {"variant_bytes": 11}}, seconds=1), 1.0)
    adopted = {"summary": {"variant_bytes": 11}, "adopted": True}
    metrics.stage_ended(Stage.SEAL, SPEC, StageResult(value=adopted, seconds=1), 1.0)
    assert (value("draftmill_bytes_in_total"), value("draftmill_bytes_out_total")) == (before[0] + 12, before[1] + 11)
    lengths = {arm: value("draftmill_acceptance_length_sum", format="fp8", arm=arm) for arm in ("variant", "control")}
    failed = {"summary": {"acceptance": {"al": 1.5, "control_al": 3.0, "verdict": "failed"}}}
    metrics.stage_ended(Stage.BENCH, SPEC, StageResult(value=failed, seconds=1), 1.0)
    assert value("draftmill_acceptance_length_sum", format="fp8", arm="variant") == lengths["variant"] + 1.5
    assert value("draftmill_acceptance_length_sum", format="fp8", arm="control") == lengths["control"] + 3.0
    assert value("draftmill_gates_total", format="fp8", verdict="failed") >= 1
