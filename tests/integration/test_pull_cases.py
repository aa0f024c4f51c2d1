"""The pull cases of CASES.md that a checkpoint brings with it, through a whole pull and through a preflight.

C5, C52, C72, C80, C97 and C117 are in the files beside this one; every family's rules in tests/unit/checkpoint.
"""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors.numpy import load_file, save_file

from draftmill.plans import Family, Head
from draftmill.problems import ProblemError
from draftmill_worker.checkpoint.checkpoint import open_checkpoint
from draftmill_worker.checkpoint.families import detect
from draftmill_worker.pull import HubSettings, LocalSettings, pull_path, pull_repo, read_remote
from tests.conftest import ServedHub
from tests.unit.pull import builders

REPO = "org/drafter"
NESTED: dict[str, Any] = {"target_layer_ids": [0, 1], "mask_token_id": 3, "block_size": 4}


@pytest.fixture(autouse=True)
def no_token(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("HF_TOKEN", raising=False)
    monkeypatch.delenv("HF_HUB_OFFLINE", raising=False)


@pytest.fixture
def settings(hub: ServedHub) -> HubSettings:
    return HubSettings(endpoint=hub.url, tries=2, backoff_seconds=0.01)


def change_config(folder: Path, **fields: Any) -> None:
    path = folder / "config.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | fields))


def add_tensor(folder: Path, name: str) -> None:
    tensors = load_file(folder / "model.safetensors")
    save_file(tensors | {name: np.ones(1, dtype=np.float32)}, folder / "model.safetensors")


def c2_promised_layer(folder: Path) -> None:
    builders.draft_model(folder, num_nextn_predict_layers=1)


def c4_missing_shard(folder: Path) -> None:
    builders.draft_model(folder, shards=2)
    (folder / "model-00002-of-00002.safetensors").unlink()


def c4_missing_tensor(folder: Path) -> None:
    builders.draft_model(folder, shards=2)
    path = folder / builders.INDEX
    index = json.loads(path.read_text())
    index["weight_map"]["model.layers.7.gone.weight"] = "model-00001-of-00002.safetensors"
    path.write_text(json.dumps(index))


def c10_head_of_random_weights(folder: Path) -> None:
    builders.eagle3(folder, vocab=64, draft_vocab=64, head=False)


def c15_no_target_layers(folder: Path) -> None:
    builders.dflash(folder, nested={"mask_token_id": 3, "block_size": 4})


def c42_tied_and_trimmed(folder: Path) -> None:
    builders.eagle3(folder, vocab=64, draft_vocab=32, tie_word_embeddings=True)


def c47_quantized(folder: Path) -> None:
    builders.draft_model(folder, quantization_config={"quant_method": "modelopt", "quant_algo": "FP8"})
    add_tensor(folder, "model.layers.0.self_attn.q_proj.weight_scale")


def c94_padded(folder: Path) -> None:
    builders.draft_model(folder, vocab=100, stored_vocab=128)


def c94_another_vocabulary(folder: Path) -> None:
    builders.draft_model(folder, vocab=100, stored_vocab=90)


REFUSED = [
    (c2_promised_layer, "promised-layers-missing", "layer 1"),
    (c4_missing_shard, "incomplete-checkpoint", "model-00002-of-00002.safetensors"),
    (c4_missing_tensor, "incomplete-checkpoint", "model.layers.7.gone.weight"),
    (c10_head_of_random_weights, "head-ambiguous", "lm_head.weight"),
    (c15_no_target_layers, "target-layers-missing", "target_layer_ids"),
    (c42_tied_and_trimmed, "tied-head-mismatch", "tie_word_embeddings"),
    (c47_quantized, "already-quantized", "quantization_config"),
    (c94_padded, "shape-mismatch", "model.embed_tokens.weight"),
    (c94_another_vocabulary, "shape-mismatch", "model.embed_tokens.weight"),
]


@pytest.mark.parametrize(("build", "slug", "where"), REFUSED)
def test_refused_by_name_before_any_weights_come(
    hub: ServedHub,
    settings: HubSettings,
    tmp_path: Path,
    build: Callable[[Path], None],
    slug: str,
    where: str,
) -> None:
    build(tmp_path / "served")
    hub.add(REPO, tmp_path / "served")
    with pytest.raises(ProblemError) as caught:
        pull_repo(REPO, "main", tmp_path / "sources", settings)
    assert caught.value.problem.slug == slug
    assert any(where in offender.where for offender in caught.value.problem.offenders)
    assert all(request.range for request in hub.log.downloads(path="*.safetensors"))
    assert not list((tmp_path / "sources").rglob("config.json"))


@pytest.mark.parametrize(("build", "slug", "where"), REFUSED)
def test_refused_by_name_from_a_local_path(
    tmp_path: Path, build: Callable[[Path], None], slug: str, where: str
) -> None:
    build(tmp_path / "served")
    with pytest.raises(ProblemError) as caught:
        pull_path(tmp_path / "served", [tmp_path], tmp_path / "sources", LocalSettings())
    assert caught.value.problem.slug == slug
    assert any(where in offender.where for offender in caught.value.problem.offenders)
    assert not list((tmp_path / "sources").rglob("config.json"))


def test_padding_is_told_from_another_vocabulary(tmp_path: Path) -> None:
    """C94."""
    messages = []
    for build in (c94_padded, c94_another_vocabulary):
        build(tmp_path / build.__name__)
        with pytest.raises(ProblemError) as caught:
            pull_path(tmp_path / build.__name__, [tmp_path], tmp_path / "sources", LocalSettings())
        messages.append(caught.value.problem.offenders[0].message)
    assert "padded" in messages[0]
    assert "Set vocab_size to 128" in messages[0]
    assert "padded" not in messages[1]


def test_two_generations_of_dflash_are_one_drafter_and_their_bytes_are_kept(
    hub: ServedHub, settings: HubSettings, tmp_path: Path
) -> None:
    """C75."""
    top = {key: NESTED[key] for key in ("mask_token_id", "block_size")}
    forms: dict[str, tuple[dict[str, Any] | None, dict[str, Any] | None, str]] = {
        "nested": (None, NESTED, "dflash_config nested"),
        "mixed": (top, {"target_layer_ids": [0, 1]}, "dflash_config nested"),
        "top": (NESTED, None, "dflash_config at top level"),
    }
    for name, (outer, inner, dialect) in forms.items():
        folder = builders.dflash(tmp_path / name, top=outer, nested=inner)
        hub.add(f"org/{name}", folder)
        pulled = pull_repo(f"org/{name}", "main", tmp_path / "sources", settings)
        drafter = detect(open_checkpoint(pulled.folder))
        assert (drafter.block_size, drafter.mask_token_id, drafter.target_layer_ids) == (4, 3, (0, 1))
        assert drafter.dialect == dialect
        assert (pulled.folder / "config.json").read_bytes() == (folder / "config.json").read_bytes()


def test_the_family_is_what_the_tensors_say(hub: ServedHub, settings: HubSettings, tmp_path: Path) -> None:
    """C102: a published name that another engine gives to another class."""
    hub.add(REPO, builders.dspark(tmp_path / "served", architecture="DSparkDraftModel"))
    pulled = pull_repo(REPO, "main", tmp_path / "sources", settings)
    drafter = detect(open_checkpoint(pulled.folder))
    assert drafter.family is Family.DSPARK
    assert any("Qwen3DSparkModel" in warning for warning in drafter.warnings)


@pytest.mark.parametrize(
    ("build", "head"),
    [
        (builders.eagle3, Head.OWN),
        (lambda folder: builders.eagle3(folder, draft_vocab=None, head=False), Head.BORROWED),
        (builders.draft_model, Head.TIED),
    ],
)
def test_the_head_is_classified(
    hub: ServedHub, settings: HubSettings, tmp_path: Path, build: Callable[[Path], Path], head: Head
) -> None:
    """C10, C42: by a preflight as by a pull."""
    hub.add(REPO, build(tmp_path / "served"))
    pulled = pull_repo(REPO, "main", tmp_path / "sources", settings)
    _, checkpoint, _ = read_remote(REPO, "main", settings)
    assert detect(open_checkpoint(pulled.folder)).head is head
    assert detect(checkpoint).head is head


def test_pickle_only_repositories_are_refused_and_never_fetched(
    hub: ServedHub, settings: HubSettings, tmp_path: Path
) -> None:
    """C117."""
    folder = builders.draft_model(tmp_path / "served")
    (folder / "model.safetensors").rename(folder / "pytorch_model.bin")
    hub.add(REPO, folder)
    for call in (
        lambda: pull_repo(REPO, "main", tmp_path / "sources", settings),
        lambda: read_remote(REPO, "main", settings),
        lambda: pull_path(folder, [tmp_path], tmp_path / "sources", LocalSettings()),
    ):
        with pytest.raises(ProblemError, match="pickle-refused") as caught:
            call()
        assert [offender.where for offender in caught.value.problem.offenders] == ["pytorch_model.bin"]
    assert hub.log.downloads() == []


def test_pickles_beside_safetensors_stay_behind(hub: ServedHub, settings: HubSettings, tmp_path: Path) -> None:
    """C117."""
    folder = builders.draft_model(tmp_path / "served")
    (folder / "pytorch_model.bin").write_bytes(b"\x80\x04.")
    hub.add(REPO, folder)
    pulled = pull_repo(REPO, "main", tmp_path / "sources", settings)
    assert [entry.path for entry in pulled.manifest.files] == ["config.json", "model.safetensors"]
    assert hub.log.find(path="*.bin") == []
