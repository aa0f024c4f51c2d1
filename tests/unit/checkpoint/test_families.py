from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from draftmill.plans import Family, Head
from draftmill.problems import Problem, ProblemError
from draftmill_worker.checkpoint.checkpoint import open_checkpoint
from draftmill_worker.checkpoint.families import MAX_TENSORS, detect
from tests.unit.checkpoint.layouts import (
    DRAFT_VOCAB,
    HIDDEN,
    KV,
    VOCAB,
    Layout,
    Q,
    dflash,
    dflash2,
    draft_model,
    dspark,
    eagle,
    eagle3,
    gemma4_dspark,
    medusa,
    speculators,
    stack,
)


def _problem(layout: Layout, folder: Path) -> Problem:
    with pytest.raises(ProblemError) as caught:
        layout.open(folder)
    return caught.value.problem


def _wheres(problem: Problem) -> list[str]:
    return [offender.where for offender in problem.offenders]


RECOGNISED: dict[str, tuple[Callable[[], Layout], Family, str, Head, str]] = {
    "eagle": (eagle, Family.EAGLE, "eagle flat", Head.BORROWED, "EagleLlamaForCausalLM"),
    "eagle named": (
        lambda: eagle(layers=2, architectures=["EagleLlamaForCausalLM"], model_type="eagle"),
        Family.EAGLE,
        "eagle flat",
        Head.BORROWED,
        "EagleLlamaForCausalLM",
    ),
    "eagle nested": (
        lambda: eagle(nested=True),
        Family.EAGLE,
        "eagle nested",
        Head.BORROWED,
        "EagleLlamaForCausalLM",
    ),
    "eagle without embedding": (
        lambda: eagle().without("embed_tokens.weight"),
        Family.EAGLE,
        "eagle flat",
        Head.BORROWED,
        "EagleLlamaForCausalLM",
    ),
    "eagle3 midlayer": (eagle3, Family.EAGLE3, "midlayer", Head.OWN, "Eagle3LlamaForCausalLM"),
    "eagle3 layers": (lambda: eagle3(prefix=None), Family.EAGLE3, "layers", Head.OWN, "Eagle3LlamaForCausalLM"),
    "eagle3 two layers": (lambda: eagle3(layers=2), Family.EAGLE3, "layers", Head.OWN, "Eagle3LlamaForCausalLM"),
    "eagle3 qwen3": (lambda: eagle3(qwen3=True), Family.EAGLE3, "midlayer", Head.OWN, "Eagle3Qwen3ForCausalLM"),
    "eagle3 speculators": (
        lambda: speculators(eagle3(prefix=None), "eagle3"),
        Family.EAGLE3,
        "speculators",
        Head.OWN,
        "Eagle3LlamaForCausalLM",
    ),
    "dflash": (dflash, Family.DFLASH, "dflash_config nested", Head.BORROWED, "DFlashQwen3ForCausalLM"),
    "dflash speculators": (
        lambda: speculators(dflash(), "dflash"),
        Family.DFLASH,
        "speculators",
        Head.BORROWED,
        "DFlashQwen3ForCausalLM",
    ),
    "dflash2": (dflash2, Family.DFLASH, "dflash_config nested", Head.BORROWED, "DFlash2Qwen3ForCausalLM"),
    "dflash2 speculators": (
        lambda: speculators(dflash2(architectures=None), "dflash2"),
        Family.DFLASH,
        "speculators",
        Head.BORROWED,
        "DFlash2Qwen3ForCausalLM",
    ),
    "dspark": (dspark, Family.DSPARK, "dflash_config at top level", Head.BORROWED, "Qwen3DSparkForCausalLM"),
    "dspark speculators": (
        lambda: speculators(dspark(), "dspark"),
        Family.DSPARK,
        "speculators",
        Head.BORROWED,
        "Qwen3DSparkForCausalLM",
    ),
    "gemma4 dspark": (gemma4_dspark, Family.DSPARK, "gemma4", Head.BORROWED, "Gemma4DSparkForCausalLM"),
    "draft_model": (draft_model, Family.DRAFT_MODEL, "transformers", Head.OWN, "LlamaForCausalLM"),
    "draft_model tied": (
        lambda: draft_model(tied=True),
        Family.DRAFT_MODEL,
        "transformers",
        Head.TIED,
        "LlamaForCausalLM",
    ),
    "draft_model qwen3": (
        lambda: draft_model(architecture="Qwen3ForCausalLM"),
        Family.DRAFT_MODEL,
        "transformers",
        Head.OWN,
        "Qwen3ForCausalLM",
    ),
    "medusa": (medusa, Family.MEDUSA, "medusa", Head.OWN, "Medusa"),
}


