"""What only model runner V2 can draft with, run on this CPU by Triton's interpreter.

Each drafter is made from a shipped one so that it must draft exactly what that one drafts.
"""

import json
import shutil
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file

from draftmill.formats import Format
from draftmill.jobs import QuantizeOptions
from draftmill_worker.mill import Switches, mill
from tests.e2e.vllm_plugin.boot import Request, Result
from tests.e2e.vllm_plugin.engines import Boots, Variant
from tests.fixtures.prompts import held_out

pytestmark = [pytest.mark.vllm, pytest.mark.slow, pytest.mark.timeout(3600)]


@pytest.fixture(scope="module")
def request_(models: Path) -> Request:
    return Request(target=str(models / "target"), prompts=held_out(models / "target", 4), tokens=24)


def _counts(result: Result) -> tuple[int, int, list[int], str]:
    assert result.drafts > 0
    return result.drafts, result.accepted, result.by_position, result.output_sha256


def _edit_config(folder: Path, **changes: object) -> None:
    path = folder / "config.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | changes))


def neutral_dflash2(source: Path, out: Path, taps: int = 2, group: int = 32, rank: int = 16) -> Path:
    """A DFlash2 drafter whose convolutions pass their input through and whose candidate edges weigh nothing."""
    shutil.copytree(source, out)
    own = json.loads((out / "config.json").read_text())
    parts = {"conv_kernel_size": taps, "conv_group_size": group, "selector_rank": rank, "selector_top_k": 4}
    _edit_config(out, architectures=["DFlash2DraftModel"], dflash_config=own["dflash_config"] | parts)
    tensors = load_file(out / "model.safetensors")
    hidden, vocabulary = own["hidden_size"], own["vocab_size"]
    through = torch.zeros(2, taps, hidden, dtype=torch.bfloat16)
    through[:, 0] = 1
    for layer in range(own["num_hidden_layers"]):
        for conv in ("attention_conv", "mlp_conv"):
            name = f"layers.{layer}.{conv}"
            tensors[f"{name}.base_kernel"] = through.clone()
            projection = torch.zeros(2 * taps * hidden // group, hidden, dtype=torch.bfloat16)
            tensors[f"{name}.kernel_projection.weight"] = projection
    for table in ("predecessor_codebook", "successor_codebook"):
        tensors[f"candidate_selector.{table}"] = torch.zeros(vocabulary, rank, dtype=torch.bfloat16)
    tensors["candidate_selector.hidden_projection.weight"] = torch.zeros(rank, hidden, dtype=torch.bfloat16)
    save_file(tensors, out / "model.safetensors", metadata={"format": "pt"})
    return out


def test_dflash2(boots: Boots, request_: Request, models: Path, tmp_path: Path) -> None:
    asked = replace(request_, method="dflash", drafter=str(models / "dflash"), drafted=3)
    made = neutral_dflash2(models / "dflash", tmp_path / "dflash2")
    result = boots(replace(asked, drafter=str(made)), ("rmsnorm2d",), interpreted=True)
    assert result.proposer == "DFlash2Speculator"
    assert _counts(result) == _counts(boots(asked))


@pytest.mark.parametrize("format", [Format.FP8_PC_PT, Format.W4A16_NVFP4])
def test_c1_a_quantized_dflash2_is_accepted_as_its_dflash_is(
    boots: Boots, request_: Request, models: Path, variant: Variant, tmp_path: Path, format: Format
) -> None:
    """Its convolutions and selector stay, and here they change nothing; the other weights are quantized alike.

    Candidates are ranked in fp32, so that a tie of bf16 logits may fall otherwise.
    """
    asked = replace(request_, method="dflash", drafted=3)
    made, out = neutral_dflash2(models / "dflash", tmp_path / "dflash2"), tmp_path / "variant"
    mill(made, out, format, QuantizeOptions(), switches=Switches(fsync=False), progress=lambda *_: None)
    result = boots(replace(asked, drafter=str(out)), ("rmsnorm2d", "emulation"), interpreted=True)
    assert result.proposer == "DFlash2Speculator"
    plain = {"qkv_proj", "kernel_projection", "hidden_projection", "lm_head", "embed_tokens", "attn"}
    methods = {name: method for name, (method, _) in result.methods.items() if name.rpartition(".")[2] not in plain}
    assert methods
    assert all(method is not None and method.startswith("ModelOpt") for method in methods.values()), methods
    alike, bf16 = (boots(replace(asked, drafter=str(variant("dflash", other)))) for other in (format, None))
    assert result.output_sha256 == alike.output_sha256 == bf16.output_sha256
    assert abs(result.accepted - alike.accepted) <= 0.05 * alike.drafts
    assert result.acceptance_length >= 0.9 * bf16.acceptance_length > 1.1


def test_dspark_among_its_top_k(boots: Boots, request_: Request, models: Path, tmp_path: Path) -> None:
    """The top k of all tokens are all tokens."""
    asked = replace(request_, method="dspark", drafter=str(models / "dspark"), drafted=4)
    made = shutil.copytree(models / "dspark", tmp_path / "dspark")
    vocabulary = json.loads((made / "config.json").read_text())["vocab_size"]
    _edit_config(made, dspark_draft_topk=vocabulary)
    result = boots(replace(asked, drafter=str(made)), ("rmsnorm2d",), interpreted=True)
    assert result.proposer == "DSparkSpeculator"
    assert _counts(result) == _counts(boots(asked))
