"""Hidden states out of a real engine, beside what plain torch says they are."""

from pathlib import Path

import pytest
import torch
from safetensors import safe_open

from draftmill.benchmarks import PromptSet
from draftmill.heads import CaptureOptions, HeadOptions
from draftmill_worker.bench.prompts import Prompt
from draftmill_worker.checkpoint.checkpoint import open_checkpoint
from draftmill_worker.checkpoint.config import load_json
from draftmill_worker.heads.capture import MANIFEST, CaptureManifest, Place, capture
from draftmill_worker.heads.quantize import quantize_head
from draftmill_worker.heads.rows import FILE, open_rows
from draftmill_worker.heads.source import find_head
from tests.fixtures.heads import target

pytestmark = pytest.mark.vllm
TEXTS = tuple(
    Prompt(id=str(number), turns=(f"def area_{number}(width, height): return width * height",)) for number in range(12)
)


@pytest.fixture(scope="module")
def exact(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = target.build(tmp_path_factory.mktemp("target") / "exact", exact=True, tied=False)
    target.write_tokenizer(folder)
    return folder


def test_each_token_has_the_row_that_torch_gives_it(exact: Path, tmp_path: Path) -> None:
    pytest.importorskip("vllm")
    options = CaptureOptions(texts=PromptSet(builtin="draftmill-1", max_tokens=24), own_outputs=True)
    place = Place(tmp_path / "out", tmp_path / "logs", tmp_path / "scratch", 240.0, tmp_path / "cache")
    config = load_json((exact / "config.json").read_bytes(), "config.json")
    seen: list[int] = []
    manifest = capture(exact, config, options, TEXTS, place=place, progress=seen.append)
    assert seen[-1] == manifest.texts == len(TEXTS)
    assert manifest == CaptureManifest.model_validate_json((tmp_path / "out" / MANIFEST).read_bytes())
    assert (manifest.norm, manifest.columns) == ("model.norm", 512)
    assert "gpu_model_runner" in manifest.runner or "cpu_model_runner" in manifest.runner
    rows = open_rows(tmp_path / "out" / FILE)
    assert manifest.rows == len(rows.hidden)
    with safe_open(tmp_path / "out" / FILE, framework="pt") as file:
        assert torch.equal(file.get_tensor("hidden"), rows.hidden)
    wanted = target.hidden_states(exact, rows.tokens)
    assert torch.allclose(rows.hidden.float(), wanted, rtol=2e-2, atol=2e-2)
    # The target's own answer to token t is t + 7, over and over: its outputs are in the capture.
    ends = rows.tokens[rows.starts[1:] - 1]
    befores = rows.tokens[rows.starts[1:] - 2]
    assert torch.equal(ends, (befores + target.STEP) % target.Shape.vocab)
    assert manifest.calibration_rows + manifest.held_out_rows == manifest.rows
    # Published ratios of GPTQ's KL to rounding's are 0.35 to 0.43.
    source = find_head(exact, open_checkpoint(exact))
    report = quantize_head(source, HeadOptions(), rows, tmp_path / "head.safetensors", lambda *_: None)
    assert report.rtn is not None
    assert report.gptq is not None
    assert report.gptq.kl <= 0.6 * report.rtn.kl