def test_more_tensors_than_a_plan_holds_are_refused(tmp_path: Path) -> None:
    checkpoint = open_checkpoint(eagle3().write(tmp_path))
    one = checkpoint.tensors["norm.weight"]
    more = {f"x{number}": one for number in range(MAX_TENSORS)}
    with pytest.raises(ProblemError, match=f"at most {MAX_TENSORS} are planned") as caught:
        detect(replace(checkpoint, tensors=checkpoint.tensors | more))
    problem = caught.value.problem
    assert (problem.slug, problem.offenders[0].value) == ("too-many-tensors", len(checkpoint.tensors) + MAX_TENSORS)


@pytest.mark.parametrize(("make", "family", "dialect", "head", "engine"), RECOGNISED.values(), ids=RECOGNISED.keys())
def test_families_are_recognised(
    tmp_path: Path, make: Callable[[], Layout], family: Family, dialect: str, head: Head, engine: str
) -> None:
    layout = make()
    _, drafter = layout.open(tmp_path)
    assert (drafter.family, drafter.dialect, drafter.head, drafter.engine_class) == (family, dialect, head, engine)
    assert drafter.config == layout.config
    assert drafter.hidden_size == HIDDEN
    assert drafter.vocab_size == VOCAB


@pytest.mark.parametrize("make", [dflash, dspark, lambda: speculators(dflash(), "dflash")])
def test_block_drafters_are_normalised(tmp_path: Path, make: Callable[[], Layout]) -> None:
    layout = make()
    _, drafter = layout.open(tmp_path)
    assert drafter.target_layer_ids == (1, 3, 5)
    assert drafter.mask_token_id == 1
    assert drafter.block_size == layout.config["block_size"]
    assert drafter.target_num_layers == 8


def test_c75_both_generations_of_dflash_configs(tmp_path: Path) -> None:
    older = dflash(dflash_config=None, target_layer_ids=[1, 3, 5], mask_token_id=1, block_size=16)
    newer = dflash(block_size=None, dflash_config={"target_layer_ids": [1, 3, 5], "mask_token_id": 1, "block_size": 16})
    _, first = older.open(tmp_path / "older")
    _, second = newer.open(tmp_path / "newer")
    assert (first.dialect, second.dialect) == ("dflash_config at top level", "dflash_config nested")
    for drafter in (first, second):
        assert (drafter.target_layer_ids, drafter.mask_token_id, drafter.block_size) == ((1, 3, 5), 1, 16)
    assert first.config == older.config
    assert any("V1 runner" in warning for warning in first.warnings)
    assert second.warnings == ()


def test_c75_generations_that_disagree(tmp_path: Path) -> None:
    problem = _problem(dflash(target_layer_ids=[1, 3, 6]), tmp_path)
    assert problem.slug == "malformed-config"
    assert "top level [1, 3, 6]" in problem.offenders[0].message


@pytest.mark.parametrize(
    "make",
    [
        lambda: dflash(dflash_config={"mask_token_id": 1}),
        lambda: dflash(dflash_config={"target_layer_ids": []}),
        lambda: dspark(target_layer_ids=None),
    ],
)
def test_c15_target_layer_ids_are_required(tmp_path: Path, make: Callable[[], Layout]) -> None:
    problem = _problem(make(), tmp_path)
    assert problem.slug == "target-layers-missing"
    assert _wheres(problem) == ["config.json: target_layer_ids"]


