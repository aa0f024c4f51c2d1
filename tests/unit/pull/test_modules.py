"""Modules that an auto_map needs, with packages and relative imports (C72)."""

import json
from typing import Any

import pytest

from draftmill.problems import ProblemError
from draftmill_worker.pull.modules import MAX_MODULE_BYTES, MAX_MODULES, needed_modules


class Files:
    """A tree in memory that records what is read."""

    def __init__(self, files: dict[str, str]) -> None:
        self.files = files
        self.asked: list[str] = []

    def has(self, path: str) -> bool:
        return path in self.files

    def size(self, path: str) -> int:
        return len(self.files[path])

    def read(self, path: str) -> bytes:
        self.asked.append(path)
        return self.files[path].encode()


def find(auto_map: Any, files: dict[str, str], repo: str | None = "org/x") -> tuple[str, ...]:
    return needed_modules(Files(files), {"config.json": json.dumps({"auto_map": auto_map}).encode()}, repo)


def refused(auto_map: Any, files: dict[str, str]) -> ProblemError:
    with pytest.raises(ProblemError) as caught:
        find(auto_map, files)
    return caught.value


def test_nothing_is_needed_without_auto_map() -> None:
    assert needed_modules(Files({"x.py": ""}), {"config.json": b"{}"}, None) == ()


def test_lists_with_null_and_several_configs() -> None:
    configs = {
        "config.json": b'{"auto_map": {"AutoModel": "modeling_x.X"}}',
        "tokenizer_config.json": b'{"auto_map": {"AutoTokenizer": [null, "tokenization_x.XFast"]}}',
    }
    files = Files({"modeling_x.py": "", "tokenization_x.py": "", "unrelated.py": "", "setup.py": ""})
    assert needed_modules(files, configs, None) == ("modeling_x.py", "tokenization_x.py")
    assert sorted(files.asked) == ["modeling_x.py", "tokenization_x.py"]


def test_packages_and_relative_imports_are_followed() -> None:
    files = {
        "pkg/__init__.py": "",
        "pkg/sub/__init__.py": "from . import extra",
        "pkg/sub/model.py": "import os\nfrom ..base import B\nfrom . import helper, C\nfrom .deep.inner import x",
        "pkg/base.py": "if True:\n    from .lazy import y",
        "pkg/lazy.py": "",
        "pkg/sub/helper.py": "",
        "pkg/sub/extra.py": "",
        "pkg/sub/deep/inner.py": "",
        "os.py": "",
    }
    assert find({"AutoModel": "pkg.sub.model.M"}, files) == tuple(sorted(files.keys() - {"os.py"}))


def test_a_circle_of_imports_ends() -> None:
    files = {"a.py": "from .b import x", "b.py": "from .a import y"}
    assert find({"AutoModel": "a.A"}, files) == ("a.py", "b.py")


def test_code_of_another_repository_is_left_out_and_its_own_is_not() -> None:
    assert find({"AutoModel": "other/repo--modeling_y.Y"}, {}) == ()
    assert find({"AutoModel": "org/x--modeling_x.X"}, {"modeling_x.py": ""}) == ("modeling_x.py",)


@pytest.mark.parametrize(
    "reference", ["../../x.Y", "/etc/x.Y", "..x.Y", "a/b.Y", "x\\y.Z", "x.Y\x00", "x", "", "x-y.Z", "x..Y", "os.\u0435"]
)
def test_a_reference_that_is_no_dotted_path_is_refused(reference: str) -> None:
    error = refused({"AutoTokenizer": [None, "tokenization_x.X"], "AutoModel": reference}, {"tokenization_x.py": ""})
    assert error.problem.slug == "unsafe-path"
    assert "AutoModel" in error.problem.offenders[0].where


@pytest.mark.parametrize("auto_map", [[], "x.Y", 3, {"AutoModel": 3}, {"AutoModel": None}, {"AutoModel": [3]}])
def test_wrong_types_are_refused(auto_map: Any) -> None:
    assert refused(auto_map, {}).problem.slug == "malformed-config"


def test_missing_modules_are_named() -> None:
    error = refused({"AutoModel": "modeling_x.X"}, {})
    assert error.problem.slug == "incomplete-checkpoint"
    assert "modeling_x" in error.problem.offenders[0].message
    error = refused({"AutoModel": "a.A"}, {"a.py": "x = 1\nfrom .gone import y\n"})
    assert error.problem.offenders[0].where == "a.py: line 2"


def test_an_import_that_leaves_the_folder_is_refused() -> None:
    assert refused({"AutoModel": "a.A"}, {"a.py": "from ..outside import y"}).problem.slug == "unsafe-path"


@pytest.mark.parametrize("text", ["def (", "\x00", "(" * 5000, "x" * (MAX_MODULE_BYTES + 1)])
def test_text_that_cannot_be_parsed_is_refused(text: str) -> None:
    assert refused({"AutoModel": "a.A"}, {"a.py": text}).problem.slug == "malformed-config"


def test_the_number_of_modules_is_bounded() -> None:
    files = {f"m{number}.py": f"from .m{number + 1} import x" for number in range(MAX_MODULES + 1)}
    assert refused({"AutoModel": "m0.A"}, files).problem.slug == "malformed-config"
