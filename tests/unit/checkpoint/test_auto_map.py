import json
from pathlib import Path

import pytest

from draftmill.problems import ProblemError
from draftmill_worker.checkpoint.auto_map import AutoMap, auto_map_files
from draftmill_worker.checkpoint.checkpoint import open_checkpoint
from tests.unit.checkpoint.layouts import eagle3


def test_files_are_named_for_strings_lists_and_packages() -> None:
    config = {
        "auto_map": {
            "AutoConfig": "configuration_x.XConfig",
            "AutoModel": "code.modeling_x.XModel",
            "AutoTokenizer": ["tokenization_x.X", None],
        }
    }
    files = ("code/modeling_x.py", "configuration_x.py", "tokenization_x.py")
    assert auto_map_files(config, "config.json") == AutoMap(files, ())


def test_another_repository_is_named_and_not_a_file() -> None:
    config = {"auto_map": {"AutoModel": "org/repo--modeling.X"}}
    assert auto_map_files(config, "config.json") == AutoMap((), ("org/repo--modeling.X",))


def test_c72_null_in_a_list_is_fine_and_an_escape_is_refused() -> None:
    config = {"auto_map": {"AutoTokenizer": [None, "tokenization_x.XFast"], "AutoModel": "../../x.Y"}}
    with pytest.raises(ProblemError) as caught:
        auto_map_files(config, "config.json")
    problem = caught.value.problem
    assert problem.slug == "unsafe-path"
    assert [(offender.where, offender.value) for offender in problem.offenders] == [
        ("config.json: auto_map.AutoModel", "../../x.Y")
    ]


def test_c72_an_escape_is_refused_when_the_checkpoint_is_opened(tmp_path: Path) -> None:
    folder = eagle3(auto_map={"AutoModel": "../../x.Y"}).write(tmp_path)
    with pytest.raises(ProblemError) as caught:
        open_checkpoint(folder)
    assert caught.value.problem.slug == "unsafe-path"


@pytest.mark.parametrize(
    "value", ["/etc/passwd.X", "a/b.X", "..a.X", "a..X", "x", "", ".x.Y", "x.Y\n", "a--../b.X", "ä.X"]
)
def test_what_is_no_module_path_is_refused(value: str) -> None:
    with pytest.raises(ProblemError) as caught:
        auto_map_files({"auto_map": {"AutoModel": value}}, "config.json")
    assert caught.value.problem.slug == "unsafe-path"


@pytest.mark.parametrize("value", [3, [], "x.Y", {"AutoModel": None}, {"AutoModel": {"a": "x.Y"}}, {"AutoModel": [1]}])
def test_wrong_types_are_refused(value: object) -> None:
    with pytest.raises(ProblemError) as caught:
        auto_map_files(json.loads(json.dumps({"auto_map": value})), "config.json")
    assert caught.value.problem.slug == "malformed-config"


def test_no_auto_map() -> None:
    assert auto_map_files({}, "config.json") == AutoMap((), ())