@pytest.mark.parametrize("make", [dflash, dspark, eagle3])
def test_c15_fc_must_take_as_many_layers_as_are_named(tmp_path: Path, make: Callable[[], Layout]) -> None:
    problem = _problem(make().add({"fc.weight": (HIDDEN, 4 * HIDDEN)}), tmp_path)
    assert (problem.slug, _wheres(problem)) == ("shape-mismatch", ["fc.weight"])


def test_c15_target_hidden_size_counts_for_fc(tmp_path: Path) -> None:
    layout = dflash(target_hidden_size=2 * HIDDEN)
    assert _problem(layout, tmp_path).slug == "shape-mismatch"
    layout.add({"fc.weight": (HIDDEN, 6 * HIDDEN)}).open(tmp_path)


def test_c15_layers_beyond_the_target(tmp_path: Path) -> None:
    problem = _problem(dflash(num_target_layers=5), tmp_path)
    assert (problem.slug, _wheres(problem)) == ("shape-mismatch", ["config.json: target_layer_ids"])


@pytest.mark.parametrize("config", [None, {}, {"eagle_aux_hidden_state_layer_ids": []}])
def test_eagle3_without_named_layers_taps_the_engines_defaults(tmp_path: Path, config: dict[str, Any] | None) -> None:
    _, drafter = eagle3(eagle_config=config).open(tmp_path)
    assert drafter.target_layer_ids is None
    assert any("defaults" in warning for warning in drafter.warnings)


@pytest.mark.parametrize("make", [lambda: eagle3(layers=2), dflash, dspark, draft_model])
def test_c2_promised_layers_are_there(tmp_path: Path, make: Callable[[], Layout]) -> None:
    layout = make()
    layout.config["num_hidden_layers"] = 4
    problem = _problem(layout, tmp_path)
    assert problem.slug == "promised-layers-missing"
    assert _wheres(problem) == ["layer 2", "layer 3"]


def _layer_as(layout: Layout, prefix: str) -> Layout:
    """A further layer under another prefix, of the shapes of layer 1."""
    layer = {name: kind for name, kind in layout.tensors.items() if name.startswith("model.layers.1.")}
    layout.tensors |= {name.replace("model.layers.1", prefix): kind for name, kind in layer.items()}
    return layout


@pytest.mark.parametrize("key", ["num_nextn_predict_layers", "mtp_num_hidden_layers"])
@pytest.mark.parametrize("prefix", ["mtp.layers", "model.mtp_layers", "model.layers"])
def test_c2_promised_predicting_layers_are_there(tmp_path: Path, key: str, prefix: str) -> None:
    layout = draft_model()
    layout.config[key] = 2
    problem = _problem(layout, tmp_path)
    assert (problem.slug, _wheres(problem)) == ("promised-layers-missing", ["layer 2"])
    first = 2 if prefix == "model.layers" else 0
    problem = _problem(_layer_as(layout, f"{prefix}.{first}"), tmp_path)
    assert (problem.slug, _wheres(problem)) == ("promised-layers-missing", ["layer 3"])
    _layer_as(layout, f"{prefix}.{first + 1}").open(tmp_path)


def test_c2_a_part_of_a_predicting_block_is_none(tmp_path: Path) -> None:
    layout = draft_model(num_nextn_predict_layers=1).add({"mtp.fc.weight": (HIDDEN, 2 * HIDDEN)})
    assert _problem(layout, tmp_path).slug == "promised-layers-missing"


def test_c2_more_predicting_layers_than_promised(tmp_path: Path) -> None:
    layout = _layer_as(_layer_as(draft_model(num_nextn_predict_layers=1), "model.layers.2"), "model.layers.3")
    problem = _problem(layout, tmp_path)
    assert (problem.slug, _wheres(problem)) == ("shape-mismatch", ["model.layers.3"])


