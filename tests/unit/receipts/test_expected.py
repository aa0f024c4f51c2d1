"""What is expected of a boot: the checkpoint's map, and the engine's names of the drafter's modules."""

import hashlib
import json
import struct
from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file

from draftmill.formats import Format
from draftmill.plans import Family
from draftmill_worker.checkpoint.checkpoint import open_checkpoint
from draftmill_worker.receipts.expected import draft_map_sha256
from tests.unit.receipts.good import good


def sha256_of_map(folder: Path, **tensors: torch.Tensor) -> str | None:
    folder.mkdir()
    save_file({"norm.weight": torch.zeros(4), **tensors}, folder / "model.safetensors")
    (folder / "config.json").write_text(json.dumps({}))
    return draft_map_sha256(folder, open_checkpoint(folder))


def test_the_map_is_hashed_as_the_engine_holds_it(tmp_path: Path) -> None:
    values = [0, 3, 70000, -1]
    wanted = hashlib.sha256(struct.pack("<4q", *values)).hexdigest()
    assert sha256_of_map(tmp_path / "long", d2t=torch.tensor(values)) == wanted
    assert sha256_of_map(tmp_path / "int", d2t=torch.tensor(values, dtype=torch.int32)) == wanted
    assert sha256_of_map(tmp_path / "none") is None
    with pytest.raises(ValueError, match="d2t is BF16"):
        sha256_of_map(tmp_path / "float", d2t=torch.tensor([1.0], dtype=torch.bfloat16))


@pytest.mark.parametrize(
    ("family", "placed", "asked"),
    [
        (Family.EAGLE3, "model.layers.0.mlp.down_proj", "model.layers.8.mlp.down_proj"),
        (Family.DFLASH, "model.layers.1.self_attn.o_proj", "model.layers.9.self_attn.o_proj"),
        (Family.DRAFT_MODEL, "model.layers.1.mlp.gate_up_proj", "draft_model.model.layers.1.mlp.gate_up_proj"),
    ],
)
def test_modules_have_a_place_and_a_name_that_the_engine_asks_with(
    tmp_path: Path, family: Family, placed: str, asked: str
) -> None:
    (module,) = [module for module in good(tmp_path, family).expected.modules if placed in module.placed]
    assert module.asked == {asked}
    assert module.quantized


def test_c52_c80_draft_and_target_have_commits_of_their_own(tmp_path: Path) -> None:
    receipt = good(tmp_path).receipt
    assert receipt.drafter is not None
    other = receipt.drafter.model_copy(update={"commit": "f" * 40})
    failed = good(tmp_path / "again").receive(drafter=other).failed()
    assert [offender.where for offender in failed["commits-recorded"].offenders] == ["drafter.commit"]


def test_c70_what_was_asked_for_is_not_what_is_recorded(tmp_path: Path) -> None:
    """A drafter that stays bf16 in the engine is no fp8 drafter, whatever the command line said."""
    receipt = good(tmp_path, format=Format.FP8).receive(
        speculative_config={"method": "eagle3", "num_speculative_tokens": 3, "quantization": "modelopt"}
    )
    view = receipt.receipt.view
    assert view is not None
    plain = {"method": "UnquantizedLinearMethod", "weight_dtype": "torch.bfloat16", "scheme": {}, "scales": {}}
    failed = receipt.see(modules=tuple(module.model_copy(update=plain) for module in view.modules)).failed()
    assert len(failed["quantized-as-planned"].offenders) == 5
