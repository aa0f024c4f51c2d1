"""Synthetic checkpoints are what they claim: families that are recognised, layouts as asked, sizes as asked."""

import json
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

from draftmill.plans import Family
from draftmill_worker.checkpoint.checkpoint import open_checkpoint
from draftmill_worker.checkpoint.families import detect
from tests.fixtures.large import dspark_shaped
from tests.fixtures.synthetic import FAMILIES, LAYOUTS, Layout, build

ENGINE_CLASSES = {
    "dflash2": (Family.DFLASH, "DFlash2Qwen3ForCausalLM"),
    "gemma4_dspark": (Family.DSPARK, "Gemma4DSparkForCausalLM"),
}


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("shards", [1, 3])
def test_families_are_recognised(family: str, shards: int, tmp_path: Path) -> None:
    checkpoint = open_checkpoint(build(tmp_path / family, family, Layout(shards=shards)))
    assert detect(checkpoint).family == Family(family)
    assert len(checkpoint.files) == shards


@pytest.mark.parametrize("name", LAYOUTS)
def test_other_layouts_belong_to_a_family(name: str, tmp_path: Path) -> None:
    drafter = detect(open_checkpoint(build(tmp_path / name, name)))
    assert (drafter.family, drafter.engine_class) == ENGINE_CLASSES[name]


def test_siblings_lie_in_different_shards(tmp_path: Path) -> None:
    index = open_checkpoint(build(tmp_path / "a", "dflash", Layout(shards=3))).index
    assert index is not None
    for siblings in (("q", "k", "v"), ("gate", "up")):
        block = "mlp" if "up" in siblings else "self_attn"
        assert len({index[f"layers.0.{block}.{name}_proj.weight"] for name in siblings}) == len(siblings)


def test_layouts(tmp_path: Path) -> None:
    layout = Layout(
        dtype="mixed",
        drop=["norm.weight"],
        zero=["fc.*"],
        zero_rows=["*o_proj*"],
        poison=["*down*"],
        scale={"*v_p*": 64},
    )
    tensors = load_file(build(tmp_path / "a", "eagle3", layout) / "model.safetensors")
    assert {t.dtype for t in tensors.values() if t.is_floating_point()} == {
        torch.bfloat16,
        torch.float16,
        torch.float32,
    }
    assert tensors["d2t"].dtype == torch.int64
    assert "norm.weight" not in tensors
    assert not tensors["fc.weight"].any()
    output = tensors["midlayer.self_attn.o_proj.weight"]
    assert not output[0].any()
    assert not output[-1].any()
    assert output[1].any()
    assert tensors["midlayer.mlp.down_proj.weight"].isnan().sum() == 1
    assert tensors["midlayer.self_attn.v_proj.weight"].std() > 30 * tensors["midlayer.self_attn.k_proj.weight"].std()


def test_the_large_shape_keeps_its_proportions(tmp_path: Path) -> None:
    checkpoint = open_checkpoint(dspark_shaped(tmp_path / "a", 0.5, shards=2))
    assert checkpoint.nbytes == pytest.approx(0.5e9, rel=0.05)
    assert detect(checkpoint).family == Family.DSPARK
    assert json.loads((tmp_path / "a" / "config.json").read_text())["hidden_size"] == 4096
    values = load_file(tmp_path / "a" / "model-00001-of-00002.safetensors")
    weights = [t.float() for t in values.values() if t.dim() == 2 and t.shape[0] > 1]
    assert all(t.isfinite().all() for t in weights)
    assert all(0.01 < float(t.std()) < 0.1 for t in weights)
