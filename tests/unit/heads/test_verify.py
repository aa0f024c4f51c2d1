"""Each check of a rewritten head passes on good variants, and fails alone on what it is there for."""

import json
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor

from draftmill.heads import DraftVocabOptions, HeadOptions, HeadPlan
from draftmill.problems import ProblemError
from draftmill.reports import CheckStatus, VerifyReport
from draftmill.sources import PathSource
from draftmill_worker.checkpoint.identity import fingerprint
from draftmill_worker.checkpoint.manifest import make_manifest
from draftmill_worker.heads.mill import Asked, mill_head
from draftmill_worker.heads.rewrite import write_index
from draftmill_worker.heads.verify.run import CHECKS, View, lines, verify_head
from tests.fixtures import synthetic
from tests.unit.heads import layouts

EXTRA = "model_extra_tensors.safetensors"
VOCAB = torch.arange(0, 1024, 3)
GIVEN = DraftVocabOptions(ids=PathSource(path="/ids.json"))


def _make(source: Path, out: Path, *, head: bool = True, ids: Tensor | None = VOCAB, mtp: bool = True) -> HeadPlan:
    options = HeadOptions(bits=4, method="rtn", mtp=8 if mtp else None) if head else None
    asked = Asked(options, GIVEN if ids is not None else None, ids, (), None)
    return mill_head(source, asked, out, out.with_name("scratch-" + out.name), lambda *_: None)


@pytest.fixture(scope="module")
def good(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path, HeadPlan]:
    folder = tmp_path_factory.mktemp("good")
    source = layouts.shards(folder / "source")
    return source, folder / "out", _make(source, folder / "out")


@pytest.fixture(scope="module")
def native(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path, HeadPlan]:
    folder = tmp_path_factory.mktemp("native")
    source = synthetic.build(folder / "source", "eagle3")
    plan = _make(source, folder / "out", head=False, ids=torch.arange(0, 256, 4), mtp=False)
    return source, folder / "out", plan


def _failed(report: VerifyReport) -> set[str]:
    return {check.id for check in report.checks if check.status is CheckStatus.FAIL}


@pytest.mark.parametrize("layout", layouts.LAYOUTS)
@pytest.mark.parametrize("tied", [False, True])
@pytest.mark.parametrize(("head", "ids"), [(True, VOCAB), (True, None), (False, VOCAB)])
def test_good_variants_pass(tmp_path: Path, layout: str, tied: bool, head: bool, ids: Tensor | None) -> None:
    source = layouts.LAYOUTS[layout](tmp_path / "source", tied=tied)
    identity, manifest = fingerprint(source), make_manifest(source)
    plan = _make(source, tmp_path / "out", head=head, ids=ids)
    report = verify_head(View(source, tmp_path / "out", plan, identity, manifest))
    assert _failed(report) == set()
    assert report.passed
    skipped = {check.id for check in report.checks if check.status is CheckStatus.SKIP}
    assert skipped == ({"draft-ids", "draft-rows"} if ids is None else set()) | (
        set() if head else {"head-geometry", "head-bits", "head-codes"}
    )
    assert HeadPlan.model_validate_json((tmp_path / "out" / "head.json").read_bytes()) == plan
    size = sum(value.nbytes for value in layouts.tensors(tmp_path / "out").values())
    assert plan.variant_bytes == size
    assert not head or plan.variant_bytes < plan.source_bytes or tied or ids is not None


def test_a_head_that_the_engine_would_not_read_packed_is_refused(tmp_path: Path) -> None:
    source = layouts.streamed(tmp_path / "source")
    _config(source, lambda document: document.update({"architectures": ["Qwen3NextForCausalLM"]}))
    with pytest.raises(ProblemError, match="head of Qwen3NextForCausalLM without a quantization config") as caught:
        _make(source, tmp_path / "out")
    assert caught.value.problem.slug == "head-refused"
    assert not (tmp_path / "out").exists()
    # A draft head is Draftmill's own.
    _make(source, tmp_path / "out", head=False)


