"""`draftmill quantize` as a person runs it."""

import json
import os
from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file

from draftmill.cli.exits import ExitCode
from draftmill.cli.main import run
from draftmill_worker.checkpoint.identity import changed, fingerprint
from draftmill_worker.checkpoint.manifest import make_manifest
from draftmill_worker.quantize import moves
from tests.fixtures.synthetic import Layout, build
from tests.unit.quantize.checkpoints import stored

Capture = pytest.CaptureFixture[str]
QUICK = ("--no-verify", "--no-fsync")


@pytest.fixture
def source(tmp_path: Path) -> Path:
    return build(tmp_path / "drafter", "eagle3", Layout(shards=2))


def mill(source: Path, out: Path, *more: str, format: str = "fp8") -> int:
    return run(["quantize", str(source), "--format", format, "-o", str(out), *more])


def test_a_variant_is_verified_and_named(source: Path, tmp_path: Path, capsys: Capture) -> None:
    before = fingerprint(source)
    assert mill(source, tmp_path / "out", "--json", format="nvfp4") == ExitCode.OK
    document = json.loads(capsys.readouterr().out)
    assert document["folder"] == str(tmp_path / "out")
    assert document["verify"]["passed"]
    assert document["variant_bytes"] < document["source_bytes"] / 2
    assert "modelopt_fp4" in document["serve_command"]
    assert {"config.json", "plan.json", "README.md"} <= {path.name for path in (tmp_path / "out").iterdir()}
    assert changed(source, before) == []
    assert leftovers(tmp_path) == []


def test_plain_text_says_what_was_done(source: Path, tmp_path: Path, capsys: Capture) -> None:
    assert mill(source, tmp_path / "out", *QUICK, "--exclude", "*fc*") == ExitCode.OK
    printed = capsys.readouterr()
    assert "excluded by *fc*" in printed.out
    assert f"variant    {tmp_path / 'out'}" in printed.out
    assert printed.err.startswith("quantize: ")
    weights = stored(tmp_path / "out", "model-00001-of-00002.safetensors") | stored(
        tmp_path / "out", "model-00002-of-00002.safetensors"
    )
    assert weights["fc.weight"].dtype is torch.bfloat16
    assert oct((tmp_path / "out").stat().st_mode & 0o777) == "0o755"


def test_options_reach_the_plan(source: Path, tmp_path: Path) -> None:
    options = ("--lm-head", "--scales", "reference", "--dtype", "keep", "--threads", "1")
    assert mill(source, tmp_path / "out", *QUICK, *options) == ExitCode.OK
    plan = json.loads((tmp_path / "out" / "plan.json").read_text())
    assert (plan["scales"], plan["dtype"]) == ("reference", "keep")
    assert any(tensor["name"] == "lm_head.weight" and tensor["fate"] == "quantized" for tensor in plan["tensors"])


def test_a_scale_search_is_verified_and_says_what_it_gained(source: Path, tmp_path: Path, capsys: Capture) -> None:
    assert mill(source, tmp_path / "out", "--nvfp4-scale-search", "--json", format="nvfp4") == ExitCode.OK
    document = json.loads(capsys.readouterr().out)
    assert document["verify"]["passed"]
    gained = document["scale_search"]
    assert 0 < gained["relative_mse"] < gained["plain_relative_mse"]
    assert json.loads((tmp_path / "out" / "plan.json").read_text())["nvfp4_scale_search"] is True
    assert "searched" in (tmp_path / "out" / "README.md").read_text()
    assert mill(source, tmp_path / "text", "--nvfp4-scale-search", *QUICK, format="w4a16_nvfp4") == ExitCode.OK
    assert "with plain max" in capsys.readouterr().out


def test_a_scale_search_elsewhere_is_a_wrong_command_line(source: Path, tmp_path: Path, capsys: Capture) -> None:
    assert mill(source, tmp_path / "out", "--nvfp4-scale-search", format="mxfp8") == ExitCode.USAGE
    assert "is for nvfp4 and w4a16_nvfp4" in capsys.readouterr().err
    assert leftovers(tmp_path) == []


