"""The run-time modules this project names are those that vLLM builds, quantized where the plan says."""

import json
import os
import subprocess
import sys
from collections.abc import Callable
from typing import Any

import pytest

from draftmill.formats import Format
from draftmill.jobs import QuantizeOptions
from draftmill.plans import Plan
from draftmill_worker.checkpoint.drafter import Drafter
from draftmill_worker.quantize.config import quantization_config
from draftmill_worker.quantize.ignore import runtime_modules
from draftmill_worker.quantize.plan import make_plan
from tests.unit.checkpoint.layouts import (
    HIDDEN,
    VOCAB,
    Layout,
    dflash,
    dflash2,
    draft_model,
    dspark,
    eagle,
    eagle3,
    gemma4_dspark,
    speculators,
)

TARGET_LAYERS = 8
# compressed-tensors' layers choose a kernel while they are built, which needs a machine with one for int8; an lm_head
# in fp8_pb_wo is refused.
ASKED_FORMATS = (Format.FP8, Format.FP8_PC_PT, Format.NVFP4, Format.W4A16_NVFP4, Format.MXFP8)
_EAGLE3_IDS: dict[str, Any] = {"eagle_aux_hidden_state_layer_ids": [2, 4, 6]}
DRAFTERS: dict[str, tuple[Callable[[], Layout], dict[str, Any]]] = {
    "eagle/flat": (eagle, {"exclude": ["*o_proj*"]}),
    "eagle/nested": (lambda: eagle(nested=True), {"exclude": ["fc.weight"]}),
    "eagle/two_layers": (
        lambda: eagle(layers=2, num_target_layers=TARGET_LAYERS).without("embed_tokens.weight"),
        {"exclude": ["layers.1.mlp.*"]},
    ),
    "eagle3/lm_head": (eagle3, {"lm_head": True}),
    "eagle3/kept": (eagle3, {"exclude": ["fc.weight", "*self_attn*", "*down_proj*"]}),
    "eagle3/two_layers": (lambda: eagle3(layers=2), {"exclude": ["*gate_proj*", "*up_proj*"]}),
    "eagle3/qwen3": (lambda: eagle3(qwen3=True, **_EAGLE3_IDS), {"exclude": ["*.self_attn.[qkv]_proj.weight"]}),
    "eagle3/speculators": (lambda: speculators(eagle3(prefix=None), "eagle3"), {"exclude": ["*o_proj*"]}),
    "dflash/plain": (dflash, {}),
    "dflash/top_level": (lambda: dflash(dflash_config=None, target_layer_ids=[1, 3, 5], mask_token_id=1), {}),
    "dflash/one_layer": (lambda: dflash(num_target_layers=None), {"exclude": ["layers.1.mlp.down_proj.weight"]}),
    "dflash/own_head": (
        lambda: dflash(has_own_lm_head=True).add({"lm_head.weight": (VOCAB, HIDDEN)}),
        {"lm_head": True, "exclude": ["fc.*"]},
    ),
    "dflash/dflash2": (dflash2, {"exclude": ["layers.1.mlp.down_proj.weight"]}),
    "dflash/dflash2_speculators": (lambda: speculators(dflash2(architectures=None), "dflash2"), {}),
    "dspark/one_layer": (dspark, {"exclude": ["layers.0.mlp.*"]}),
    "dspark/gemma4": (gemma4_dspark, {}),
    "dspark/gemma4_one_layer": (gemma4_dspark, {"exclude": ["layers.0.mlp.gate_proj.*", "layers.0.mlp.up_proj.*"]}),
    "draft_model/llama_tied": (lambda: draft_model(tied=True), {"exclude": ["model.layers.1.mlp.*"]}),
    "draft_model/qwen3": (lambda: draft_model(architecture="Qwen3ForCausalLM"), {"exclude": ["*layers.0.self_attn*"]}),
    "draft_model/qwen2": (lambda: draft_model(architecture="Qwen2ForCausalLM", model_type="qwen2"), {}),
    "draft_model/mistral": (
        lambda: draft_model(architecture="MistralForCausalLM", model_type="mistral"),
        {"lm_head": True},
    ),
}
_ENGINE_SETTINGS = {"hidden_act": "silu", "rms_norm_eps": 1e-6, "max_position_embeddings": 128, "rope_theta": 10000.0}


