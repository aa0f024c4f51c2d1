"""Variant directories: what is linked, what is copied, what is rewritten, and that the source never changes."""

import errno
import json
import os
from pathlib import Path

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from draftmill.heads import HeadOptions
from draftmill.problems import ProblemError
from draftmill_worker.checkpoint.checkpoint import open_checkpoint
from draftmill_worker.heads import config, rounded, variant
from draftmill_worker.heads.directory import Placed, make_directory
from draftmill_worker.heads.draft_head import IDS, MODULE
from draftmill_worker.heads.quantize import quantize_head
from draftmill_worker.heads.rewrite import Write, rewrite, write_file
from draftmill_worker.heads.source import find_head
from tests.fixtures import synthetic
from tests.unit.heads import layouts

EXTRA = "model_extra_tensors.safetensors"
PARTS = ("weight_packed", "weight_scale", "weight_shape")
VOCAB = torch.arange(0, 1024, 3)
WRITERS = {"renaming": write_file, "truncating": layouts.truncating}


def _steps(source: Path, out: Path, scratch: Path, write: Write, *, mtp: bool = False) -> None:
    """Head, MTP block and draft vocabulary, each step twice."""
    checkpoint = open_checkpoint(source)
    head = find_head(source, checkpoint)
    options = HeadOptions(bits=4, method="rtn", mtp=8 if mtp else None)
    for number in range(2):
        file = scratch / f"head-{number}"
        quantize_head(head, options, None, file, lambda *_: None)
        rewritten = [variant.Rewritten(file, variant.head_group(head, 4))]
        for group, tensors in variant.rounded_groups(checkpoint, options):
            rounded.round_all(source, tensors, 8, scratch / f"{group.name}-{number}")
            rewritten.append(variant.Rewritten(scratch / f"{group.name}-{number}", group))
        variant.place(out, rewritten, tied=head.tied, write=write)
    for _ in range(2):
        variant.cut(out, VOCAB, community=True, write=write)