def test_c2_medusa_heads_are_there(tmp_path: Path) -> None:
    layout = medusa(3)
    layout.config["medusa_num_heads"] = 5
    assert _wheres(_problem(layout, tmp_path)) == ["head 3", "head 4"]


def test_a_layer_beyond_the_promise_is_a_contradiction(tmp_path: Path) -> None:
    layout = dflash(layers=3)
    layout.config["num_hidden_layers"] = 2
    assert _wheres(_problem(layout, tmp_path)) == ["layers.2"]


def test_c10_announced_head_that_is_not_stored(tmp_path: Path) -> None:
    layout = eagle3(draft_vocab_size=VOCAB).without("lm_head.weight", "d2t", "t2d")
    problem = _problem(layout, tmp_path)
    assert (problem.slug, _wheres(problem)) == ("head-ambiguous", ["lm_head.weight"])


def test_c10_borrowed_head_of_a_full_vocabulary(tmp_path: Path) -> None:
    layout = eagle3(draft_vocab_size=None).without("lm_head.weight", "d2t", "t2d")
    _, drafter = layout.open(tmp_path / "plain")
    assert drafter.head is Head.BORROWED
    layout.config |= {"draft_vocab_size": VOCAB, "has_lm_head": False}
    _, drafter = layout.open(tmp_path / "said")
    assert drafter.head is Head.BORROWED


@pytest.mark.parametrize("make", [dflash, dspark])
def test_c10_own_heads_of_block_drafters(tmp_path: Path, make: Callable[[], Layout]) -> None:
    _, drafter = make().add({"lm_head.weight": (VOCAB, HIDDEN)}).open(tmp_path)
    assert drafter.head is Head.OWN
    assert drafter.lm_head_refusal is not None


def test_c10_trimmed_vocabulary_cannot_borrow(tmp_path: Path) -> None:
    problem = _problem(eagle3().without("lm_head.weight"), tmp_path)
    assert (problem.slug, _wheres(problem)) == ("head-ambiguous", ["lm_head.weight"])


@pytest.mark.parametrize(
    ("config", "own"),
    [({"has_lm_head": False}, True), ({"has_own_lm_head": True}, False), ({"has_lm_head": True}, False)],
)
def test_c10_config_and_weights_disagree_about_the_head(tmp_path: Path, config: dict[str, Any], own: bool) -> None:
    layout = dflash(**config)
    if own:
        layout.add({"lm_head.weight": (VOCAB, HIDDEN)})
    assert _problem(layout, tmp_path).slug == "head-ambiguous"


def test_c10_draft_model_without_any_head(tmp_path: Path) -> None:
    assert _problem(draft_model().without("lm_head.weight"), tmp_path).slug == "head-ambiguous"


def test_c10_tied_to_whose_embedding(tmp_path: Path) -> None:
    layout = dflash(tie_word_embeddings=True)
    _, drafter = layout.open(tmp_path / "target's")
    assert drafter.head is Head.BORROWED
    layout.add({"embed_tokens.weight": (VOCAB, HIDDEN)})
    assert _problem(layout, tmp_path / "either").slug == "head-ambiguous"


def test_c42_tied_flag_copied_from_the_target(tmp_path: Path) -> None:
    problem = _problem(eagle3(tie_word_embeddings=True), tmp_path)
    assert problem.slug == "tied-head-mismatch"
    assert "Set tie_word_embeddings to false" in problem.detail


def test_c42_tied_flag_and_a_stored_head_of_the_same_shape(tmp_path: Path) -> None:
    _, drafter = (
        eagle3(draft_vocab_size=None, tie_word_embeddings=True)
        .add({"lm_head.weight": (VOCAB, HIDDEN)})
        .without("d2t")
        .open(tmp_path)
    )
    assert drafter.head is Head.OWN
    assert any("tie_word_embeddings" in warning for warning in drafter.warnings)


