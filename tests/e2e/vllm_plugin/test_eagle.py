"""EAGLE-1 in the engine: a quantized head is accepted as its bf16 one is."""

from dataclasses import replace
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file

from draftmill.formats import FORMATS, Format
from draftmill.jobs import QuantizeOptions
from draftmill_worker.mill import Switches, mill
from tests.e2e.vllm_plugin.boot import Request
from tests.e2e.vllm_plugin.engines import Boots
from tests.fixtures.eagle import fitted
from tests.fixtures.prompts import held_out

pytestmark = [pytest.mark.vllm, pytest.mark.slow, pytest.mark.timeout(3600)]


@pytest.fixture(scope="module")
def head(models: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return fitted(models / "target", tmp_path_factory.mktemp("eagle") / "head")


@pytest.fixture(scope="module")
def request_(models: Path, head: Path) -> Request:
    prompts = held_out(models / "target", 12)
    return Request(str(models / "target"), prompts, tokens=48, method="eagle", drafter=str(head), drafted=3)


@pytest.mark.parametrize("format", FORMATS)
def test_eagle_in_format(boots: Boots, request_: Request, head: Path, tmp_path: Path, format: Format) -> None:
    out = tmp_path / "variant"
    milled = mill(head, out, format, QuantizeOptions(), switches=Switches(fsync=False), progress=lambda *_: None)
    assert milled.folder is not None, milled.report
    plain, control = boots(Request(request_.target, request_.prompts, request_.tokens)), boots(request_)
    result = boots(replace(request_, drafter=str(out)))
    print(
        f"eagle {format}: {result.acceptance_length:.3f}, bf16 {control.acceptance_length:.3f}, {result.drafts} drafts"
    )
    assert result.proposer == "EagleProposer"
    assert result.outputs == control.outputs == plain.outputs
    assert control.acceptance_length > 1.2
    assert result.acceptance_length - 1 >= 0.8 * (control.acceptance_length - 1)
    kernels = {name: kernel for name, (_, kernel) in result.methods.items() if kernel is not None}
    assert {name.rpartition(".")[2] for name in kernels} >= {"fc", "qkv_proj", "o_proj", "gate_up_proj", "down_proj"}


def _with(head: Path, out: Path, name: str, shape: tuple[int, ...]) -> Path:
    out.mkdir()
    (out / "config.json").write_bytes((head / "config.json").read_bytes())
    tensors = load_file(head / "model.safetensors") | {name: torch.ones(shape, dtype=torch.bfloat16)}
    save_file(tensors, out / "model.safetensors", {"format": "pt"})
    return out


@pytest.mark.parametrize(
    ("name", "shape"), [("lm_head.weight", (1024, 128)), ("layers.0.input_layernorm.weight", (128,))]
)
def test_the_engine_stops_where_the_reader_does(
    boots: Boots, request_: Request, head: Path, tmp_path: Path, name: str, shape: tuple[int, ...]
) -> None:
    asked = replace(request_, drafter=str(_with(head, tmp_path / "head", name, shape)))
    with pytest.raises(AssertionError, match="There is no module or parameter named"):
        boots(asked)