def test_the_torch_device_gives_the_same_variant(source: Path, tmp_path: Path) -> None:
    for device in ("cpu", "torch"):
        assert mill(source, tmp_path / device, *QUICK, "--device", device, format="nvfp4") == ExitCode.OK
    names = sorted(path.name for path in (tmp_path / "cpu").iterdir())
    assert [path.name for path in sorted((tmp_path / "torch").iterdir())] == names
    assert all((tmp_path / "cpu" / name).read_bytes() == (tmp_path / "torch" / name).read_bytes() for name in names)


def test_refused_input_names_every_offender(source: Path, tmp_path: Path, capsys: Capture) -> None:
    [first, second] = sorted(source.glob("*.safetensors"))
    poisoned = []
    for file in (first, second):
        tensors = stored(source, file.name)
        name = next(name for name in tensors if name.endswith("_proj.weight"))
        tensors[name][0, 0] = float("nan")
        poisoned.append(name)
        save_file(tensors, file)
    assert mill(source, tmp_path / "out", *QUICK, "--json") == ExitCode.PROBLEM
    problem = json.loads(capsys.readouterr().out)
    assert problem["type"].endswith("non-finite-weights")
    assert sorted(offender["where"] for offender in problem["offenders"]) == sorted(poisoned)
    assert leftovers(tmp_path) == []
    assert not (tmp_path / "out").exists()


def test_an_unused_exclude_is_refused(source: Path, tmp_path: Path, capsys: Capture) -> None:
    assert mill(source, tmp_path / "out", "--exclude", "*nothing*", "--exclude", "*none*") == ExitCode.PROBLEM
    assert "*nothing*" in (printed := capsys.readouterr().err)
    assert "*none*" in printed


@pytest.mark.parametrize(
    "arguments",
    [
        ("--format", "fp9"),
        ("--dtype", "int8"),
        ("--scales", "some"),
        ("--threads", "0"),
        ("--device", "tpu"),
        ("--device", "cuda:99"),
        ("--bogus",),
    ],
)
def test_a_wrong_command_line(source: Path, tmp_path: Path, arguments: tuple[str, ...]) -> None:
    assert mill(source, tmp_path / "out", *arguments) == ExitCode.USAGE
    assert leftovers(tmp_path) == []


def test_a_source_that_is_not_there(tmp_path: Path) -> None:
    assert mill(tmp_path / "nowhere", tmp_path / "out") == ExitCode.PROBLEM


def test_the_output_never_replaces_unasked(source: Path, tmp_path: Path, capsys: Capture) -> None:
    out = tmp_path / "out"
    out.mkdir()
    (out / "mine").write_text("kept")
    assert mill(source, out, *QUICK) == ExitCode.USAGE
    assert "--overwrite" in capsys.readouterr().err
    assert [path.name for path in out.iterdir()] == ["mine"]
    (out / "config.json").write_text("{}")
    assert mill(source, out, *QUICK, "--overwrite") == ExitCode.USAGE
    assert "holds no variant" in capsys.readouterr().err
    assert sorted(path.name for path in out.iterdir()) == ["config.json", "mine"]
    assert leftovers(tmp_path) == []


@pytest.mark.parametrize("parent", ["a file", "/proc", "a file/below", "x" * 300])
def test_an_output_that_cannot_be_made_is_one_line(source: Path, tmp_path: Path, capsys: Capture, parent: str) -> None:
    (tmp_path / "a file").write_text("")
    assert mill(source, tmp_path / parent / "out", *QUICK) == ExitCode.USAGE
    printed = capsys.readouterr().err
    assert "--out" in printed
    assert "Traceback" not in printed


def test_a_variant_or_an_empty_folder_is_replaced_when_asked(source: Path, tmp_path: Path) -> None:
    out = tmp_path / "out"
    out.mkdir()
    for format in ("fp8", "nvfp4"):
        assert mill(source, out, *QUICK, "--overwrite", format=format) == ExitCode.OK
        assert json.loads((out / "plan.json").read_text())["format"] == format
    assert leftovers(tmp_path) == []


def test_an_output_that_is_a_link_is_refused(source: Path, tmp_path: Path, capsys: Capture) -> None:
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / "out").symlink_to(tmp_path / "elsewhere")
    assert mill(source, tmp_path / "out", *QUICK, "--overwrite") == ExitCode.USAGE
    assert "is a link" in capsys.readouterr().err


