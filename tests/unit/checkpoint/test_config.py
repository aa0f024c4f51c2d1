import pytest

from draftmill.problems import ProblemError
from draftmill_worker.checkpoint.config import MAX_CONFIG_BYTES, load_json, load_object


@pytest.mark.parametrize(
    ("data", "value"),
    [(b'{"a": [1, 2.5, null, "\xc3\xa9"]}', {"a": [1, 2.5, None, "é"]}), (b"3", 3), (b'"\\u00e9"', "é"), (b"[]", [])],
)
def test_plain_json_is_read(data: bytes, value: object) -> None:
    assert load_json(data, "x.json") == value


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (b'{"a": 1, "b": 2, "a": 3}', "'a' is given twice"),
        (b"[" * 100_000, "not valid JSON"),
        (b"[" * 40 + b"]" * 40, "deeper than 32"),
        (b'"\xff"', "not valid JSON"),
        (b'{"\\ud83d": 1}', "surrogate"),
        (b"\xef\xbb\xbf{}", "not valid JSON"),
        (b"", "not valid JSON"),
        (b"9" * 5000, "not valid JSON"),
    ],
)
def test_hostile_json_is_refused(data: bytes, message: str) -> None:
    with pytest.raises(ProblemError, match=message) as caught:
        load_json(data, "x.json")
    assert caught.value.problem.slug == "malformed-config"
    assert caught.value.problem.offenders[0].where == "x.json"


@pytest.mark.parametrize("number", ["NaN", "Infinity", "-Infinity", "1e400", "-" + "9" * 400 + ".0"])
def test_numbers_that_are_not_finite_are_refused_with_their_place(number: str) -> None:
    data = f'{{"rope_scaling": {{"factors": [1.0, {number}]}}}}'.encode()
    with pytest.raises(ProblemError) as caught:
        load_json(data, "config.json")
    assert caught.value.problem.slug == "malformed-config"
    assert caught.value.problem.offenders[0].where == "config.json: rope_scaling.factors[1]"


def test_size_is_bounded_before_parsing() -> None:
    with pytest.raises(ProblemError, match="at most"):
        load_json(b" " * (MAX_CONFIG_BYTES + 1), "config.json")


def test_an_object_is_required_where_one_is_read() -> None:
    with pytest.raises(ProblemError, match="JSON object"):
        load_object(b"[]", "config.json")


def test_depth_at_the_bound_is_read() -> None:
    assert load_json(b"[" * 32 + b"]" * 32, "x.json")
