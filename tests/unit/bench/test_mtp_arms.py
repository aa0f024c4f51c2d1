"""An MTP block drafts for the checkpoint it lies in: each arm serves one directory, and says so."""

from dataclasses import replace
from pathlib import Path

import pytest

from draftmill.benchmarks import ArmName
from draftmill.formats import Format
from draftmill.jobs import QuantizeOptions
from draftmill.plans import Plan
from draftmill.problems import ProblemError
from draftmill_worker.bench.pair import check_pair
from draftmill_worker.bench.speculative import check_length
from draftmill_worker.bench.subject import Directory, Subject
from draftmill_worker.checkpoint.checkpoint import open_checkpoint
from draftmill_worker.checkpoint.families import detect
from draftmill_worker.checkpoint.manifest import make_manifest
from draftmill_worker.mill import Switches, mill
from tests.fixtures.mtp import build
from tests.unit.bench.test_arms import Bench
from tests.unit.checkpoint.targets import qwen3_5


def _directory(folder: Path) -> Directory:
    return Directory(folder, make_manifest(folder), None, None)


@pytest.fixture
def subject(tmp_path: Path) -> Subject:
    source, out = build(tmp_path / "source", apart=True), tmp_path / "variant"
    switches = Switches(verify=False, fsync=False)
    mill(source, out, Format.FP8_PC_PT, QuantizeOptions(), switches=switches, progress=lambda *_: None)
    plan = Plan.model_validate_json((out / "plan.json").read_bytes())
    return Subject(_directory(source), _directory(source), _directory(out), plan)


@pytest.fixture
def bench(models: Path, tmp_path: Path) -> Bench:
    pytest.importorskip("vllm", exc_type=ImportError)
    return Bench(models, tmp_path)


def test_each_arm_serves_its_own_checkpoint(bench: Bench, subject: Subject) -> None:
    arms = bench.arms(subject)
    folders = {name: arms._request(arms.choose(name)).target for name in ArmName}
    source, variant = subject.source.folder, subject.variant.folder
    assert folders == {ArmName.NONE: source, ArmName.CONTROL: source, ArmName.VARIANT: variant}
    for name in ArmName:
        choice = arms.choose(name)
        assert choice.directories == (subject.target_of(name),)
        assert "torchvision" in choice.route.features
    control, variant_arm = arms.choose(ArmName.CONTROL), arms.choose(ArmName.VARIANT)
    assert control.speculative == variant_arm.speculative
    assert control.speculative == {"method": "mtp", "num_speculative_tokens": 3, "draft_sample_method": "greedy"}


def test_the_block_and_the_target_are_one_in_the_key(bench: Bench, subject: Subject) -> None:
    files = subject.variant.manifest.files
    manifest = subject.variant.manifest.model_copy(
        update={"files": (files[0].model_copy(update={"sha256": "0" * 64}), *files[1:])}
    )
    other = replace(subject, variant=replace(subject.variant, manifest=manifest))
    assert bench.key(ArmName.VARIANT, other) != bench.key(ArmName.VARIANT, subject)
    assert bench.key(ArmName.CONTROL, other) == bench.key(ArmName.CONTROL, subject)


def test_another_target_is_no_pair(models: Path, subject: Subject) -> None:
    check_pair(subject)
    with pytest.raises(ProblemError) as caught:
        check_pair(replace(subject, target=_directory(subject.variant.folder)))
    assert caught.value.problem.slug == "pair-mismatch"
    assert [offender.where for offender in caught.value.problem.offenders] == ["benchmark.target"]


@pytest.mark.parametrize(("asked", "fits"), [(1, True), (2, True), (3, False), (4, True)])
def test_two_layers_draft_in_twos(tmp_path: Path, asked: int, fits: bool) -> None:
    drafter = detect(open_checkpoint(qwen3_5(layers=2).write(tmp_path / "target")))
    if fits:
        check_length(drafter, asked)
        return
    with pytest.raises(ProblemError) as caught:
        check_length(drafter, asked)
    assert caught.value.problem.slug == "draft-length-refused"
