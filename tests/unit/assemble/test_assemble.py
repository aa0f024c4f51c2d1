"""A variant folder's documents: what is written, what is copied, what never is."""

import json
import shlex
import stat
from pathlib import Path
from typing import Any

import pytest

from draftmill.formats import FORMATS, Format
from draftmill.jobs import QuantizeOptions
from draftmill.plans import Family, Plan
from draftmill.problems import ProblemError
from draftmill_worker.assemble import AssembleResult, assemble
from draftmill_worker.checkpoint.checkpoint import Checkpoint, open_checkpoint
from draftmill_worker.checkpoint.families import Drafter, detect
from draftmill_worker.quantize.plan import make_plan
from tests.fixtures.synthetic import Layout
from tests.unit.assemble.sources import BLOCK, FAMILIES, edit_config, make_source

COMMIT = "0123456789abcdef0123456789abcdef01234567"


def built(
    source: Path,
    out: Path,
    format: Format = Format.FP8,
    options: QuantizeOptions | None = None,
    repo: str | None = "org/tiny-drafter",
) -> tuple[AssembleResult, Plan, Drafter, Checkpoint]:
    out.mkdir()
    checkpoint = open_checkpoint(source)
    drafter = detect(checkpoint)
    plan = make_plan(checkpoint, drafter, format, options or QuantizeOptions())
    result = assemble(source, checkpoint, drafter, plan, out, repo=repo, commit=COMMIT if repo else None)
    return result, plan, drafter, checkpoint


def loaded(path: Path) -> dict[str, Any]:
    value: dict[str, Any] = json.loads(path.read_text())
    return value


def speculative(card: str) -> tuple[list[str], dict[str, Any]]:
    """The command's words and its --speculative-config."""
    words = shlex.split(card.split("```sh\n")[1].split("```", maxsplit=1)[0].replace("\\\n", ""))
    return words, json.loads(words[words.index("--speculative-config") + 1])


@pytest.mark.parametrize("format", Format)
@pytest.mark.parametrize("family", FAMILIES)
def test_every_family_and_format(tmp_path: Path, family: Family, format: Format) -> None:
    source = make_source(tmp_path / "source", family)
    result, plan, _, checkpoint = built(source, tmp_path / "out", format)
    config = loaded(tmp_path / "out" / "config.json")
    spec = FORMATS[format]
    assert config.pop("quantization_config")[spec.algo_key] == spec.quant_algo
    assert config == checkpoint.config
    assert loaded(tmp_path / "out" / "plan.json") == plan.model_dump(mode="json", by_alias=True)
    words, spoken = speculative((tmp_path / "out" / "README.md").read_text())
    assert spoken["method"] == family.value
    assert spoken["quantization"] == spec.quant_method
    assert words[words.index("--dtype") + 1] == "bfloat16"
    nested = () if spec.quant_method == "compressed-tensors" else ("hf_quant_config.json",)
    assert result.written == ("README.md", "config.json", *nested, "plan.json")


def test_what_travels_and_what_does_not(tmp_path: Path) -> None:
    source = make_source(tmp_path / "source", Family.EAGLE3)
    (source / "hf_quant_config.json").write_text('{"quantization": {"quant_algo": "OLD"}}')
    result, _, _, _ = built(source, tmp_path / "out")
    assert result.copied == (
        "chat_template.jinja",
        "generation_config.json",
        "layers_tiny.py",
        "modeling_tiny.py",
        "recipe.yaml",
        "tokenizer.json",
        "tokenizer_config.json",
    )
    assert {path.name for path in (tmp_path / "out").iterdir()} == {*result.copied, *result.written}
    for name in result.copied:
        assert (tmp_path / "out" / name).read_bytes() == (source / name).read_bytes()
    assert loaded(tmp_path / "out" / "hf_quant_config.json")["quantization"]["quant_algo"] == "FP8"