def test_a_head_that_was_quantized_in_place_is_made_anew_from_its_backup(tmp_path: Path) -> None:
    source = layouts.shards(tmp_path / "source")
    index = json.loads((source / "model.safetensors.index.json").read_text())
    shard = source / index["weight_map"].pop("lm_head.weight")
    whole = load_file(shard)
    shard.rename(shard.with_name(shard.name + ".bak-orig"))
    del whole["lm_head.weight"]
    whole |= {
        "lm_head.weight_packed": torch.zeros(1024, 64, dtype=torch.int32),
        "lm_head.weight_scale": torch.ones(1024, 1, dtype=torch.bfloat16),
        "lm_head.weight_zero_point": torch.zeros(128, 1, dtype=torch.int32),
        "lm_head.weight_shape": torch.tensor([1024, 256]),
    }
    save_file(whole, shard)
    index["weight_map"] |= dict.fromkeys(whole, shard.name)
    (source / "model.safetensors.index.json").write_text(json.dumps(index))
    plan = _make(source, tmp_path / "out")
    assert plan.source_tensor == f"{shard.name}.bak-orig: lm_head.weight"
    assert "lm_head.weight_zero_point" in plan.removed
    report = verify_head(View(source, tmp_path / "out", plan))
    assert _failed(report) == set()
    found = layouts.tensors(tmp_path / "out")
    assert found["lm_head.weight_packed"].shape == (1024, 32)
    assert "lm_head.weight_zero_point" not in found
    assert not list((tmp_path / "out").glob("*.bak*"))


def test_a_good_native_drafter_passes(native: tuple[Path, Path, HeadPlan]) -> None:
    source, out, plan = native
    assert _failed(verify_head(View(source, out, plan))) == set()


def test_the_report_reads_as_lines(good: tuple[Path, Path, HeadPlan], tmp_path: Path) -> None:
    source, out, plan = good
    found = list(lines(verify_head(View(source, out, plan))))
    assert found[0].startswith("PASS head-shards: ")
    assert len(found) == len(CHECKS)
    shutil.copytree(out, tmp_path / "bad")
    (tmp_path / "bad" / "x.safetensors.bak").write_bytes(b"")
    found = list(lines(verify_head(View(source, tmp_path / "bad", plan))))
    assert found[:2] == [
        next(line for line in found if line.startswith("FAIL head-shards: ")),
        "     x.safetensors.bak: does not belong in a variant",
    ]


Change = Callable[[dict[str, Tensor]], None]


def _edit(out: Path, change: Change, file: str = EXTRA) -> None:
    stored = load_file(out / file)
    change(stored)
    (out / file).unlink()
    save_file({name: value.contiguous() for name, value in stored.items()}, out / file, metadata={"format": "pt"})
    write_index(out)


def _config(out: Path, change: Callable[[dict[str, object]], object], name: str = "config.json") -> None:
    document = json.loads((out / name).read_text())
    change(document)
    (out / name).write_text(json.dumps(document))


def _first_shard(out: Path) -> str:
    return next(path.name for path in sorted(out.glob("*.safetensors")) if "extra" not in path.name)


def _stale(out: Path) -> None:
    def add(stored: dict[str, Tensor]) -> None:
        stored["lm_head.weight"] = torch.zeros(1024, 256, dtype=torch.bfloat16)

    _edit(out, add)


def _twice(out: Path) -> None:
    _edit(out, lambda stored: stored.update({"model.norm.weight": torch.zeros(256, dtype=torch.bfloat16)}))


def _unlisted(out: Path) -> None:
    index = json.loads((out / "model.safetensors.index.json").read_text())
    del index["weight_map"]["lm_head.weight_scale"]
    (out / "model.safetensors.index.json").write_text(json.dumps(index))


def _flip(name: str, row: int = 5) -> Callable[[Path], None]:
    def change(stored: dict[str, Tensor]) -> None:
        stored[name] = stored[name].clone()
        stored[name][row] = stored[name][row] ^ 1 if not stored[name].is_floating_point() else stored[name][row] * 2

    return lambda out: _edit(out, change)


def _kept_changed(out: Path) -> None:
    def change(stored: dict[str, Tensor]) -> None:
        name = next(name for name in stored if name.endswith("norm.weight"))
        stored[name] = stored[name] + 1

    _edit(out, change, _first_shard(out))


def _set(name: str, value: Callable[[Tensor], Tensor]) -> Callable[[Path], None]:
    return lambda out: _edit(out, lambda stored: stored.update({name: value(stored[name])}))