def test_c90_tied_model_that_stores_both(tmp_path: Path) -> None:
    _, drafter = draft_model(tied=True).add({"lm_head.weight": (VOCAB, HIDDEN)}).open(tmp_path)
    assert drafter.head is Head.TIED
    assert drafter.lm_head_refusal is not None


@pytest.mark.parametrize(
    ("change", "slug", "where"),
    [
        (lambda x: x.without("candidate_selector.successor_codebook"), "missing-tensors", "successor_codebook"),
        (lambda x: x.without("layers.1.mlp_conv.base_kernel"), "missing-tensors", "layers.1.mlp_conv.base_kernel"),
        (
            lambda x: x.add({"layers.0.attention_conv.kernel_projection.weight": (6, HIDDEN)}),
            "shape-mismatch",
            "layers.0.attention_conv.kernel_projection.weight",
        ),
    ],
)
def test_c28_parts_of_dflash2(tmp_path: Path, change: Callable[[Layout], Layout], slug: str, where: str) -> None:
    problem = _problem(change(dflash2()), tmp_path)
    assert problem.slug == slug
    assert [place for place in _wheres(problem) if place.endswith(where)]


@pytest.mark.parametrize("key", ["conv_kernel_size", "conv_group_size", "selector_rank", "selector_top_k"])
def test_dflash2_settings_are_required(tmp_path: Path, key: str) -> None:
    layout = dflash2()
    del layout.config["dflash_config"][key]
    problem = _problem(layout, tmp_path)
    assert (problem.slug, _wheres(problem)) == ("malformed-config", [f"config.json: dflash_config: {key}"])


def test_dflash2_under_another_name(tmp_path: Path) -> None:
    """vLLM would build DFlash's class, which has no place for these tensors."""
    problem = _problem(dflash2(architectures=["DFlashDraftModel"]), tmp_path / "name")
    assert (problem.slug, _wheres(problem)) == ("malformed-config", ["config.json: architectures"])
    layout = dflash(architectures=["DFlash2DraftModel"], dflash_config=dflash2().config["dflash_config"])
    assert _problem(layout, tmp_path / "tensors").slug == "missing-tensors"


def test_dflash2_candidates_of_a_trimmed_vocabulary(tmp_path: Path) -> None:
    layout = dflash2(draft_vocab_size=DRAFT_VOCAB).add({"lm_head.weight": (DRAFT_VOCAB, HIDDEN)})
    problem = _problem(layout.add({"d2t": (DRAFT_VOCAB,)}, "I64"), tmp_path)
    assert (problem.slug, _wheres(problem)) == ("malformed-config", ["config.json: draft_vocab_size"])


def test_c112_dflash2_says_what_it_needs(tmp_path: Path) -> None:
    _, drafter = dflash2().open(tmp_path / "borrowed")
    assert any("VLLM_USE_V2_MODEL_RUNNER=1" in warning for warning in drafter.warnings)
    assert any("target's lm_head" in warning for warning in drafter.warnings)
    layout = dflash2(has_own_lm_head=True).add({"lm_head.weight": (VOCAB, HIDDEN)})
    _, drafter = layout.open(tmp_path / "own")
    assert not any("target's lm_head" in warning for warning in drafter.warnings)


@pytest.mark.parametrize(
    ("config", "slug", "where"),
    [
        ({"layer_types": ["sliding_attention", "full_attention"]}, "malformed-config", "layer_types"),
        ({"layer_types": None}, "malformed-config", "layer_types"),
        ({"attention_k_eq_v": False}, "malformed-config", "layer_types"),
        ({"draft_vocab_size": DRAFT_VOCAB}, "malformed-config", "draft_vocab_size"),
        ({"per_layer_config": {"0": {"head_dim": 8}}}, "malformed-config", "per_layer_config"),
        ({"target_layer_ids": None}, "target-layers-missing", "target_layer_ids"),
    ],
)
def test_gemma4_dspark_that_the_engine_does_not_serve(
    tmp_path: Path, config: dict[str, Any], slug: str, where: str
) -> None:
    problem = _problem(gemma4_dspark(**config), tmp_path)
    assert (problem.slug, _wheres(problem)) == (slug, [f"config.json: {where}"])


