"""Packing on a CUDA device writes the files that packing on the CPU writes. `pytest -m gpu` on a machine with one."""

from pathlib import Path

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from draftmill.formats import Format
from draftmill_worker.quantize.kernels import row_ops
from draftmill_worker.quantize.stream import quantize
from tests.fixtures.large import dspark_shaped
from tests.unit.quantize.checkpoints import plan_for
from tests.unit.quantize.weights import CAST, packed, same_bytes, unit, weights

pytestmark = pytest.mark.gpu


@pytest.mark.parametrize("cast", CAST)
@pytest.mark.parametrize("format", Format)
@given(data=st.data())
@settings(deadline=None, max_examples=100)
def test_any_weight(format: Format, cast: str, data: st.DataObject) -> None:
    weight = data.draw(weights(CAST[cast], unit(format)))
    ours = packed(weight, format, cast, row_ops("cpu"))
    on_device = packed(weight, format, cast, row_ops("cuda"))
    assert all(same_bytes(ours[name], on_device[name]) for name in ours)


@pytest.mark.parametrize("format", Format)
def test_a_checkpoint(tmp_path: Path, format: Format) -> None:
    source = dspark_shaped(tmp_path / "source", 0.5)
    plan = plan_for(source, format)
    for device in ("cpu", "cuda"):
        (tmp_path / device).mkdir()
        quantize(source, plan, tmp_path / device, fsync=False, device=device)
    assert (tmp_path / "cpu" / "model.safetensors").read_bytes() == (
        tmp_path / "cuda" / "model.safetensors"
    ).read_bytes()
    assert torch.cuda.max_memory_allocated() < 4 << 30
