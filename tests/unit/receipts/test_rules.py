"""Every rule: a good receipt keeps it, and a receipt that breaks it alone fails by its name."""

from collections.abc import Callable
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

from draftmill.benchmarks import ArmName, Counts
from draftmill.formats import Format
from draftmill.plans import Family
from draftmill.receipts import DraftMapRecord, EngineView, Phase
from draftmill_worker.receipts.rules import RULES
from tests.unit.checkpoint.layouts import HIDDEN, VOCAB, dflash, eagle3
from tests.unit.receipts.good import SCALE, SHA, START, Good, alone, good, manifest
from tests.unit.receipts.test_draft_head import RULES_OF_IT as RULES_OF_DRAFT_HEADS

SENTINEL = -3.4028234663852886e38
FAMILIES = (Family.EAGLE3, Family.DFLASH, Family.DSPARK, Family.DRAFT_MODEL)


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("format", [None, *Format])
def test_good_receipts_keep_every_rule(tmp_path: Path, family: Family, format: Format | None) -> None:
    assert good(tmp_path, family, format).failed() == {}


def test_a_medusa_control_and_the_target_alone_keep_every_rule(tmp_path: Path) -> None:
    assert good(tmp_path, Family.MEDUSA, None).failed() == {}
    assert alone(good(tmp_path / "other")).failed() == {}


def test_the_view_that_these_tests_use_has_the_names_of_the_engine(tmp_path: Path) -> None:
    view = good(tmp_path).receipt.view
    assert view is not None
    # As llama_eagle3.py of vLLM 0.32 builds them beside a target of 8 layers.
    assert {(module.name, module.prefix) for module in view.modules} == {
        ("model.fc", "model.fc"),
        ("model.layers.0.self_attn.qkv_proj", "model.layers.8.self_attn.qkv_proj"),
        ("model.layers.0.self_attn.o_proj", "model.layers.8.self_attn.o_proj"),
        ("model.layers.0.mlp.gate_up_proj", "model.layers.8.mlp.gate_up_proj"),
        ("model.layers.0.mlp.down_proj", "model.layers.8.mlp.down_proj"),
        ("lm_head", "lm_head"),
    }


def _scale(**facts: Any) -> dict[str, dict[str, Any]]:
    return {"weight_scale": SCALE | facts, "input_scale": dict(SCALE)}


def _counts(drafts: int = 100, tokens: int = 300, accepted: int = 150, by: tuple[int, ...] = (80, 50, 20)) -> Counts:
    return Counts(drafts=drafts, draft_tokens=tokens, accepted=accepted, accepted_per_position=by)


def _phases(good: Good, *names: Phase) -> Good:
    return good.receive(phases=tuple(phase for phase in good.receipt.phases if phase.name in names))


def _files(good: Good) -> Good:
    assert good.receipt.drafter is not None
    files = tuple(file.model_copy(update={"sha256": "0" * 64}) for file in good.receipt.drafter.files)
    return good.receive(drafter=good.receipt.drafter.model_copy(update={"files": files}))


def _without(view: EngineView, ending: str) -> EngineView:
    kept = tuple(module for module in view.modules if not module.name.endswith(ending))
    assert len(kept) == len(view.modules) - 1
    return view.model_copy(update={"modules": kept})