@pytest.mark.parametrize("writer", WRITERS)
@pytest.mark.parametrize("cached", [False, True], ids=["folder", "hub-cache"])
@pytest.mark.parametrize("layout", layouts.LAYOUTS)
def test_every_step_done_twice_leaves_the_source_as_it_was(
    tmp_path: Path, layout: str, cached: bool, writer: str
) -> None:
    source = layouts.LAYOUTS[layout](tmp_path / "source")
    if cached:
        source = layouts.hub_cache(tmp_path / "cache", source)
    before = layouts.state(source)
    out = tmp_path / "out"
    make_directory(source, open_checkpoint(source), out)
    assert any(path.stat().st_nlink > 1 for path in out.glob("*.safetensors"))
    _steps(source, out, tmp_path, WRITERS[writer])
    assert layouts.state(source) == before
    assert layouts.tensors(out)[f"{MODULE}.weight_packed"].shape == (len(VOCAB), 256 // 8)
    assert not [path.name for path in out.iterdir() if path.is_symlink() or path.name.startswith(".")]


def test_the_truncating_writer_does_harm_where_a_name_is_not_freed_first(tmp_path: Path) -> None:
    """What the test above guards against is real."""
    source = layouts.streamed(tmp_path / "source")
    before = layouts.state(source)
    make_directory(source, open_checkpoint(source), tmp_path / "out")
    layouts.truncating(tmp_path / "out" / "model.safetensors", [])
    assert layouts.state(source) != before


@pytest.mark.parametrize("layout", layouts.LAYOUTS)
def test_what_is_not_rewritten_is_the_sources_own(tmp_path: Path, layout: str) -> None:
    source = layouts.LAYOUTS[layout](tmp_path / "source")
    out = tmp_path / "out"
    placed = make_directory(source, open_checkpoint(source), out)
    assert placed.linked == sorted(path.name for path in source.glob("*.safetensors"))
    assert not (out / "model-00001-of-00003.safetensors.bak").exists()
    whole = {name: value for path in source.glob("*.safetensors") for name, value in layouts.load_file(path).items()}
    _steps(source, out, tmp_path, write_file)
    found = layouts.tensors(out)
    added = {f"{module}.{part}" for module in ("lm_head", MODULE) for part in PARTS} | {IDS}
    assert found.keys() == (whole.keys() - {"lm_head.weight"}) | added
    assert all(torch.equal(found[name], whole[name]) for name in whole.keys() - {"lm_head.weight"})
    # Sidecars come along as files of their own.
    for name in placed.sidecars:
        assert (out / name).stat().st_ino != (source / name).stat().st_ino
        assert (
            name in ("config.json", "quantization_config.json")
            or (out / name).read_bytes() == (source / name).read_bytes()
        )
    assert {"preprocessor_config.json", "recipe.yaml"} <= set(placed.sidecars) or layout == "shards"


def test_draft_rows_are_the_heads_bit_for_bit(tmp_path: Path) -> None:
    source = layouts.streamed(tmp_path / "source")
    out = tmp_path / "out"
    make_directory(source, open_checkpoint(source), out)
    _steps(source, out, tmp_path, write_file)
    found = layouts.tensors(out)
    for part in PARTS[:2]:
        assert torch.equal(found[f"{MODULE}.{part}"], found[f"lm_head.{part}"][VOCAB])
    assert found[f"{MODULE}.weight_shape"].tolist() == [len(VOCAB), 256]
    assert torch.equal(found[IDS], VOCAB)
    said = json.loads((out / "config.json").read_text())
    assert (said["mtp_draft_vocab_size"], said["mtp_draft_vocab_ids"]) == (len(VOCAB), VOCAB.tolist())
    community = torch.load(out / "mtp_draft_vocab_ids.pt", weights_only=True)
    assert community.dtype == torch.int64
    assert torch.equal(community, VOCAB)
    assert MODULE + ".weight_packed" in layouts.load_file(out / EXTRA)


@pytest.mark.parametrize("tied", [False, True])
def test_an_unquantized_head_is_cut_as_it_is(tmp_path: Path, tied: bool) -> None:
    source = layouts.streamed(tmp_path / "source", tied=tied, index=False)
    out = tmp_path / "out"
    make_directory(source, open_checkpoint(source), out)
    variant.cut(out, VOCAB, community=False)
    found = layouts.tensors(out)
    head = found["model.embed_tokens.weight" if tied else "lm_head.weight"]
    # Whether tied or not: vLLM would take the draft head for it.
    assert torch.equal(found["lm_head.weight"], head)
    assert torch.equal(found[f"{MODULE}.weight"], head[VOCAB])
    assert not (out / "mtp_draft_vocab_ids.pt").exists()
    assert "quantization_config" not in json.loads((out / "config.json").read_text())


def test_a_tied_head_gets_a_place_of_its_own_and_the_embedding_stays(tmp_path: Path) -> None:
    source = layouts.streamed(tmp_path / "source", tied=True)
    out = tmp_path / "out"
    make_directory(source, open_checkpoint(source), out)
    _steps(source, out, tmp_path, write_file)
    assert (out / "model.safetensors").samefile(source / "model.safetensors")
    assert json.loads((out / "config.json").read_text())["tie_word_embeddings"] is False


def test_a_new_head_takes_the_draft_head_of_the_old_one_with_it(tmp_path: Path) -> None:
    source = layouts.streamed(tmp_path / "source")
    out = tmp_path / "out"
    make_directory(source, open_checkpoint(source), out)
    variant.cut(out, VOCAB, community=False)
    head = find_head(source, open_checkpoint(source))
    quantize_head(head, HeadOptions(bits=8, method="rtn"), None, tmp_path / "h", lambda *_: None)
    variant.place(out, [variant.Rewritten(tmp_path / "h", variant.head_group(head, 8))], tied=False)
    assert not [name for name in layouts.tensors(out) if "draft" in name]
    assert "mtp_draft_vocab_ids" not in json.loads((out / "config.json").read_text())


@pytest.mark.parametrize("code", [errno.EXDEV, errno.EPERM])
def test_where_no_link_can_be_made_a_copy_is_and_says_why(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, code: int
) -> None:
    def refuse(*_: object) -> None:
        raise OSError(code, "no")

    source = layouts.streamed(tmp_path / "source")
    monkeypatch.setattr(os, "link", refuse)
    placed = make_directory(source, open_checkpoint(source), tmp_path / "out")
    assert placed.linked == []
    assert placed.copied.keys() == {"model.safetensors", "model-mtp.safetensors"}
    assert (tmp_path / "out" / "model.safetensors").stat().st_nlink == 1
    _steps(source, tmp_path / "out", tmp_path, write_file)


def test_other_errors_of_linking_are_errors(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object) -> None:
        raise OSError(errno.ENOSPC, "full")

    source = layouts.streamed(tmp_path / "source")
    monkeypatch.setattr(os, "link", refuse)
    with pytest.raises(OSError, match="full"):
        make_directory(source, open_checkpoint(source), tmp_path / "out")


def test_a_tensor_to_remove_must_be_there(tmp_path: Path) -> None:
    source = layouts.streamed(tmp_path / "source")
    make_directory(source, open_checkpoint(source), tmp_path / "out")
    with pytest.raises(ProblemError, match="not there"):
        rewrite(tmp_path / "out", ["nothing.weight"], [])


def _section(folder: Path, name: str = "config.json") -> dict[str, object]:
    document = json.loads((folder / name).read_text())
    return document["quantization_config"] if name == "config.json" else document


def test_the_configuration_puts_the_head_first_and_frees_it_from_ignore(tmp_path: Path) -> None:
    from compressed_tensors.quantization import QuantizationConfig

    source = layouts.shards(tmp_path / "source")
    out = tmp_path / "out"
    make_directory(source, open_checkpoint(source), out)
    _steps(source, out, tmp_path, write_file, mtp=True)
    for name in ("config.json", "quantization_config.json"):
        section = _section(out, name)
        assert list(section["config_groups"]) == ["draftmill_head", "draftmill_mtp", "group_0"]
        assert section["format"] == "mixed-precision"
        assert section["config_groups"]["group_0"] == {**layouts.BODY, "format": "int-quantized"}
        read = QuantizationConfig.model_validate(section)
        assert read.config_groups["draftmill_head"].weights.num_bits == 4
        assert read.config_groups["draftmill_mtp"].weights.num_bits == 8
        # `re:^mtp.*` covered the block, which is quantized now, and its norms, which are not.
        assert "lm_head" not in section["ignore"]
        assert {"mtp.norm", "model.embed_tokens"} <= set(section["ignore"])
        assert not any(entry.startswith("re:") for entry in section["ignore"])


def test_vllm_finds_the_groups(tmp_path: Path) -> None:
    utils = pytest.importorskip("vllm.model_executor.layers.quantization.compressed_tensors.utils")
    source = layouts.streamed(tmp_path / "source")
    out = tmp_path / "out"
    make_directory(source, open_checkpoint(source), out)
    _steps(source, out, tmp_path, write_file, mtp=True)
    groups = _section(out)["config_groups"]
    targets = {target: name for name, group in groups.items() for target in group["targets"]}
    fused = {"qkv_proj": ["q_proj", "k_proj", "v_proj"], "gate_up_proj": ["gate_proj", "up_proj"]}
    wanted = {
        "lm_head": "draftmill_head",
        "language_model.lm_head": "draftmill_head",
        "mtp.draft_lm_head": "draftmill_head",
        "mtp.layers.0.self_attn.qkv_proj": "draftmill_mtp",
        "mtp.layers.0.mlp.gate_up_proj": "draftmill_mtp",
        "mtp.fc": "draftmill_mtp",
        "model.layers.0.self_attn.qkv_proj": None,
        "model.embed_tokens": None,
    }
    for name, group in wanted.items():
        found = utils.find_matched_target(name, torch.nn.Identity(), targets, fused)
        assert (None if found is None else targets[found]) == group


def test_another_quantizers_checkpoint_is_refused() -> None:
    group = config.Group("draftmill_head", config.HEAD, 4, ("lm_head",))
    with pytest.raises(ProblemError) as caught:
        config.with_groups({"quantization_config": {"quant_method": "modelopt"}}, [group], [])
    assert caught.value.problem.slug == "head-refused"


def test_an_embedding_that_no_engine_reads_is_refused(tmp_path: Path) -> None:
    source = layouts.streamed(tmp_path / "source")
    with pytest.raises(ProblemError, match="without a quantization config"):
        variant.rounded_groups(open_checkpoint(source), HeadOptions(method="rtn", embeddings=8))


def test_an_embedding_is_rounded_where_engines_read_it(tmp_path: Path) -> None:
    source = synthetic.build(tmp_path / "source", "draft_model", sizes=synthetic.Sizes(vocab=384))
    out = tmp_path / "out"
    checkpoint = open_checkpoint(source)
    make_directory(source, checkpoint, out)
    [(group, tensors)] = variant.rounded_groups(checkpoint, HeadOptions(method="rtn", embeddings=8))
    rounded.round_all(source, tensors, 8, tmp_path / "e")
    before = layouts.load_file(source / "model.safetensors")["model.embed_tokens.weight"].float()
    variant.place(out, [variant.Rewritten(tmp_path / "e", group)], tied=False)
    found = layouts.tensors(out)
    assert found["model.embed_tokens.weight_packed"].shape == (384, 32)
    codes = found["model.embed_tokens.weight_packed"].view(torch.uint8).float() - 128
    assert (codes * found["model.embed_tokens.weight_scale"].float() - before).abs().max() < 0.01
    assert _section(out)["config_groups"]["draftmill_embeddings"]["targets"] == list(config.EMBEDDING)


NATIVE = {
    "eagle3": {"own_head": True},
    "dflash": {"own_head": True},
    "dspark": {"own_head": True},
}


@pytest.mark.parametrize("family", NATIVE)
def test_native_families_get_their_own_maps(tmp_path: Path, family: str) -> None:
    from draftmill_worker.checkpoint.families import detect

    source = synthetic.build(tmp_path / "source", family, **NATIVE[family])
    before = layouts.load_file(source / "model.safetensors")
    old = before["d2t"] + torch.arange(len(before["d2t"])) if "d2t" in before else torch.arange(320)
    ids = old[torch.arange(0, len(old), 3)]
    out = tmp_path / "out"
    make_directory(source, open_checkpoint(source), out)
    for _ in range(2):
        variant.cut(out, ids, community=False)
    found = layouts.tensors(out)
    places = torch.arange(0, len(old), 3)
    assert torch.equal(found["lm_head.weight"], before["lm_head.weight"][places])
    assert torch.equal(found["d2t"] + torch.arange(len(ids)), ids)
    assert torch.equal(found["t2d"].nonzero().flatten(), ids)
    assert json.loads((out / "config.json").read_text())["draft_vocab_size"] == len(ids)
    if family == "dspark":
        name = "markov_head.markov_w2.weight"
        assert torch.equal(found[name], before[name][places])
        assert torch.equal(found["markov_head.markov_w1.weight"], before["markov_head.markov_w1.weight"])
    assert detect(open_checkpoint(out)).draft_vocab_size == len(ids)


def test_a_native_drafter_that_never_had_a_token_is_told(tmp_path: Path) -> None:
    source = synthetic.build(tmp_path / "source", "eagle3")
    make_directory(source, open_checkpoint(source), tmp_path / "out")
    with pytest.raises(ProblemError, match="no row") as caught:
        variant.cut(tmp_path / "out", torch.tensor([0, 1, 3]), community=False)
    assert [offender.value for offender in caught.value.problem.offenders] == [1, 3]


def test_a_borrowed_head_cannot_be_cut(tmp_path: Path) -> None:
    source = synthetic.build(tmp_path / "source", "dflash", own_head=False)
    make_directory(source, open_checkpoint(source), tmp_path / "out")
    with pytest.raises(ProblemError) as caught:
        variant.cut(tmp_path / "out", torch.tensor([0, 1]), community=False)
    assert caught.value.problem.slug == "head-refused"


@given(
    entries=st.lists(st.sampled_from(["lm_head", "re:.*lm_head", "re:mtp.*", "mtp.fc", "model.x", "re:.*"]), max_size=4)
)
@settings(max_examples=60)
def test_ignore_never_covers_what_was_rewritten_and_keeps_all_else(entries: list[str]) -> None:
    plain = ["mtp.norm", "model.x", "model.y"]
    groups = [config.Group("draftmill_head", config.HEAD, 4, ("lm_head", "mtp.fc"))]
    found = config.merged({"ignore": entries}, groups, plain)["ignore"]
    for name in ("lm_head", "mtp.fc"):
        assert not any(config.matches(name, entry) for entry in found)
    for name in plain:
        assert any(config.matches(name, entry) for entry in entries) == any(config.matches(name, e) for e in found)


def test_nothing_is_placed_twice(tmp_path: Path) -> None:
    source = layouts.streamed(tmp_path / "source")
    placed = make_directory(source, open_checkpoint(source), tmp_path / "out", link=False)
    assert placed == Placed([], dict.fromkeys(sorted(placed.copied), "links were not asked for"), placed.sidecars)
    with pytest.raises(FileExistsError):
        make_directory(source, open_checkpoint(source), tmp_path / "out")
