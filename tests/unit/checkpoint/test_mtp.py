"""MTP blocks in targets' checkpoints: recognised by tensors and configuration together, or refused by name."""

from pathlib import Path
from typing import Any

import pytest

from draftmill.plans import Family, Head
from draftmill.problems import ProblemError
from draftmill_worker.checkpoint import families
from draftmill_worker.checkpoint.checkpoint import open_checkpoint
from draftmill_worker.checkpoint.drafter import Drafter
from draftmill_worker.checkpoint.families import detect
from tests.fixtures import gemma4
from tests.unit.checkpoint.layouts import Layout
from tests.unit.checkpoint.targets import EXPERTS, deepseek_v3, glm4_moe, mimo, nemotron_h, qwen3_5, qwen3_next


def _read(layout: Layout, folder: Path) -> Drafter:
    return detect(open_checkpoint(layout.write(folder)))


def _refusal(layout: Layout, folder: Path) -> ProblemError:
    with pytest.raises(ProblemError) as caught:
        _read(layout, folder)
    return caught.value


@pytest.mark.parametrize(
    ("layout", "engine_class"),
    [
        (qwen3_5(), "Qwen3_5MTP"),
        (qwen3_5(multimodal=True), "Qwen3_5MTP"),
        (qwen3_5(layers=2), "Qwen3_5MTP"),
        (qwen3_next(), "Qwen3NextMTP"),
        (glm4_moe(), "Glm4MoeMTP"),
    ],
    ids=["qwen3_5", "multimodal", "two layers", "qwen3_next", "glm4_moe"],
)
def test_each_dialect(tmp_path: Path, layout: Layout, engine_class: str) -> None:
    drafter = _read(layout, tmp_path / "target")
    assert (drafter.family, drafter.head, drafter.engine_class) == (Family.MTP, Head.BORROWED, engine_class)
    assert drafter.target is not None
    block = {name for name in layout.tensors if name.startswith(("mtp.", "model.layers.2."))}
    assert drafter.target.block == block
    assert not drafter.warnings
    fused = {module.name.rpartition(".")[2]: module for module in drafter.modules}
    assert len(fused["qkv_proj"].members) == 3
    assert fused["qkv_proj"].keep is None


def test_experts_and_routers_stay(tmp_path: Path) -> None:
    modules = {module.name: module for module in _read(qwen3_next(), tmp_path / "target").modules}
    for name in (
        "mtp.layers.0.mlp.experts",
        "mtp.layers.0.mlp.gate",
        "mtp.layers.0.mlp.shared_expert_gate",
    ):
        assert modules[name].keep is not None
    assert modules["mtp.layers.0.mlp.shared_expert.gate_up_proj"].keep is None
    assert len(modules["mtp.layers.0.mlp.experts"].members) == 3 * EXPERTS


def test_glm_builds_a_head_of_its_own_before_it_takes_the_targets(tmp_path: Path) -> None:
    modules = {module.name: module for module in _read(glm4_moe(), tmp_path / "target").modules}
    assert modules["model.layers.2.head"].members == ()
    assert modules["model.layers.2.eh_proj"].keep is not None


@pytest.mark.parametrize("layout", [qwen3_5(layers=0), qwen3_5(layers=1, promised=2), glm4_moe(promised=2)])
def test_c2_promised_blocks_are_there(tmp_path: Path, layout: Layout) -> None:
    if "mtp.fc.weight" not in layout.tensors and "mtp_num_hidden_layers" in layout.config:
        layout.config["mtp_num_hidden_layers"] = 1
    problem = _refusal(layout, tmp_path / "target").problem
    assert problem.slug == "promised-layers-missing"
    assert any(".layers." in offender.where for offender in problem.offenders)


def test_c2_a_block_that_nobody_promised(tmp_path: Path) -> None:
    assert _refusal(qwen3_5(promised=0), tmp_path / "target").problem.slug == "shape-mismatch"