BREAKS: dict[str, tuple[str, Callable[[Good], Good]]] = {
    "run-complete: no output": ("run-complete", lambda g: g.receive(output_sha256=None)),
    "run-complete: never measured": ("run-complete", lambda g: _phases(g, Phase.LOADED, Phase.EXITED)),
    "run-complete: out of order": (
        "run-complete",
        lambda g: g.receive(
            phases=(
                *g.receipt.phases[:-1],
                g.receipt.phases[-1].model_copy(update={"at": START - timedelta(seconds=9)}),
            )
        ),
    ),
    "engine-identified: no engine": ("engine-identified", lambda g: g.receive(engine_build="none")),
    "engine-identified: no versions": ("engine-identified", lambda g: g.receive(versions={"python": "3.11.7"})),
    "engine-identified: no configuration": ("engine-identified", lambda g: g.receive(engine_config={})),
    "drafts-counted: C36 nothing drafted": ("drafts-counted", lambda g: g.receive(counts=_counts(0, 0, 0, ()))),
    "drafts-counted: C56 not counted": ("drafts-counted", lambda g: g.receive(counts=None)),
    "drafts-counted: more than asked for": ("drafts-counted", lambda g: g.receive(counts=_counts(tokens=301))),
    "drafts-counted: does not add up": ("drafts-counted", lambda g: g.receive(counts=_counts(by=(80, 50, 19)))),
    "drafts-counted: a position out of order": ("drafts-counted", lambda g: g.receive(counts=_counts(by=(50, 80, 20)))),
    "proposer-expected: another class": ("proposer-expected", lambda g: g.see(proposer="NgramProposer")),
    "proposer-expected: another drafter": ("proposer-expected", lambda g: g.see(drafter_class="LlamaForCausalLM")),
    "proposer-expected: another method": (
        "proposer-expected",
        lambda g: g.receive(speculative_config={"method": "eagle", "num_speculative_tokens": 3}),
    ),
    "modules-recorded: one was not seen": (
        "modules-recorded",
        lambda g: g.receive(view=_without(_view(g), "down_proj")),
    ),
    "quantized-as-planned: C9 the engine keeps it": (
        "quantized-as-planned",
        lambda g: g.change("down_proj", method="UnquantizedLinearMethod", weight_dtype="torch.bfloat16", scales={}),
    ),
    "quantized-as-planned: C31 activations too": (
        "quantized-as-planned",
        lambda g: g.change("down_proj", scheme={"weight": _scheme(g)["weight"], "activation": "QuantKey(u8)"}),
    ),
    "quantized-as-planned: no scheme": ("quantized-as-planned", lambda g: g.change("down_proj", scheme={})),
    "quantized-as-planned: no kernel": ("quantized-as-planned", lambda g: g.change("down_proj", kernel=None)),
    "quantized-as-planned: another dtype": (
        "quantized-as-planned",
        lambda g: g.change("down_proj", weight_dtype="torch.bfloat16"),
    ),
    "kept-as-planned: C20 the engine quantizes it": (
        "kept-as-planned",
        lambda g: g.change(
            "lm_head", method="ModelOptLinearMethod", weight_dtype="torch.float8_e4m3fn", scales=_scale()
        ),
    ),
    "kept-as-planned: stored in fewer bits": (
        "kept-as-planned",
        lambda g: g.change("lm_head", weight_dtype="torch.float8_e4m3fn"),
    ),
    "scales-sound: on the sentinel": (
        "scales-sound",
        lambda g: g.change("down_proj", scales=_scale(min=SENTINEL, max=SENTINEL, sentinel=True)),
    ),
    "scales-sound: not finite": (
        "scales-sound",
        lambda g: g.change("down_proj", scales=_scale(min="NaN", max="NaN", finite=False)),
    ),
    "scales-sound: zero": ("scales-sound", lambda g: g.change("down_proj", scales=_scale(min=0.0))),
    "scales-sound: C73 one is missing": (
        "scales-sound",
        lambda g: g.change("down_proj", scales={"weight_scale": dict(SCALE)}),
    ),
    "scales-sound: not examined": (
        "scales-sound",
        lambda g: g.change("down_proj", scales=_scale() | {"weight_scale": {"min": 1.0, "max": 1.0}}),
    ),
    "head-as-planned: the target's": ("head-as-planned", lambda g: g.head(shares_target_head=True)),
    "head-as-planned: quantized": ("head-as-planned", lambda g: g.head(method="ModelOptLinearMethod")),
    "head-as-planned: not finite": ("head-as-planned", lambda g: g.head(finite=False)),
    "head-as-planned: too small": ("head-as-planned", lambda g: g.head(shape=(32, 32))),
    "head-as-planned: not seen": ("head-as-planned", lambda g: g.see(head=None)),
    "embedding-as-stored: its own": ("embedding-as-stored", lambda g: g.see(embedding=None)),
    "draft-map-as-stored: none in the engine": ("draft-map-as-stored", lambda g: g.see(draft_map=None)),
    "draft-map-as-stored: another": (
        "draft-map-as-stored",
        lambda g: g.see(draft_map=DraftMapRecord(size=64, sha256="0" * 64)),
    ),
    "draft-map-as-stored: none in the checkpoint": ("draft-map-as-stored", lambda g: g.expect(draft_map_sha256=None)),
    "target-unchanged: changed": ("target-unchanged", lambda g: g.see(target_digest_after="0" * 64)),
    "target-unchanged: not examined": (
        "target-unchanged",
        lambda g: g.see(target_digest_before=None, target_digest_after=None),
    ),
    "target-unquantized: C9 a module of it is": (
        "target-unquantized",
        lambda g: g.expect(embedded=True).see(target_methods={"UnquantizedLinearMethod": 7, "ModelOptLinearMethod": 1}),
    ),
    "target-unquantized: not recorded": ("target-unquantized", lambda g: g.expect(embedded=True)),
    "files-as-given: C66 other bytes": ("files-as-given", _files),
    "files-as-given: another file": (
        "files-as-given",
        lambda g: g.receive(target=g.receipt.target.model_copy(update={"files": manifest("config.json").files})),
    ),
    "commits-recorded: C52 none": (
        "commits-recorded",
        lambda g: g.receive(target=g.receipt.target.model_copy(update={"commit": None})),
    ),
    "commits-recorded: another variant": (
        "commits-recorded",
        lambda g: g.receive(drafter=g.receipt.drafter and g.receipt.drafter.model_copy(update={"variant": "0" * 64})),
    ),
    "no-secret: not on the list": ("no-secret", lambda g: g.receive(environment={"HOME": "somewhere"})),
    "no-secret: by its name": ("no-secret", lambda g: g.receive(environment={"VLLM_API_KEY": "plain"})),
    "no-secret: by its look": (
        "no-secret",
        lambda g: g.receive(engine_config={"a": [{"b": "x hf_0123456789abcdefghij y"}]}),
    ),
    "emulation-declared: kept quiet": (
        "emulation-declared",
        lambda g: g.change("down_proj", kernel="EmulationNvFp4LinearKernel"),
    ),
    "emulation-declared: claimed": ("emulation-declared", lambda g: g.receive(emulated=True, plugins=("emulation.x",))),
}


