"""An arm is used again only while its receipt proves it; chain heads apart from a service."""

from pathlib import Path

from draftmill.benchmarks import Arm, ArmName
from draftmill.receipts import RuleResult
from draftmill_worker.bench.heads import FileHeads
from draftmill_worker.bench.measured import Measured
from draftmill_worker.receipts.archive import ArchiveWriter
from tests.unit.bench.arms import arm, counts
from tests.unit.receipts.good import good
from tests.unit.receipts.heads import MemoryHeads

COUNTED = counts(10, 6, 3)


def sealed(tmp_path: Path, *, holds: bool = True) -> Arm:
    """An arm with a receipt in the archive that says the same."""
    opened = ArchiveWriter(tmp_path / "receipts", "tester", MemoryHeads()).open(b"{}")
    measured = arm([COUNTED]).model_copy(update={"receipt": opened.id})
    receipt = good(tmp_path / f"drafter-{opened.id}", format=None).receipt.model_copy(
        update={
            "boot": opened.id,
            "chain": opened.link,
            "arm": ArmName.CONTROL,
            "counts": COUNTED,
            "output_sha256": measured.output_sha256,
            "rules": (RuleResult(rule="run-complete", passed=holds, detail=""),),
        }
    )
    opened.seal(receipt)
    return measured


def test_a_proved_arm_is_found_and_says_so(tmp_path: Path) -> None:
    one, measured = sealed(tmp_path), Measured(tmp_path)
    measured.keep("k", (one,))
    assert measured.find("k", 1) == (one.model_copy(update={"reused": True}),)
    assert measured.find("other", 1) == ()
    assert measured.find("k", 2) == ()


def test_an_arm_whose_receipt_breaks_a_rule_is_not(tmp_path: Path) -> None:
    measured = Measured(tmp_path)
    measured.keep("k", (sealed(tmp_path, holds=False),))
    assert measured.find("k", 1) == ()


def test_an_arm_that_says_something_else_than_its_receipt_is_not(tmp_path: Path) -> None:
    measured = Measured(tmp_path)
    measured.keep("k", (sealed(tmp_path).model_copy(update={"counts": counts(10, 9, 9)}),))
    assert measured.find("k", 1) == ()


def test_an_arm_without_its_receipt_is_not(tmp_path: Path) -> None:
    one, measured = sealed(tmp_path), Measured(tmp_path)
    measured.keep("k", (one,))
    (folder,) = (tmp_path / "receipts").glob("*-b*")
    (folder / "receipt.json").chmod(0o644)
    text = (folder / "receipt.json").read_text()
    (folder / "receipt.json").write_text(text.replace('"drafts": 10', '"drafts": 11'))
    assert measured.find("k", 1) == ()


def test_a_file_that_cannot_be_read_is_no_arm(tmp_path: Path) -> None:
    (tmp_path / "arms").mkdir()
    (tmp_path / "arms" / "k.json").write_text("{")
    assert Measured(tmp_path).find("k", 1) == ()


def test_heads_in_a_file_never_go_back(tmp_path: Path) -> None:
    heads = FileHeads(tmp_path / "heads.json")
    assert heads.commit_chain_head("w", 1, "1" * 64)
    assert heads.commit_chain_head("w", 1, "1" * 64)
    assert heads.commit_chain_head("w", 2, "2" * 64)
    assert not heads.commit_chain_head("w", 1, "1" * 64)
    assert not heads.commit_chain_head("w", 2, "3" * 64)
    assert [head.sequence for head in FileHeads(tmp_path / "heads.json").chain_heads().items] == [2]