def test_a_target_without_a_block_is_no_drafter(tmp_path: Path) -> None:
    problem = _refusal(qwen3_5(layers=0), tmp_path / "target").problem
    assert problem.slug == "unknown-family"
    assert "without an MTP block" in problem.detail


@pytest.mark.parametrize("name", ["mtp.fc.weight", "mtp.layers.0.self_attn.o_proj.weight", "mtp.norm.weight"])
def test_missing_tensors_are_named(tmp_path: Path, name: str) -> None:
    problem = _refusal(qwen3_5().without(name), tmp_path / "target").problem
    assert (problem.slug, [offender.where for offender in problem.offenders]) == ("missing-tensors", [name])


def test_shapes_follow_the_language_models_part(tmp_path: Path) -> None:
    layout = qwen3_5(multimodal=True)
    layout.tensors["mtp.fc.weight"] = ("BF16", (8, 8))
    assert _refusal(layout, tmp_path / "target").problem.slug == "shape-mismatch"


def test_c26_mimo_is_refused_for_its_names(tmp_path: Path) -> None:
    problem = _refusal(mimo(), tmp_path / "target").problem
    assert problem.slug == "family-not-quantizable"
    assert "names of the target" in problem.detail


@pytest.mark.parametrize(
    ("layout", "words"),
    [
        (deepseek_v3(), "kv_a_proj_with_mqa"),
        (deepseek_v3("DeepseekV32ForCausalLM"), "kv_a_proj_with_mqa"),
        (nemotron_h(), "mtp_hybrid_override_pattern"),
    ],
    ids=["deepseek_v3", "deepseek_v32", "nemotron_h"],
)
def test_blocks_that_are_not_planned_are_refused_by_name(tmp_path: Path, layout: Layout, words: str) -> None:
    problem = _refusal(layout, tmp_path / "target").problem
    assert problem.slug == "unknown-family"
    assert words in problem.detail
    assert [offender.where for offender in problem.offenders] == ["config.json: architectures"]


def test_deepseek_without_its_block_is_no_drafter(tmp_path: Path) -> None:
    layout = deepseek_v3()
    layout.config["num_nextn_predict_layers"] = 0
    names = [name for name in layout.tensors if name.startswith("model.layers.2.")]
    problem = _refusal(layout.without(*names), tmp_path / "target").problem
    assert problem.slug == "unknown-family"
    assert "without an MTP block" in problem.detail


@pytest.mark.parametrize("ordered", [False, True])
def test_gemma4_assistants_are_refused_by_name(tmp_path: Path, ordered: bool) -> None:
    """The folder that the engine serves in tests/e2e."""
    pair = gemma4.build(tmp_path, assistant={"use_ordered_embeddings": ordered})
    with pytest.raises(ProblemError) as caught:
        detect(open_checkpoint(pair.assistant))
    problem = caught.value.problem
    assert problem.slug == "unknown-family"
    assert "a Gemma4 assistant" in problem.detail
    assert [offender.where.rpartition(" ")[2] for offender in problem.offenders] == ["model_type"] + [
        "use_ordered_embeddings"
    ] * ordered


@pytest.mark.parametrize("architectures", [None, 3, [None], ["Other"]])
def test_other_configurations_are_not_for_this_reader(tmp_path: Path, architectures: Any) -> None:
    layout = qwen3_5()
    layout.config["architectures"] = architectures
    problem = _refusal(layout, tmp_path / "target").problem
    assert problem.slug in {"unknown-family", "malformed-config"}


def test_only_the_files_with_the_block_are_bounded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    layout = qwen3_5()
    block = sum(name.startswith("mtp.") for name in layout.tensors)
    assert len(layout.tensors) > block
    monkeypatch.setattr(families, "MAX_TENSORS", block)
    assert _refusal(layout, tmp_path / "one").problem.slug == "too-many-tensors"
    assert detect(open_checkpoint(layout.write_apart(tmp_path / "apart"))).family is Family.MTP