def test_gemma4_dspark_in_speculators_dialect(tmp_path: Path) -> None:
    problem = _problem(speculators(gemma4_dspark(), "dspark"), tmp_path)
    assert problem.slug == "unknown-family"


def test_gemma4_dspark_with_its_own_head_and_names_of_its_own(tmp_path: Path) -> None:
    layout = gemma4_dspark(target_layer_ids=None, dspark_target_layer_ids=[0, 2, 4], block_size=None)
    layout.config |= {"dspark_block_size": 5, "mask_token_id": None, "dspark_noise_token_id": 3}
    _, drafter = layout.add({"lm_head.weight": (VOCAB, HIDDEN)}).open(tmp_path)
    assert (drafter.head, drafter.target_layer_ids) == (Head.OWN, (0, 2, 4))
    assert (drafter.block_size, drafter.mask_token_id) == (5, 3)
    assert drafter.lm_head_refusal is not None


def test_c28_parts_of_gemma4_dspark(tmp_path: Path) -> None:
    """The engine's loader looks for nothing that is missing."""
    names = ("layers.1.pre_feedforward_layernorm.weight", "layers.0.self_attn.k_norm.weight", "hidden_norm.weight")
    problem = _problem(gemma4_dspark().without(*names), tmp_path)
    assert (problem.slug, set(_wheres(problem))) == ("missing-tensors", set(names))


@pytest.mark.parametrize(
    ("name", "shape"),
    [
        ("lm_head.weight", (VOCAB, HIDDEN)),
        ("fc.bias", (HIDDEN,)),
        ("norm.weight", (HIDDEN,)),
        ("layers.0.input_layernorm.weight", (HIDDEN,)),
    ],
)
def test_eagle_tensors_that_the_engine_has_no_place_for(tmp_path: Path, name: str, shape: tuple[int, ...]) -> None:
    problem = _problem(eagle().add({name: shape}), tmp_path)
    assert (problem.slug, _wheres(problem)) == ("shape-mismatch", [name])


def test_eagle_of_decoders_without_a_class(tmp_path: Path) -> None:
    problem = _problem(eagle(architectures=["EagleCohereForCausalLM"], model_type="cohere"), tmp_path / "cohere")
    assert (problem.slug, _wheres(problem)) == ("unknown-family", ["config.json: architectures"])
    problem = _problem(speculators(eagle(), "eagle"), tmp_path / "speculators")
    assert (problem.slug, _wheres(problem)) == ("unknown-family", ["config.json: speculators_model_type"])


def test_c2_c28_parts_of_eagle(tmp_path: Path) -> None:
    layout = eagle(num_hidden_layers=2).without("layers.0.post_attention_layernorm.weight")
    layout.add({"fc.weight": (HIDDEN, 3 * HIDDEN)})
    assert set(_wheres(_problem(layout, tmp_path))) == {
        "layer 1",
        "layers.0.post_attention_layernorm.weight",
        "fc.weight",
    }


QUANTIZED: dict[str, Callable[[Layout], Layout]] = {
    "config": lambda layout: Layout(layout.config | {"quantization_config": {"quant_method": "fp8"}}, layout.tensors),
    "compression": lambda layout: Layout(layout.config | {"compression_config": {}}, layout.tensors),
    "scales": lambda layout: layout.add({"fc.weight_scale": (1,)}, "F32"),
    "packed": lambda layout: layout.add({"fc.weight_packed": (4, 4)}, "I32"),
    "fp8 weight": lambda layout: layout.add({"fc.weight": (HIDDEN, 3 * HIDDEN)}, "F8_E4M3"),
    "nvfp4 weight": lambda layout: layout.add({"fc.weight": (HIDDEN, 48)}, "U8"),
    "block scales": lambda layout: layout.add({"layers.0.mlp.down_proj.weight_scale_inv": (1, 1)}, "F32"),
    "kv scale": lambda layout: layout.add({"layers.0.self_attn.k_scale": (1,)}, "F32"),
}