def _zero_codes(rows: slice) -> Callable[[Path], None]:
    def change(stored: dict[str, Tensor]) -> None:
        # 0x88888888: eight codes of zero. The draft head's rows follow, so that they still agree.
        for name in ("lm_head.weight_packed", "mtp.draft_lm_head.weight_packed"):
            stored[name] = stored[name].clone()
        stored["lm_head.weight_packed"][rows] = -0x77777778
        stored["mtp.draft_lm_head.weight_packed"] = stored["lm_head.weight_packed"][VOCAB]

    return lambda out: _edit(out, change)


def _group(name: str, **weights: object) -> Callable[[Path], None]:
    def change(document: dict[str, object]) -> None:
        document["quantization_config"]["config_groups"][name]["weights"] |= weights

    return lambda out: _config(out, change)


def _reversed_groups(out: Path) -> None:
    def change(document: dict[str, object]) -> None:
        section = document["quantization_config"]
        section["config_groups"]["group_0"]["targets"] = ["re:.*lm_head$"]
        section["config_groups"] = dict(reversed(section["config_groups"].items()))

    _config(out, change)


def _ids(value: Callable[[Tensor], Tensor]) -> Callable[[Path], None]:
    """Ids and the configuration changed alike."""

    def change(out: Path) -> None:
        _set("mtp.draft_vocab_ids", value)(out)
        ids = load_file(out / EXTRA)["mtp.draft_vocab_ids"].tolist()
        _config(out, lambda document: document.update({"mtp_draft_vocab_ids": ids}))

    return change


MUTATIONS: dict[str, tuple[Callable[[Path], None], set[str]]] = {
    "a stale head in a listed shard": (_stale, {"head-names"}),
    "a tensor in two shards": (_twice, {"head-shards", *CHECKS} - {"head-source"}),
    "a tensor that the index does not name": (_unlisted, {*CHECKS} - {"head-source"}),
    "a backup left in the variant": (
        lambda out: (out / "a.safetensors.bak").write_bytes(b"") and None,
        {"head-shards"},
    ),
    "a shard left aside": (lambda out: (out / ".a.safetensors.aside").write_bytes(b"") and None, {"head-shards"}),
    "a draft head in part": (
        lambda out: _edit(out, lambda stored: stored.pop("mtp.draft_lm_head.weight_scale")),
        {"head-names", "head-geometry", "draft-rows"},
    ),
    "a kept tensor that changed": (_kept_changed, {"head-kept"}),
    "a weight_shape that lies": (
        _set("lm_head.weight_shape", lambda shape: shape - torch.tensor([1, 0])),
        {"head-geometry"},
    ),
    "a scale of zero": (
        _set("mtp.fc.weight_scale", lambda scale: scale * 0),
        {"head-geometry"},
    ),
    "a scale that is not finite": (
        _set("mtp.fc.weight_scale", lambda scale: scale * float("inf")),
        {"head-geometry"},
    ),
    "scales of another dtype": (
        _set("mtp.fc.weight_scale", lambda scale: scale.float()),
        {"head-names", "head-geometry"},
    ),
    "bits that the group does not say": (_group("draftmill_head", num_bits=8), {"head-bits"}),
    "a group size that was not used": (_group("draftmill_mtp", group_size=64), {"head-bits"}),
    "another group that matches first": (_reversed_groups, {"head-bits"}),
    "a head that is ignored": (
        lambda out: _config(out, lambda document: document["quantization_config"]["ignore"].append("re:.*lm_head")),
        {"head-bits"},
    ),
    "a sidecar that says otherwise": (
        lambda out: _config(out, lambda document: document.pop("config_groups"), "quantization_config.json"),
        {"head-bits"},
    ),
    "rows of zero codes": (_zero_codes(slice(3, 5)), {"head-codes"}),
    "all codes zero": (_zero_codes(slice(None)), {"head-codes"}),
    "draft rows of other tokens": (_flip("mtp.draft_lm_head.weight_packed"), {"draft-rows"}),
    "draft scales of other tokens": (_flip("mtp.draft_lm_head.weight_scale"), {"draft-rows"}),
    "ids of other tokens": (_ids(lambda ids: ids + 1), {"draft-ids", "draft-rows"}),
    "ids out of order": (_ids(lambda ids: ids.flip(0)), {"draft-ids", "draft-rows"}),
    "an id twice": (_ids(lambda ids: torch.cat([ids[:1], ids[:-1]])), {"draft-ids", "draft-rows"}),
    "an id beyond the vocabulary": (
        _ids(lambda ids: torch.cat([ids[:-1], torch.tensor([1024])])),
        {"draft-ids", "draft-rows"},
    ),
    "ids that the configuration does not repeat": (
        lambda out: _config(out, lambda document: document["mtp_draft_vocab_ids"].pop()),
        {"draft-ids"},
    ),
    "a size that is not the ids'": (
        lambda out: _config(out, lambda document: document.update({"mtp_draft_vocab_size": 7})),
        {"draft-ids"},
    ),
    "ids that are floats": (
        _set("mtp.draft_vocab_ids", lambda ids: ids.float()),
        {"head-names", "draft-ids", "draft-rows"},
    ),
    "a configuration that changed elsewhere": (
        lambda out: _config(out, lambda document: document.update({"rms_norm_eps": 1e-5})),
        {"head-config"},
    ),
}