def _complete(config: dict[str, Any]) -> dict[str, Any]:
    """What the engine's constructors read beside what a plan needs."""
    if "transformer_layer_config" in config:
        proposal = {"proposal_type": "greedy", "speculative_tokens": 3}
        return config | {
            "transformer_layer_config": config["transformer_layer_config"] | _ENGINE_SETTINGS,
            "speculators_config": {"proposal_methods": [proposal], "verifier": {"name_or_path": "target"}},
        }
    # The engine's constructors do not expect null where a key may be absent.
    return {key: value for key, value in config.items() if value is not None} | _ENGINE_SETTINGS


@pytest.fixture(scope="module")
def asked(tmp_path_factory: pytest.TempPathFactory) -> dict[str, tuple[Drafter, Plan, dict[str, bool]]]:
    root = tmp_path_factory.mktemp("engine")
    target = draft_model(layers=TARGET_LAYERS)
    (root / "target").mkdir()
    (root / "target" / "config.json").write_text(json.dumps(_complete(target.config)))
    planned = {}
    for number, (name, (make, options)) in enumerate(DRAFTERS.items()):
        layout = make()
        checkpoint, drafter = layout.open(tmp_path_factory.mktemp("source"))
        format = ASKED_FORMATS[number % len(ASKED_FORMATS)]
        plan = make_plan(checkpoint, drafter, format, QuantizeOptions(**options))
        folder = root / name
        folder.mkdir(parents=True)
        config = _complete(layout.config) | {"quantization_config": quantization_config(plan)}
        (folder / "config.json").write_text(json.dumps(config))
        planned[name] = (drafter, plan)
    environment = os.environ | {"OMP_NUM_THREADS": "1", "OMP_WAIT_POLICY": "passive"}
    command = [sys.executable, "-m", "tests.unit.plan.engine_modules", str(root)]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=280, check=False)
    assert done.returncode == 0, done.stderr[-4000:]
    found = json.loads((root / "asked.json").read_text())
    return {name: (drafter, plan, found[name]) for name, (drafter, plan) in planned.items()}


@pytest.mark.vllm
@pytest.mark.parametrize("name", DRAFTERS)
def test_c20_engine_builds_what_the_plan_says(
    name: str, asked: dict[str, tuple[Drafter, Plan, dict[str, bool]]]
) -> None:
    drafter, plan, built = asked[name]
    named = {module.name: module.quantized for module in runtime_modules(drafter, plan, TARGET_LAYERS)}
    assert built.keys() <= named.keys()
    assert built == {module: named[module] for module in built}
    assert {module for module, quantized in named.items() if quantized} <= built.keys()


@pytest.mark.vllm
@pytest.mark.parametrize("name", ["eagle3/lm_head", "dflash/plain", "dspark/one_layer"])
def test_c43_engine_reads_a_quantized_fc(name: str, asked: dict[str, tuple[Drafter, Plan, dict[str, bool]]]) -> None:
    assert asked[name][2]["model.fc"]


@pytest.mark.vllm
def test_c91_engine_reads_a_quantized_lm_head_where_it_is_offered(
    asked: dict[str, tuple[Drafter, Plan, dict[str, bool]]],
) -> None:
    assert asked["eagle3/lm_head"][2]["lm_head"]
    assert asked["dflash/own_head"][2]["lm_head"]
    assert asked["draft_model/mistral"][2]["draft_model.lm_head"]
    # Refused for these: their classes do not even ask.
    assert "lm_head" not in asked["dflash/plain"][2]
    assert "lm_head" not in asked["dspark/one_layer"][2]