def test_files_are_plain_and_their_own(tmp_path: Path) -> None:
    source = make_source(tmp_path / "source", Family.EAGLE3)
    (source / "tokenizer.json").chmod(0o400)
    built(source, tmp_path / "out")
    for path in (tmp_path / "out").iterdir():
        status = path.lstat()
        assert stat.S_ISREG(status.st_mode), path.name
        assert (stat.S_IMODE(status.st_mode), status.st_nlink) == (0o644, 1), path.name


def test_a_rebuild_elsewhere_gives_the_same_bytes(tmp_path: Path) -> None:
    first, second = tmp_path / "a", tmp_path / "b"
    for root in (first, second):
        root.mkdir()
        built(make_source(root / "source", Family.DSPARK), root / "out")
    for path in (first / "out").iterdir():
        text = path.read_bytes()
        assert text == (second / "out" / path.name).read_bytes()
        assert str(tmp_path).encode() not in text


def test_json_is_canonical_with_a_newline(tmp_path: Path) -> None:
    built(make_source(tmp_path / "source", Family.DFLASH, Layout(shards=2)), tmp_path / "out")
    for name in ("config.json", "hf_quant_config.json", "plan.json", "model.safetensors.index.json"):
        text = (tmp_path / "out" / name).read_text()
        assert text == json.dumps(json.loads(text), sort_keys=True, indent=2, ensure_ascii=False) + "\n"


def test_the_index_covers_scales_and_counts_their_bytes(tmp_path: Path) -> None:
    source = make_source(tmp_path / "source", Family.EAGLE3, Layout(shards=3))
    _, plan, _, _ = built(source, tmp_path / "out", Format.NVFP4)
    index = loaded(tmp_path / "out" / "model.safetensors.index.json")
    places = {output.name: tensor.file for tensor in plan.tensors for output in tensor.outputs}
    assert index == {"metadata": {"total_size": plan.variant_bytes}, "weight_map": places}
    assert "midlayer.self_attn.q_proj.weight_scale_2" in places


def test_one_file_of_another_name_needs_an_index(tmp_path: Path) -> None:
    source = make_source(tmp_path / "source", Family.EAGLE3)
    (source / "model.safetensors").rename(source / "drafter.safetensors")
    result, _, _, _ = built(source, tmp_path / "out")
    assert "model.safetensors.index.json" in result.written


@pytest.mark.parametrize(
    ("options", "before", "after"),
    [
        (QuantizeOptions(), "float32", "bfloat16"),
        (QuantizeOptions(dtype="float16"), "float32", "float16"),
        (QuantizeOptions(dtype="keep"), "float32", "float32"),
        (QuantizeOptions(), ..., "bfloat16"),
    ],
)
def test_the_dtype_said_is_the_dtype_written(tmp_path: Path, options: QuantizeOptions, before: Any, after: str) -> None:
    source = make_source(tmp_path / "source", Family.EAGLE3)
    edit_config(source, torch_dtype=before)
    built(source, tmp_path / "out", options=options)
    assert loaded(tmp_path / "out" / "config.json")["torch_dtype"] == after


def test_both_dtype_keys_and_nested_ones_follow(tmp_path: Path) -> None:
    source = make_source(tmp_path / "source", Family.EAGLE3)
    nested = {"dtype": "torch.float32", "kind": "float32", "compression_config": {"old": 1}}
    edit_config(source, torch_dtype=..., dtype="float32", extra_config=nested)
    built(source, tmp_path / "out")
    config = loaded(tmp_path / "out" / "config.json")
    assert config["dtype"] == "bfloat16"
    assert "torch_dtype" not in config
    assert config["extra_config"] == {"dtype": "bfloat16", "kind": "float32"}