@pytest.mark.parametrize("name", MUTATIONS)
def test_a_mutation_fails_its_check(good: tuple[Path, Path, HeadPlan], tmp_path: Path, name: str) -> None:
    source, out, plan = good
    shutil.copytree(out, tmp_path / "out")
    mutate, wanted = MUTATIONS[name]
    mutate(tmp_path / "out")
    report = verify_head(View(source, tmp_path / "out", plan))
    assert _failed(report) == wanted
    assert not report.passed


NATIVE: dict[str, tuple[Change, set[str]]] = {
    "d2t of other tokens": (lambda stored: stored.update(d2t=stored["d2t"] + 1), {"draft-ids", "draft-rows"}),
    "d2t as floats": (
        lambda stored: stored.update(d2t=stored["d2t"].float()),
        {"head-names", "draft-ids", "draft-rows"},
    ),
    "t2d that marks others": (lambda stored: stored.update(t2d=stored["t2d"].roll(1)), {"draft-rows"}),
    "rows of other tokens": (
        lambda stored: stored.update({"lm_head.weight": stored["lm_head.weight"].roll(1, 0)}),
        {"draft-rows"},
    ),
}


@pytest.mark.parametrize("name", NATIVE)
def test_a_native_mutation_fails_its_check(native: tuple[Path, Path, HeadPlan], tmp_path: Path, name: str) -> None:
    source, out, plan = native
    shutil.copytree(out, tmp_path / "out")
    _edit(tmp_path / "out", NATIVE[name][0])
    assert _failed(verify_head(View(source, tmp_path / "out", plan))) == NATIVE[name][1]


def test_a_source_that_changed_is_told(tmp_path: Path) -> None:
    source = layouts.streamed(tmp_path / "source")
    identity, manifest = fingerprint(source), make_manifest(source)
    plan = _make(source, tmp_path / "out")
    (source / "recipe.yaml").write_text("changed\n")
    assert _failed(verify_head(View(source, tmp_path / "out", plan, identity, manifest))) == {"head-source"}


def test_a_tied_variant_that_still_says_tied_is_told(tmp_path: Path) -> None:
    source = layouts.streamed(tmp_path / "source", tied=True)
    plan = _make(source, tmp_path / "out")
    _config(tmp_path / "out", lambda document: document.update({"tie_word_embeddings": True}))
    assert _failed(verify_head(View(source, tmp_path / "out", plan))) == {"head-config"}


def test_a_tied_variant_whose_draft_head_would_be_taken_for_its_head_is_told(tmp_path: Path) -> None:
    source = layouts.streamed(tmp_path / "source", tied=True)
    plan = _make(source, tmp_path / "out", head=False)
    held = load_file(tmp_path / "out" / EXTRA)
    del held["lm_head.weight"]
    save_file(held, tmp_path / "out" / EXTRA)
    write_index(tmp_path / "out")
    report = verify_head(View(source, tmp_path / "out", plan))
    assert _failed(report) == {"head-names", "draft-rows"}
    assert any("     lm_head.weight: is not stored: vLLM would take mtp" in line for line in lines(report))


def test_every_check_has_a_mutation() -> None:
    told = set().union(*(wanted for _, wanted in MUTATIONS.values() if len(wanted) < len(CHECKS) - 1))
    assert told | {"head-source"} == set(CHECKS)