def test_a_training_output_folder_stands_for_its_newest_export(tmp_path: Path, capsys: Capture) -> None:
    for step in (99, 100):
        build(tmp_path / "run" / f"exported-checkpoint-{step}", "eagle3", Layout())
    assert mill(tmp_path / "run", tmp_path / "out", *QUICK, "--json") == ExitCode.OK
    printed = capsys.readouterr()
    newest = str(tmp_path / "run" / "exported-checkpoint-100")
    assert json.loads(printed.out)["source"] == newest
    assert f"source: {newest}" in printed.err


def cached(folder: Path, cache: Path) -> Path:
    """The folder's files as a Hub cache stores them: blobs, and a snapshot of links."""
    snapshot = cache / "snapshots" / ("a" * 40)
    snapshot.mkdir(parents=True)
    blobs = folder.rename(cache / "blobs")
    for path in blobs.iterdir():
        (snapshot / path.name).symlink_to(os.path.relpath(path, snapshot))
    return snapshot


def test_a_snapshot_of_links_gives_the_variant_of_its_files(source: Path, tmp_path: Path) -> None:
    (source / "tokenizer_config.json").write_text("{}")
    assert mill(source, tmp_path / "plain", *QUICK) == ExitCode.OK
    snapshot = cached(source, tmp_path / "models--org--drafter")
    before = fingerprint(tmp_path / "models--org--drafter")
    assert mill(snapshot, tmp_path / "out", "--no-fsync") == ExitCode.OK
    assert changed(tmp_path / "models--org--drafter", before) == []
    assert make_manifest(tmp_path / "out") == make_manifest(tmp_path / "plain")
    assert not any(path.is_symlink() for path in (tmp_path / "out").iterdir())
    assert leftovers(tmp_path) == []


def test_links_are_judged_before_any_work(source: Path, tmp_path: Path, capsys: Capture) -> None:
    snapshot = cached(source, tmp_path / "models--org--drafter")
    (snapshot / "tokenizer.json").symlink_to("../../blobs/gone")
    (snapshot / "chat_template.jinja").symlink_to("/dev/zero")
    assert mill(snapshot, tmp_path / "out", *QUICK) == ExitCode.PROBLEM
    printed = capsys.readouterr().err
    assert "tokenizer.json" in printed
    assert "chat_template.jinja" in printed
    assert "quantize:" not in printed
    assert leftovers(tmp_path) == []


def test_source_and_output_do_not_nest(source: Path, tmp_path: Path) -> None:
    before = fingerprint(tmp_path)
    for out in (source, source / "out", tmp_path):
        assert mill(source, out, *QUICK, "--overwrite") == ExitCode.USAGE
    assert fingerprint(tmp_path) == before


def test_a_variant_that_fails_its_checks_is_thrown_away(
    source: Path, tmp_path: Path, capsys: Capture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A writer that loses what it was given: kept tensors come out as zeros."""
    copied = moves._copy_span

    def lossy(files, tensor, first, last):  # type: ignore[no-untyped-def]
        if tensor.name != "lm_head.weight":
            copied(files, tensor, first, last)

    monkeypatch.setattr(moves, "_copy_span", lossy)
    assert mill(source, tmp_path / "out", "--json") == ExitCode.FAILED
    document = json.loads(capsys.readouterr().out)
    assert document["folder"] is None
    failed = [check for check in document["verify"]["checks"] if check["status"] == "fail"]
    assert [check["id"] for check in failed] == ["untouched-identical"]
    assert leftovers(tmp_path) == []
    assert not (tmp_path / "out").exists()


def test_a_source_that_changes_meanwhile(
    source: Path, tmp_path: Path, capsys: Capture, monkeypatch: pytest.MonkeyPatch
) -> None:
    copied = moves._copy_span

    def touching(files, tensor, first, last):  # type: ignore[no-untyped-def]
        os.utime(source / "config.json")
        copied(files, tensor, first, last)

    monkeypatch.setattr(moves, "_copy_span", touching)
    assert mill(source, tmp_path / "out", *QUICK) == ExitCode.PROBLEM
    assert "source-changed" in capsys.readouterr().err
    assert leftovers(tmp_path) == []


def leftovers(folder: Path) -> list[str]:
    return [path.name for path in folder.iterdir() if path.name.startswith(".")]