@pytest.mark.parametrize(
    ("family", "changes", "tokens"),
    [
        (Family.EAGLE3, {}, 3),
        (Family.EAGLE3, {"num_speculative_tokens": 5}, 5),
        (Family.EAGLE3, {"eagle_config": {"num_speculative_tokens": 6}}, 6),
        (Family.EAGLE3, {"num_speculative_tokens": True}, 3),
        (Family.DFLASH, {}, BLOCK - 1),
        (Family.DFLASH, {"num_speculative_tokens": 2}, 2),
        (Family.DFLASH, {"num_speculative_tokens": 15}, BLOCK - 1),
        (Family.DSPARK, {}, BLOCK),
        (Family.DSPARK, {"num_speculative_tokens": 2}, BLOCK),
        (Family.DSPARK, {"sample_from_anchor": True}, BLOCK),
        (Family.DSPARK, {"sample_from_anchor": False}, BLOCK - 1),
        (Family.DRAFT_MODEL, {}, 3),
    ],
)
def test_the_number_of_draft_tokens_is_always_said(
    tmp_path: Path, family: Family, changes: dict[str, Any], tokens: int
) -> None:
    source = make_source(tmp_path / "source", family)
    edit_config(source, **changes)
    built(source, tmp_path / "out")
    _, spoken = speculative((tmp_path / "out" / "README.md").read_text())
    assert spoken["num_speculative_tokens"] == tokens


def test_target_and_drafter_are_pinned_apart(tmp_path: Path) -> None:
    built(make_source(tmp_path / "source", Family.EAGLE3), tmp_path / "out")
    words, spoken = speculative((tmp_path / "out" / "README.md").read_text())
    assert words[words.index("--revision") + 1] == "TARGET_REVISION"
    assert (spoken["model"], spoken["revision"]) == ("DRAFTER", "DRAFTER_REVISION")


def test_the_card_names_its_source_or_none(tmp_path: Path) -> None:
    source = make_source(tmp_path / "source", Family.EAGLE3)
    built(source, tmp_path / "hub")
    built(source, tmp_path / "local", repo=None)
    hub, local = ((tmp_path / name / "README.md").read_text() for name in ("hub", "local"))
    assert "base_model: org/tiny-drafter" in hub
    assert COMMIT in hub
    assert "base_model" not in local
    assert "a local checkpoint folder" in local


def test_the_card_says_whose_tokenizer_it_is(tmp_path: Path) -> None:
    source = make_source(tmp_path / "source", Family.EAGLE3)
    built(source, tmp_path / "own")
    for name in ("tokenizer.json", "tokenizer_config.json"):
        (source / name).unlink()
    built(source, tmp_path / "none")
    assert "Tokenizer: as the source ships it" in (tmp_path / "own" / "README.md").read_text()
    assert "Tokenizer: the one of the target" in (tmp_path / "none" / "README.md").read_text()


def test_a_reference_elsewhere_is_a_note_on_the_card(tmp_path: Path) -> None:
    source = make_source(tmp_path / "source", Family.EAGLE3)
    edit_config(source, auto_map={"AutoModel": "org/other--x.Y"})
    result, _, _, _ = built(source, tmp_path / "out")
    assert "org/other--x.Y" in result.warnings[0]
    assert "org/other--x.Y" in (tmp_path / "out" / "README.md").read_text()


def test_a_pickled_mask_embedding_is_refused(tmp_path: Path) -> None:
    source = make_source(tmp_path / "source", Family.DFLASH)
    (source / "mask_embedding.pt").write_bytes(b"pickle")
    with pytest.raises(ProblemError, match="pickle-refused"):
        built(source, tmp_path / "out")
    assert list((tmp_path / "out").iterdir()) == []


def test_a_sidecar_that_links_out_is_refused_before_anything_is_written(tmp_path: Path) -> None:
    source = make_source(tmp_path / "source", Family.EAGLE3)
    secret = tmp_path / "secret"
    secret.write_text("secret")
    (source / "vocab.txt").symlink_to(secret)
    with pytest.raises(ProblemError, match="unsafe-path"):
        built(source, tmp_path / "out")
    assert list((tmp_path / "out").iterdir()) == []


def test_nothing_is_overwritten(tmp_path: Path) -> None:
    source = make_source(tmp_path / "source", Family.EAGLE3)
    built(source, tmp_path / "out")
    checkpoint = open_checkpoint(source)
    drafter = detect(checkpoint)
    plan = make_plan(checkpoint, drafter, Format.FP8, QuantizeOptions())
    with pytest.raises(FileExistsError):
        assemble(source, checkpoint, drafter, plan, tmp_path / "out", repo=None, commit=None)
