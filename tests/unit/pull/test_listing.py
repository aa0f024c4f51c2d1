"""What a hostile or unusual file listing may and may not bring in."""

from typing import Any

import pytest

from draftmill.problems import ProblemError
from draftmill_worker.pull.listing import allowed, check_listing, make_listing, parse_page
from draftmill_worker.pull.settings import Limits

OID = "0" * 40
COMMIT = "c" * 40


def entry(path: Any, **fields: Any) -> dict[str, Any]:
    return {"type": "file", "path": path, "oid": OID, "size": 1} | fields


def listing(*entries: dict[str, Any]) -> Any:
    return make_listing("org/x", COMMIT, parse_page(list(entries), "org/x"))


def problem(*entries: dict[str, Any]) -> ProblemError:
    with pytest.raises(ProblemError) as caught:
        listing(*entries)
    return caught.value


@pytest.mark.parametrize(
    "path",
    [
        "model.safetensors",
        "model-00001-of-00002.safetensors",
        "model.safetensors.index.json",
        "config.json",
        "generation_config.json",
        "tokenizer.json",
        "tokenizer_config.json",
        "tokenizer.model",
        "chat_template.jinja",
        "preprocessor_config.json",
        "recipe.yaml",
        "LICENSE",
    ],
)
def test_takes_the_files_of_a_checkpoint(path: str) -> None:
    assert allowed(path)


@pytest.mark.parametrize(
    "path",
    [
        "pytorch_model.bin",
        "model.pt",
        "optimizer.pth",
        "model.ckpt",
        "tokenizer.pkl",
        "chat_template.pickle",
        "LICENSE.bin",
        "onnx/model.safetensors",
        "original/config.json",
        "modeling_x.py",
        "setup.py",
        "model.safetensors.part",
        "README.md",
        ".gitattributes",
        "CONFIG.JSON",
        "model.gguf",
        "events.out.tfevents.1",
    ],
)
def test_leaves_everything_else(path: str) -> None:
    assert not allowed(path)


@pytest.mark.parametrize(
    "path",
    [
        "../../x",
        "..",
        "a/../../x.safetensors",
        "./config.json",
        "/etc/passwd",
        "a//config.json",
        "config.json/",
        "config\x00.json",
        "half \ud800 pair.safetensors",
        "model\n.safetensors",
        "a\\..\\x.safetensors",
        "",
        "x" * 2000 + ".safetensors",
        "x" * 300 + ".safetensors",
    ],
)
def test_names_that_are_no_plain_relative_paths_are_refused(path: str) -> None:
    error = problem(entry("config.json"), entry(path))
    assert error.problem.slug == "unsafe-path"
    assert len(error.problem.offenders) == 1


def test_every_bad_name_is_listed() -> None:
    error = problem(entry("../a"), entry("config.json"), entry("/b"))
    assert [offender.where for offender in error.problem.offenders] == ["../a", "/b"]


def test_names_that_differ_only_in_case_or_composition_are_refused() -> None:
    assert problem(entry("model.safetensors"), entry("MODEL.safetensors")).problem.slug == "unsafe-path"
    assert problem(entry("é.safetensors"), entry("e\u0301.safetensors")).problem.slug == "unsafe-path"


def test_colliding_names_nobody_takes_do_no_harm() -> None:
    assert listing(entry("docs/A.md"), entry("docs/a.md"), entry("config.json")).sizes == {"config.json": 1}


@pytest.mark.parametrize("kind", ["symlink", "submodule", "commit"])
def test_a_wanted_name_that_is_no_file_is_refused(kind: str) -> None:
    assert problem(entry("model.safetensors", type=kind)).problem.slug == "unsafe-path"


def test_a_link_stored_in_git_is_a_file_of_its_targets_name() -> None:
    """The listing cannot tell it from another file: its bytes fail where weights are read."""
    assert listing(entry("model.safetensors", size=9)).find("model.safetensors").size == 9


@pytest.mark.parametrize(
    "bad",
    [
        {"path": None},
        {"path": 7},
        {"oid": "zz"},
        {"oid": None},
        {"size": -1},
        {"size": 1 << 70},
        {"size": "1"},
        {"size": True},
        {"lfs": {"oid": OID, "size": 1}},
        {"lfs": {"oid": "a" * 64, "size": -1}},
        {"lfs": {"oid": "a" * 64}},
        {"lfs": []},
    ],
)
def test_malformed_entries_are_refused(bad: dict[str, Any]) -> None:
    assert problem(entry("config.json") | bad).problem.slug == "listing-refused"


@pytest.mark.parametrize("body", [{}, None, "x", [[]], [None]])
def test_a_page_that_is_no_list_of_entries_is_refused(body: Any) -> None:
    with pytest.raises(ProblemError, match="listing-refused"):
        parse_page(body, "org/x")


def test_a_name_given_twice_is_refused() -> None:
    assert problem(entry("config.json"), entry("config.json", size=2)).problem.slug == "listing-refused"


def test_an_lfs_file_is_known_by_its_sha256_and_its_own_size() -> None:
    file = listing(entry("m.safetensors", size=134, lfs={"oid": "a" * 64, "size": 5000})).find("m.safetensors")
    assert (file.size, file.algorithm, file.digest) == (5000, "sha256", "a" * 64)


def refused(sizes: dict[str, int], siblings: tuple[str, ...] = (), **limits: Any) -> ProblemError:
    with pytest.raises(ProblemError) as caught:
        check_listing("x", sizes, siblings or tuple(sizes), Limits(**limits))
    return caught.value


def test_pickle_only_weights_are_refused_by_name() -> None:
    """C117."""
    error = refused({"config.json": 1}, ("config.json", "pytorch_model.bin", "training.pt"))
    assert error.problem.slug == "pickle-refused"
    assert [offender.where for offender in error.problem.offenders] == ["pytorch_model.bin", "training.pt"]


def test_a_pickled_mask_embedding_is_refused_beside_good_weights() -> None:
    sizes = {"config.json": 1, "model.safetensors": 1}
    assert refused(sizes, (*sizes, "mask_embedding.pt")).problem.slug == "pickle-refused"


def test_a_repository_without_weights_or_configuration_is_refused() -> None:
    assert refused({"config.json": 1}).problem.slug == "no-weights"
    assert refused({"model.safetensors": 1}).problem.slug == "malformed-config"


def test_counts_and_sizes_are_bounded() -> None:
    sizes = {"config.json": 1, "model.safetensors": 100}
    assert refused(sizes, max_files=1).problem.slug == "listing-refused"
    assert refused(sizes, max_bytes=100).problem.slug == "listing-refused"
    error = refused(sizes | {"tokenizer.json": 50}, max_sidecar_bytes=49)
    assert [offender.where for offender in error.problem.offenders] == ["tokenizer.json"]
    check_listing("x", sizes, tuple(sizes), Limits(max_files=2, max_bytes=101, max_sidecar_bytes=49))
