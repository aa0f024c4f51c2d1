"""The shipped pair: layouts that are recognised, small files, and drafters that really draft."""

from pathlib import Path

import pytest
import torch

from draftmill.plans import Family
from draftmill_worker.checkpoint.checkpoint import open_checkpoint
from draftmill_worker.checkpoint.families import detect
from tests.fixtures.nets.dflash import DSpark
from tests.fixtures.nets.load import load
from tests.fixtures.prompts import held_out
from tests.fixtures.replay import Counts, load_llama, proposer, replay

FLOORS = {"draft_model": 2.0, "eagle3": 2.0, "dspark": 2.0, "dflash": 1.5, "medusa": 1.0}
_PROMPTS, _TOKENS = 6, 32


@pytest.mark.parametrize("name", FLOORS)
def test_the_family_is_recognised(name: str, models: Path) -> None:
    assert detect(open_checkpoint(models / name)).family == Family(name)


def test_the_weights_are_small(models: Path) -> None:
    sizes = {path: path.stat().st_size for path in models.rglob("*") if path.is_file()}
    assert sum(sizes.values()) < 9e6
    assert max(sizes.values()) < 2.2e6


@pytest.mark.parametrize("name", FLOORS)
def test_the_drafter_drafts(name: str, models: Path) -> None:
    """The output is the target's own greedy text, and enough of the draft is in it."""
    torch.set_num_threads(1)
    target, drafter = load_llama(models / "target"), load(models / name)
    drafted, counts = drafter.block_size if isinstance(drafter, DSpark) else 3, Counts()
    for prompt in held_out(models / "target", _PROMPTS):
        tokens = replay(target, proposer(drafter), prompt, drafted, _TOKENS, counts)
        plain = target.generate(torch.tensor([prompt]), _TOKENS)[0, len(prompt) :]
        assert tokens[:_TOKENS] == plain.tolist()
    assert counts.acceptance_length >= FLOORS[name]


def test_the_engine_reads_the_maps(models: Path) -> None:
    eagle3 = load(models / "eagle3")
    d2t, t2d = eagle3.get_buffer("d2t"), eagle3.get_buffer("t2d")
    ids = d2t + torch.arange(len(d2t))
    assert d2t.dtype == torch.int64
    assert torch.equal(ids, torch.nonzero(t2d).flatten())
    # An identity map would hide a lost one.
    assert bool(d2t.any())