def _view(good: Good) -> EngineView:
    assert good.receipt.view is not None
    return good.receipt.view


def _scheme(good: Good) -> dict[str, str | None]:
    return next(module.scheme for module in _view(good).modules if module.name.endswith("down_proj"))


@pytest.mark.parametrize("name", BREAKS)
def test_a_receipt_that_breaks_one_rule_fails_by_its_name(tmp_path: Path, name: str) -> None:
    rule, spoil = BREAKS[name]
    failed = spoil(good(tmp_path)).failed()
    assert list(failed) == [rule]
    assert failed[rule].offenders


def test_medusa_is_refused_with_a_plan_alone(tmp_path: Path) -> None:
    control = good(tmp_path / "medusa", Family.MEDUSA, None)
    plan = good(tmp_path / "eagle3").expected.plan
    assert "medusa-unquantized" in control.expect(plan=plan).failed()
    assert "medusa-unquantized" not in control.failed()


@pytest.mark.parametrize(
    ("family", "plugins"),
    [
        (Family.DFLASH, ()),
        (Family.DSPARK, ("dspark.model_runner",)),
        (Family.DSPARK, ("rmsnorm2d.rms_norm",)),
    ],
)
def test_known_faults_of_the_cpu_engine_must_be_mended(
    tmp_path: Path, family: Family, plugins: tuple[str, ...]
) -> None:
    receipt = good(tmp_path, family)
    assert list(receipt.receive(plugins=plugins).failed()) == ["faults-mended"]
    on_gpu = receipt.receipt.host.model_copy(update={"gpus": ("H200",)})
    assert receipt.receive(plugins=plugins, host=on_gpu).failed() == {}


def test_emulated_kernels_on_a_cpu_come_from_the_plugin(tmp_path: Path) -> None:
    receipt = good(tmp_path, format=Format.NVFP4)
    assert list(receipt.receive(plugins=()).failed()) == ["emulation-declared"]


def test_rules_have_each_a_test() -> None:
    elsewhere = RULES_OF_DRAFT_HEADS | {"medusa-unquantized", "faults-mended"}
    assert {rule for rule, _ in BREAKS.values()} | elsewhere == RULES.keys()


READ_THE_VIEW = {
    "proposer-expected",
    "modules-recorded",
    "quantized-as-planned",
    "kept-as-planned",
    "scales-sound",
    "head-as-planned",
    "embedding-as-stored",
    "draft-map-as-stored",
    "target-unchanged",
    "emulation-declared",
}


def test_rules_fail_closed_without_a_view(tmp_path: Path) -> None:
    assert good(tmp_path).receive(view=None).failed().keys() == READ_THE_VIEW


def test_rules_fail_closed_without_the_drafters_checkpoint(tmp_path: Path) -> None:
    failed = good(tmp_path).expect(drafter=None, drafter_files=None).failed()
    assert {"proposer-expected", "modules-recorded", "files-as-given"} <= failed.keys()


def test_c3_the_ignore_name_trap_names_every_module(tmp_path: Path) -> None:
    receipt = good(tmp_path, exclude=["*self_attn*"])
    modules = tuple(
        module.model_copy(
            update={"method": "ModelOptLinearMethod", "weight_dtype": "torch.float8_e4m3fn", "scales": _scale()}
        )
        for module in _view(receipt).modules
    )
    failed = receipt.see(modules=modules).failed()
    assert [offender.where for offender in failed["kept-as-planned"].offenders] == [
        name for name in ("midlayer.self_attn.qkv_proj", "midlayer.self_attn.o_proj", "lm_head") for _ in range(2)
    ]


