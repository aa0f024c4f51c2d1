"""auto_map modules: what is copied, what is refused, and that nothing of it runs (C72)."""

import json
from pathlib import Path
from typing import Any

import pytest

from draftmill.problems import ProblemError
from draftmill_worker.assemble.modules import AutoMapModules, collect


def collected(folder: Path, files: dict[str, str], auto_map: Any, repo: str | None = None) -> AutoMapModules:
    for name, text in files.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    (folder / "config.json").write_text(json.dumps({"auto_map": auto_map}))
    return collect(folder, ["config.json"], repo)


def refused(folder: Path, files: dict[str, str], auto_map: Any) -> tuple[str, list[str]]:
    with pytest.raises(ProblemError) as caught:
        collected(folder, files, auto_map)
    return caught.value.problem.slug, [offender.where for offender in caught.value.problem.offenders]


def test_string_list_and_null_forms(tmp_path: Path) -> None:
    files = {"modeling_x.py": "", "tokenization_x.py": ""}
    auto_map = {"AutoModel": "modeling_x.X", "AutoTokenizer": [None, "tokenization_x.XFast"]}
    assert collected(tmp_path, files, auto_map).files == ("modeling_x.py", "tokenization_x.py")


def test_relative_imports_are_followed_transitively_and_by_package(tmp_path: Path) -> None:
    files = {
        "modeling.py": "from .blocks.attention import Attention\nfrom . import config\nimport os\n",
        "config.py": "try:\n    from .extra import E\nexcept ImportError:\n    E = None\n",
        "extra.py": "",
        "blocks/__init__.py": "from .mlp import MLP\n",
        "blocks/attention.py": "def f():\n    from ..shared import S\n    from . import rope, MLP\n",
        "blocks/mlp.py": "",
        "blocks/rope.py": "",
        "shared.py": "",
        "unused.py": "",
    }
    modules = collected(tmp_path, files, {"AutoModel": "modeling.M", "AutoConfig": "blocks.rope.R"})
    assert modules.files == tuple(sorted(files.keys() - {"unused.py"}))


def test_a_class_path_through_packages(tmp_path: Path) -> None:
    modules = collected(tmp_path, {"src/models/drafter.py": ""}, {"AutoModel": "src.models.drafter.Drafter"})
    assert modules.files == ("src/models/drafter.py",)


def test_another_repository_is_named_and_not_copied(tmp_path: Path) -> None:
    auto_map = {"AutoModel": "org/other--y.Y", "AutoConfig": "org/own--x.Z"}
    modules = collected(tmp_path, {"x.py": "", "y.py": ""}, auto_map, repo="org/own")
    assert modules == (("x.py",), ("org/other--y.Y",))


@pytest.mark.parametrize("reference", ["../../x.Y", "/etc/x.Y", "..x.Y", "a/b.Y", "a\\b.Y", ".x.Y", "x.Y\n", "x"])
def test_what_is_no_dotted_path_is_unsafe(tmp_path: Path, reference: str) -> None:
    assert refused(tmp_path, {"x.py": ""}, {"AutoModel": reference}) == (
        "unsafe-path",
        ["config.json: auto_map.AutoModel"],
    )


@pytest.mark.parametrize("value", [7, None, {"x": "y"}, [["x.Y"]]])
def test_other_types_are_malformed(tmp_path: Path, value: object) -> None:
    assert refused(tmp_path, {"x.py": ""}, {"AutoModel": value})[0] == "malformed-config"


@pytest.mark.parametrize(
    ("text", "slug"),
    [
        ("from ...up import x\n", "unsafe-path"),
        ("from .gone import y\n", "incomplete-checkpoint"),
        ("from . import lost\n", "incomplete-checkpoint"),
        ("def :\n", "malformed-config"),
        ("(" * 5000 + ")" * 5000, "malformed-config"),
    ],
)
def test_faults_inside_modules(tmp_path: Path, text: str, slug: str) -> None:
    assert refused(tmp_path, {"a.py": text}, {"AutoModel": "a.A"})[0] == slug


def test_a_missing_module_is_named(tmp_path: Path) -> None:
    slug, _ = refused(tmp_path, {}, {"AutoModel": "modeling_gone.M"})
    assert slug == "incomplete-checkpoint"


def test_a_link_out_of_the_folder_is_unsafe(tmp_path: Path) -> None:
    (tmp_path / "outside.py").write_text("SECRET = 1\n")
    inner = tmp_path / "checkpoint"
    inner.mkdir()
    (inner / "x.py").symlink_to(tmp_path / "outside.py")
    assert refused(inner, {}, {"AutoModel": "x.X"})[0] == "unsafe-path"


def test_modules_are_parsed_and_never_run(tmp_path: Path) -> None:
    mark = tmp_path / "ran"
    text = f"import pathlib\npathlib.Path({str(mark)!r}).touch()\nPATTERN = '\\d'\n"
    assert collected(tmp_path, {"evil.py": text}, {"AutoModel": "evil.E"}).files == ("evil.py",)
    assert not mark.exists()
