"""The store of variants: one rename, immutable, adopted by a second builder, refused when it differs."""

import os
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from draftmill.formats import Format
from draftmill.jobs import QuantizeOptions
from draftmill.plans import Family, Head, Plan
from draftmill.problems import ProblemError
from draftmill.reports import Check, CheckStatus, Manifest, VerifyReport
from draftmill_worker.checkpoint.manifest import make_manifest
from draftmill_worker.files import remove_tree
from draftmill_worker.variants import VariantStore, variant_digest

DIGEST = "d" * 64


def _plan() -> Plan:
    return Plan(
        family=Family.EAGLE3,
        dialect="",
        head=Head.OWN,
        format=Format.FP8,
        scales="fused",
        dtype="bfloat16",
        tensors=(),
        ignore=(),
        source_bytes=2,
        variant_bytes=1,
    )


def _report(passed: bool = True) -> VerifyReport:
    status = CheckStatus.PASS if passed else CheckStatus.FAIL
    return VerifyReport(passed=passed, checks=(Check(id="one", status=status, proves="something"),))


def _scratch(data: Path, weights: bytes = b"weights", card: str = "from a", job: str = "j") -> Path:
    folder = data / "jobs" / job / "scratch" / "variant"
    (folder / "module").mkdir(parents=True)
    (folder / "model.safetensors").write_bytes(weights)
    (folder / "module" / "code.py").write_text("")
    (folder / "README.md").write_text(card)
    (folder / "plan.json").write_text(_plan().model_dump_json(by_alias=True))
    return folder


def test_sealed_whole_and_read_only(tmp_path: Path) -> None:
    store = VariantStore(tmp_path, DIGEST)
    scratch = _scratch(tmp_path)
    sealed = store.seal(scratch)
    assert not sealed.adopted
    assert not scratch.exists()
    assert [file.path for file in sealed.manifest.files] == [
        "README.md",
        "model.safetensors",
        "module/code.py",
        "plan.json",
    ]
    assert Manifest.model_validate_json((store.evidence / "manifest.json").read_bytes()) == sealed.manifest
    modes = {path.relative_to(store.folder).as_posix(): path.stat().st_mode & 0o777 for path in store.folder.rglob("*")}
    assert modes.pop("module") == 0o555
    assert set(modes.values()) == {0o444}
    assert store.folder.stat().st_mode & 0o777 == 0o555


def test_found_with_its_newest_report(tmp_path: Path) -> None:
    store = VariantStore(tmp_path, DIGEST)
    assert store.find() is None
    store.write_report("j1", _report(passed=False))
    assert store.find() is None, "not sealed"
    store.seal(_scratch(tmp_path))
    assert store.find() is None, "its only report is against it"
    store.write_report("j2", _report())
    summary = store.find()
    assert summary is not None
    assert (summary.source_bytes, summary.variant_bytes, summary.checks_passed) == (2, 1, 1)
    store.write_report("j3", _report(passed=False))
    assert store.find() is None, "the newest report counts"


def test_the_same_bytes_are_adopted(tmp_path: Path) -> None:
    store = VariantStore(tmp_path, DIGEST)
    store.seal(_scratch(tmp_path))
    before = (store.folder / "model.safetensors").stat().st_ino
    scratch = _scratch(tmp_path, card="from b")
    assert store.seal(scratch).adopted
    assert not scratch.exists()
    assert (store.folder / "model.safetensors").stat().st_ino == before


def test_of_many_builders_one_seals(tmp_path: Path) -> None:
    folders = [_scratch(tmp_path, card=f"from {number}", job=str(number)) for number in range(8)]
    with ThreadPoolExecutor(8) as pool:
        sealed = list(pool.map(lambda folder: VariantStore(tmp_path, DIGEST).seal(folder), folders))
    assert [result.adopted for result in sealed].count(False) == 1
    store = VariantStore(tmp_path, DIGEST)
    assert make_manifest(store.folder) == Manifest.model_validate_json((store.evidence / "manifest.json").read_bytes())
    assert not any(folder.exists() for folder in folders)


def test_other_bytes_are_refused(tmp_path: Path) -> None:
    store = VariantStore(tmp_path, DIGEST)
    first = store.seal(_scratch(tmp_path))
    scratch = _scratch(tmp_path, b"weight5")
    with pytest.raises(ProblemError, match="sealed with other bytes") as caught:
        store.seal(scratch)
    assert [offender.where for offender in caught.value.problem.offenders] == ["model.safetensors"]
    assert (store.folder / "model.safetensors").read_bytes() == b"weights"
    assert Manifest.model_validate_json((store.evidence / "manifest.json").read_bytes()) == first.manifest


def test_a_manifest_without_its_variant_is_replaced(tmp_path: Path) -> None:
    """What a crash between the two leaves."""
    store = VariantStore(tmp_path, DIGEST)
    store.evidence.mkdir(parents=True)
    (store.evidence / "manifest.json").write_text('{"files":[]}')
    store.write_report("j1", _report())
    assert store.find() is None
    sealed = store.seal(_scratch(tmp_path))
    assert Manifest.model_validate_json((store.evidence / "manifest.json").read_bytes()) == sealed.manifest


@pytest.mark.parametrize("damage", ["shorter", "gone"])
def test_damage_is_noticed(tmp_path: Path, damage: str) -> None:
    store = VariantStore(tmp_path, DIGEST)
    store.seal(_scratch(tmp_path))
    store.write_report("j1", _report())
    store.folder.chmod(0o755)
    victim = store.folder / "model.safetensors"
    victim.unlink()
    if damage == "shorter":
        victim.write_bytes(b"w")
    with pytest.raises(ProblemError, match="damaged") as caught:
        store.find()
    assert caught.value.problem.slug == "variant-differs"


def test_the_address_follows_what_decides_the_bytes() -> None:
    base = variant_digest("m", Format.FP8, QuantizeOptions(), "q")
    others = {
        variant_digest("n", Format.FP8, QuantizeOptions(), "q"),
        variant_digest("m", Format.NVFP4, QuantizeOptions(), "q"),
        variant_digest("m", Format.FP8, QuantizeOptions(exclude=("a",)), "q"),
        variant_digest("m", Format.FP8, QuantizeOptions(), "r"),
    }
    assert len(others | {base}) == 5
    assert variant_digest("m", Format.FP8, QuantizeOptions(), "q") == base


def test_a_read_only_tree_can_be_removed(tmp_path: Path) -> None:
    folder = _scratch(tmp_path)
    for root, _, _ in os.walk(folder, topdown=False):
        Path(root).chmod(0o555)
    remove_tree(folder)
    assert not folder.exists()
    remove_tree(folder)