@pytest.mark.parametrize("family", FAMILIES)
def test_modules_are_known_by_either_name_where_the_engine_recorded_no_prefix(tmp_path: Path, family: Family) -> None:
    receipt = good(tmp_path, family)
    bare = tuple(module.model_copy(update={"prefix": None}) for module in _view(receipt).modules)
    assert receipt.see(modules=bare).failed() == {}
    asked = tuple(
        module.model_copy(update={"name": module.prefix, "prefix": None}) for module in _view(receipt).modules
    )
    assert receipt.see(modules=asked).failed() == {}


def test_a_quantized_module_that_nobody_planned_is_an_offender(tmp_path: Path) -> None:
    receipt = good(tmp_path)
    stranger = (
        _view(receipt)
        .modules[0]
        .model_copy(
            update={
                "name": "model.extra",
                "prefix": "model.extra",
                "method": "ModelOptLinearMethod",
                "scales": _scale(),
            }
        )
    )
    failed = receipt.see(modules=(*_view(receipt).modules, stranger)).failed()
    assert list(failed) == ["kept-as-planned"]
    assert failed["kept-as-planned"].offenders[0].where == "model.extra"


def test_a_quantized_head_may_have_zero_scales_on_rows_that_pad_it(tmp_path: Path) -> None:
    receipt = good(tmp_path, lm_head=True)
    assert receipt.failed() == {}
    assert receipt.change("lm_head", scales=_scale(min=0.0)).failed() == {}
    assert list(receipt.head(scale_positive=None).failed()) == ["head-as-planned"]
    assert list(receipt.head(method="UnquantizedLinearMethod").failed()) == ["head-as-planned"]


def test_a_borrowed_head_is_the_targets_and_may_be_quantized(tmp_path: Path) -> None:
    receipt = good(tmp_path, layout=dflash())
    quantized = receipt.head(method="ModelOptLinearMethod", dtype="torch.uint8")
    quantized = quantized.change("lm_head", method="ModelOptLinearMethod", weight_dtype="torch.uint8", scales=_scale())
    assert "kept-as-planned" not in quantized.failed()
    assert "head-as-planned" not in quantized.failed()
    assert list(receipt.head(shares_target_head=False).failed()) == ["head-as-planned"]


def test_marlin_packs_weights_into_int32(tmp_path: Path) -> None:
    receipt = good(tmp_path, format=Format.W4A16_NVFP4)
    marlin = receipt.change("down_proj", kernel="MarlinNvFp4LinearKernel", weight_dtype="torch.int32")
    assert "quantized-as-planned" not in marlin.failed()
    other = receipt.change("down_proj", weight_dtype="torch.int32")
    assert "quantized-as-planned" in other.failed()


def test_an_untrimmed_vocabulary_needs_no_map(tmp_path: Path) -> None:
    receipt = good(
        tmp_path, layout=eagle3(draft_vocab_size=VOCAB).add({"lm_head.weight": (VOCAB, HIDDEN)}).without("d2t", "t2d")
    )
    assert receipt.failed() == {}


def test_the_target_alone_must_not_draft(tmp_path: Path) -> None:
    receipt = alone(good(tmp_path))
    assert list(receipt.receive(counts=_counts()).failed()) == ["drafts-counted"]
    assert list(receipt.see(drafter_class="Eagle3LlamaForCausalLM").failed()) == ["proposer-expected"]


def test_a_model_from_a_folder_has_no_commit(tmp_path: Path) -> None:
    receipt = good(tmp_path)
    given = receipt.expected.target
    local = receipt.expect(target=type(given)(given.manifest, None, from_repo=False))
    assert list(local.failed()) == ["commits-recorded"]
    without = receipt.receipt.target.model_copy(update={"commit": None})
    assert local.receive(target=without).failed() == {}


def test_failed_rules_come_first(tmp_path: Path) -> None:
    from draftmill_worker.receipts.rules import validate

    spoiled = good(tmp_path).receive(engine_build="", arm=ArmName.VARIANT, output_sha256=None)
    results = validate(spoiled.receipt, spoiled.expected)
    assert [result.rule for result in results if not result.passed] == ["run-complete", "engine-identified"]
    assert [result.passed for result in results] == sorted(result.passed for result in results)
    assert len(results) == len(RULES)
    assert spoiled.receipt.prompts_sha256 == SHA