@pytest.mark.parametrize("change", QUANTIZED.values(), ids=QUANTIZED.keys())
def test_c47_quantized_already(tmp_path: Path, change: Callable[[Layout], Layout]) -> None:
    assert _problem(change(dflash()), tmp_path).slug == "already-quantized"


def test_c47_every_sign_is_listed(tmp_path: Path) -> None:
    layout = dflash(quantization_config={"quant_method": "modelopt"})
    layout.add({"fc.weight_scale": (1,), "fc.input_scale": (1,)}, "F32")
    wheres = _wheres(_problem(layout, tmp_path))
    assert wheres == ["config.json: quantization_config", "fc.input_scale", "fc.weight_scale"]


def test_null_quantization_config_is_none(tmp_path: Path) -> None:
    dflash(quantization_config=None).open(tmp_path)


def test_c94_padded_vocabulary_is_told_from_another_one(tmp_path: Path) -> None:
    layout = draft_model(vocab_size=120)
    problem = _problem(layout, tmp_path / "padded")
    assert problem.slug == "shape-mismatch"
    assert "padded to a multiple of" in problem.detail
    layout.config["vocab_size"] = VOCAB + 2
    assert "another vocabulary" in _problem(layout, tmp_path / "other").detail


@pytest.mark.parametrize("name", ["DSparkDraftModel", "DFlashDraftModel", "Qwen3ForCausalLM"])
def test_c102_dspark_under_another_name(tmp_path: Path, name: str) -> None:
    _, drafter = dspark(architectures=[name]).open(tmp_path)
    assert drafter.family is Family.DSPARK
    assert any("Qwen3DSparkModel" in warning for warning in drafter.warnings)


def test_c102_configuration_of_another_family(tmp_path: Path) -> None:
    layout = Layout(draft_model().config, dspark().tensors)
    problem = _problem(layout, tmp_path)
    assert problem.slug == "unknown-family"
    assert "tensors are those of dspark; the configuration claims draft_model, eagle" in problem.detail


@pytest.mark.parametrize("dtype", ["BF16", "F8_E4M3"])
def test_c102_deepseeks_dspark_is_refused_with_the_reason(tmp_path: Path, dtype: str) -> None:
    """Quantized as it is published, or not."""
    config = stack("DeepseekV4ForCausalLM", "deepseek_v4", 2) | {"dspark_markov_rank": 16, "n_mtp_layers": 2}
    layout = Layout(config).add({f"mtp.{stage}.attn.wkv.weight": (HIDDEN, HIDDEN) for stage in range(2)}, dtype)
    layout.add({"mtp.0.main_proj.weight": (HIDDEN, 3 * HIDDEN), "mtp.1.markov_head.markov_w1.weight": (VOCAB, 16)})
    problem = _problem(layout, tmp_path)
    assert (problem.slug, _wheres(problem)) == ("family-not-quantizable", ["mtp.0.main_proj.*", "mtp.1.markov_head.*"])
    assert "wo_a" in problem.detail


@pytest.mark.parametrize("name", ["K3DSparkModel", "LiLiCorrDraftModel"])
def test_c102_layouts_of_later_are_refused_by_name(tmp_path: Path, name: str) -> None:
    problem = _problem(dspark(architectures=[name]), tmp_path)
    assert problem.slug == "unknown-family"
    assert name in problem.detail


def test_tensors_of_no_family(tmp_path: Path) -> None:
    problem = _problem(Layout({"architectures": ["X"]}).add({"weights.weight": (4, 4)}), tmp_path)
    assert problem.slug == "unknown-family"
    assert problem.offenders[1].value == ["weights.weight"]


def test_draft_models_of_unknown_classes_are_refused(tmp_path: Path) -> None:
    layout = draft_model(architectures=["GemmaForCausalLM"], model_type="gemma")
    assert _problem(layout, tmp_path).slug == "unknown-family"


