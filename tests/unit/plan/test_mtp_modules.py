"""vLLM's own classes build a target unquantized and its block as planned, from the one list that both read."""

import json
import os
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from draftmill.formats import Format
from draftmill.jobs import QuantizeOptions
from draftmill_worker.checkpoint.checkpoint import open_checkpoint
from draftmill_worker.checkpoint.families import detect
from draftmill_worker.quantize.config import quantization_config
from draftmill_worker.quantize.ignore import runtime_modules
from draftmill_worker.quantize.plan import make_plan
from tests.unit.checkpoint.targets import EXPERTS, TargetLayout, glm4_moe, qwen3_5, qwen3_next

pytestmark = [pytest.mark.vllm, pytest.mark.slow, pytest.mark.timeout(900)]

_COMMON: dict[str, Any] = {"hidden_act": "silu", "rms_norm_eps": 1e-6, "max_position_embeddings": 128}
_LINEAR: dict[str, Any] = {
    "layer_types": ["full_attention"] * 2,
    "linear_num_key_heads": 2,
    "linear_num_value_heads": 2,
    "linear_key_head_dim": 32,
    "linear_value_head_dim": 32,
    "linear_conv_kernel_dim": 4,
    "rope_parameters": {"rope_type": "default", "rope_theta": 10000.0, "partial_rotary_factor": 0.25},
}
_SPARSE: dict[str, Any] = {"num_experts_per_tok": 2, "moe_intermediate_size": 64, "norm_topk_prob": True}
SETTINGS: Mapping[str, dict[str, Any]] = {
    "qwen3_5": _LINEAR,
    "qwen3_next": _LINEAR
    | _SPARSE
    | {"num_experts": EXPERTS, "shared_expert_intermediate_size": 64, "num_nextn_predict_layers": 1},
    "glm4_moe": _SPARSE
    | {
        "n_routed_experts": EXPERTS,
        "n_shared_experts": 1,
        "n_group": 1,
        "topk_group": 1,
        "first_k_dense_replace": 0,
        "routed_scaling_factor": 1.0,
        "use_qk_norm": True,
        "rope_parameters": {"rope_type": "default", "rope_theta": 10000.0, "partial_rotary_factor": 0.5},
    },
}
LAYOUTS: Mapping[str, TargetLayout] = {"qwen3_5": qwen3_5(), "qwen3_next": qwen3_next(), "glm4_moe": glm4_moe()}
CASES = {f"{name}-{format}": (name, format) for name in LAYOUTS for format in (Format.FP8, Format.NVFP4)}
Asked = dict[str, dict[str, dict[str, bool]]]


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("engine")


def _planned(name: str, format: Format, folder: Path) -> tuple[Any, Any]:
    checkpoint = open_checkpoint(LAYOUTS[name].write(folder))
    drafter = detect(checkpoint)
    return drafter, make_plan(checkpoint, drafter, format, QuantizeOptions())


@pytest.fixture(scope="module")
def asked(root: Path) -> Asked:
    for case, (name, format) in CASES.items():
        _, plan = _planned(name, format, root / "sources" / case)
        config = LAYOUTS[name].config | _COMMON | SETTINGS[name] | {"quantization_config": quantization_config(plan)}
        (root / "engine" / case).mkdir(parents=True)
        (root / "engine" / case / "config.json").write_text(json.dumps(config))
    environment = os.environ | {"OMP_NUM_THREADS": "1", "OMP_WAIT_POLICY": "passive"}
    command = [sys.executable, "-m", "tests.unit.plan.mtp_modules", str(root / "engine")]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=800, check=False)
    assert done.returncode == 0, done.stderr[-4000:]
    found: Asked = json.loads((root / "engine" / "asked.json").read_text())
    return found


@pytest.mark.parametrize("case", CASES)
def test_c9_c20_the_engine_builds_target_and_block_as_planned(case: str, asked: Asked, tmp_path: Path) -> None:
    drafter, plan = _planned(*CASES[case], tmp_path / "source")
    target, block = asked[case]["target"], asked[case]["block"]
    assert target
    assert not any(target.values()), [name for name, quantized in target.items() if quantized]
    named = {module.name: module.quantized for module in runtime_modules(drafter, plan)}
    assert block == {name: named[name] for name in block}
    assert {name for name, quantized in named.items() if quantized} <= block.keys()