def test_c28_missing_and_misshapen_tensors_come_in_one_answer(tmp_path: Path) -> None:
    layout = eagle3().without("norm.weight", "midlayer.mlp.up_proj.weight")
    layout.add({"midlayer.self_attn.k_proj.weight": (KV, HIDDEN), "midlayer.hidden_norm.weight": (8,)})
    assert set(_wheres(_problem(layout, tmp_path))) == {
        "norm.weight",
        "midlayer.mlp.up_proj.weight",
        "midlayer.self_attn.k_proj.weight",
        "midlayer.hidden_norm.weight",
    }


def test_hidden_norm_is_the_first_layers(tmp_path: Path) -> None:
    eagle3(layers=2).without("layers.1.hidden_norm.weight").open(tmp_path / "later")
    problem = _problem(eagle3(layers=2).without("layers.0.hidden_norm.weight"), tmp_path / "first")
    assert (problem.slug, _wheres(problem)) == ("missing-tensors", ["layers.0.hidden_norm.weight"])


def test_missing_draft_map(tmp_path: Path) -> None:
    problem = _problem(eagle3().without("d2t"), tmp_path)
    assert (problem.slug, _wheres(problem)) == ("missing-tensors", ["d2t"])


def test_c11_draft_map_that_an_earlier_tool_cast(tmp_path: Path) -> None:
    problem = _problem(eagle3().add({"d2t": (DRAFT_VOCAB,)}, "BF16"), tmp_path)
    assert (problem.slug, _wheres(problem)) == ("shape-mismatch", ["d2t"])


def test_confidence_head_that_is_promised(tmp_path: Path) -> None:
    layout = dspark().without("confidence_head.proj.weight", "confidence_head.proj.bias")
    assert _wheres(_problem(layout, tmp_path)) == ["confidence_head.proj.weight"]


def test_layer_stored_under_two_names(tmp_path: Path) -> None:
    problem = _problem(eagle3().add({"layers.0.mlp.up_proj.weight": (64, HIDDEN)}), tmp_path)
    assert problem.slug == "shape-mismatch"


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("hidden_size", "32"),
        ("hidden_size", True),
        ("hidden_size", -1),
        ("hidden_size", None),
        ("num_hidden_layers", 10**9),
        ("num_hidden_layers", 1 << 40),
        ("dflash_config", []),
        ("dflash_config", {"target_layer_ids": "1,2"}),
        ("dflash_config", {"target_layer_ids": [1, 1, 2]}),
        ("dflash_config", {"target_layer_ids": [1, None]}),
        ("architectures", "DFlashDraftModel"),
        ("architectures", [None]),
        ("model_type", 3),
        ("tie_word_embeddings", "yes"),
    ],
)
def test_configuration_of_wrong_types(tmp_path: Path, key: str, value: Any) -> None:
    problem = _problem(dflash(**{key: value}), tmp_path)
    assert problem.slug == "malformed-config"
    assert all(key in where or "target_layer_ids" in where for where in _wheres(problem))


def test_sizes_default_as_the_engine_defaults_them(tmp_path: Path) -> None:
    layout = draft_model(head_dim=None, num_attention_heads=2, num_key_value_heads=None)
    for number in range(2):
        for name in ("q", "k", "v"):
            layout.add({f"model.layers.{number}.self_attn.{name}_proj.weight": (HIDDEN, HIDDEN)})
        layout.add({f"model.layers.{number}.self_attn.o_proj.weight": (HIDDEN, HIDDEN)})
    assert Q != HIDDEN
    layout.open(tmp_path)


def test_unknown_matrices_are_noted(tmp_path: Path) -> None:
    _, drafter = dflash().add({"layers.0.adapter.weight": (HIDDEN, HIDDEN)}).open(tmp_path)
    assert any("layers.0.adapter" in warning for warning in drafter.warnings)
    module = next(module for module in drafter.modules if module.name == "layers.0.adapter")
    assert module.runtime == ("model.layers.{layer}.adapter",)
    assert module.keep is not None
