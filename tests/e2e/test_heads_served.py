"""Rewritten heads and draft vocabularies as vLLM serves them on a CPU, beside what plain torch says.

Target and MTP block of the fixture agree on every token, so that what is accepted follows from the draft ids alone: a
draft is right where its token can be drafted, up to the first that cannot.
"""

import json
import shutil
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest
import torch
from compressed_tensors.compressors.pack_quantized.helpers import unpack_from_int32
from safetensors.torch import load_file, save_file
from torch import Tensor

from draftmill.benchmarks import PromptSet
from draftmill.heads import CaptureOptions, DraftVocabOptions, HeadOptions, HeadPlan
from draftmill.reports import CheckStatus
from draftmill.sources import PathSource
from draftmill_worker.bench.prompts import Prompt
from draftmill_worker.checkpoint.checkpoint import open_checkpoint
from draftmill_worker.heads.capture import Place, capture
from draftmill_worker.heads.choosing import from_rows, read_subject
from draftmill_worker.heads.mill import Asked as Order
from draftmill_worker.heads.mill import mill_head
from draftmill_worker.heads.rows import FILE, Rows, open_rows
from draftmill_worker.heads.variant import cut
from draftmill_worker.heads.verify.run import View, verify_head
from draftmill_worker.receipts.versions import engine_build
from tests.fixtures.heads import experts, target
from tests.fixtures.heads.serve import Asked, Served, serve
from tests.unit.heads.layouts import tensors

pytestmark = [pytest.mark.vllm, pytest.mark.timeout(900)]
DRAFTED = 3
TOKENS = 1 + 3 * (1 + DRAFTED)
"""The prompt's pass gives the first; each of three whole drafts gives itself and one more."""
EXTRA = "model_extra_tensors.safetensors"
DRAFT_IDS = "mtp.draft_vocab_ids"
GIVEN = DraftVocabOptions(ids=PathSource(path="/ids.json"))
TEXTS = tuple(
    Prompt(id=str(number), turns=(f"def area_{number}(width, height): return width * height",)) for number in range(12)
)


@dataclass(frozen=True)
class Walk:
    """A prompt and what an exact target says to it, some tokens further than it is asked."""

    prompt: list[int]
    said: list[int]


def walks(folder: Path, head: Tensor, prompts: list[list[int]]) -> Iterator[Walk]:
    """Of the target in `folder` with the head [vocabulary, columns] in fp32: each token follows from the one before.

    Prompts on whose way two tokens are so close that bf16 may turn them around are left out.
    """
    for prompt in prompts:
        said, last = list[int](), prompt[-1]
        for _ in range(TOKENS + DRAFTED):
            logits = head @ target.hidden_states(folder, torch.tensor([last]))[0]
            first, second = logits.topk(2).values.tolist()
            if first - second < 0.03 * abs(first):
                break
            last = int(logits.argmax())
            said.append(last)
        else:
            yield Walk(prompt, said)


def counted(found: list[Walk], ids: Tensor | None) -> tuple[int, int]:
    """Drafted and accepted tokens, when only `ids` can be drafted; None is all."""
    known = None if ids is None else set(ids.tolist())
    drafts = accepted = 0
    for walk in found:
        done = 1
        while done < TOKENS:
            coming = walk.said[done : done + DRAFTED]
            right = next((place for place, one in enumerate(coming) if known is not None and one not in known), DRAFTED)
            drafts, accepted, done = drafts + 1, accepted + right, done + right + 1
    return drafts * DRAFTED, accepted


def dequantized(folder: Path, bits: int) -> Tensor:
    """lm_head [vocabulary, columns] as compressed-tensors unpacks it, in the engine's dtype."""
    stored = tensors(folder)
    shape = torch.Size(stored["lm_head.weight_shape"].tolist())
    codes = unpack_from_int32(stored["lm_head.weight_packed"], bits, shape)
    scale = stored["lm_head.weight_scale"].float().repeat_interleave(128, 1)
    return (codes.float() * scale).bfloat16()


@dataclass
class Mill:
    source: Path
    folder: Path
    cache: Path
    """Keeps what vLLM finds out about its own classes."""
    rows: Rows | None = None

    def __call__(self, name: str, head: HeadOptions | None, ids: Tensor | None = None) -> tuple[Path, HeadPlan]:
        """A variant that passes its checks."""
        out = self.folder / name
        rows = self.rows if head is not None and head.method != "rtn" else None
        order = Order(head, None if ids is None else GIVEN, ids, (), rows)
        plan = mill_head(self.source, order, out, self.folder / f"{name}-scratch", lambda *_: None)
        assert failed(self.source, out, plan) == set()
        return out, plan

    def recut(self, variant: Path, name: str, ids: Tensor) -> Path:
        """The same head with another draft vocabulary."""
        out = self.folder / name
        shutil.copytree(variant, out)
        cut(out, ids, community=False)
        return out

    def plain(self, variant: Path, name: str, bits: int) -> Path:
        """What the variant's head is in the engine's dtype, in a checkpoint that nothing quantized."""
        out = self.folder / name
        shutil.copytree(self.source, out)
        held = load_file(out / "model.safetensors") | {"lm_head.weight": dequantized(variant, bits)}
        save_file(held, out / "model.safetensors", metadata={"format": "pt"})
        return out

    def serve(self, asked: list[Asked]) -> list[Served]:
        return serve(asked, self.cache)

    def tampered(self, variant: Path, name: str, change: Callable[[dict[str, Tensor]], None]) -> Path:
        """A copy whose extra tensors, and list of ids, are others."""
        out = self.folder / name
        shutil.copytree(variant, out)
        held = load_file(out / EXTRA)
        change(held)
        save_file(held, out / EXTRA, metadata={"format": "pt"})
        config = json.loads((out / "config.json").read_text())
        if DRAFT_IDS in held:
            config["mtp_draft_vocab_ids"] = held[DRAFT_IDS].tolist()
        (out / "config.json").write_text(json.dumps(config))
        return out


def failed(source: Path, out: Path, plan: HeadPlan) -> set[str]:
    report = verify_head(View(source, out, plan))
    return {check.id for check in report.checks if check.status is CheckStatus.FAIL}


def ask(folder: Path, found: list[Walk], drafted: int = DRAFTED, *, local_argmax: bool = False) -> Asked:
    return Asked(str(folder), [walk.prompt for walk in found], TOKENS, drafted, local_argmax)


def same(served: Served, found: list[Walk]) -> bool:
    """Whether it says what torch does. What is drafted changes no output."""
    assert served.refused is None
    return served.outputs == [walk.said[:TOKENS] for walk in found]


def shifted(held: dict[str, Tensor]) -> None:
    """Sorted, each once, inside the vocabulary, as many as before, and other tokens than the rows are of."""
    held[DRAFT_IDS] = held[DRAFT_IDS] + 1


@pytest.fixture(scope="module")
def captured(tmp_path_factory: pytest.TempPathFactory) -> Mill:
    """A target whose embedding is its head, and hidden states of it out of a real engine."""
    pytest.importorskip("vllm")
    folder = tmp_path_factory.mktemp("captured")
    source = target.build(folder / "source", exact=True, tied=True)
    target.write_tokenizer(source)
    place = Place(folder / "out", folder / "logs", folder / "scratch", 400.0, folder / "cache")
    options = CaptureOptions(texts=PromptSet(builtin="draftmill-1", max_tokens=16), own_outputs=True)
    capture(source, open_checkpoint(source).config, options, TEXTS, place=place, progress=lambda _: None)
    # What vLLM found out about the target's class is found out.
    return Mill(source, folder, folder / "cache" / "vllm" / engine_build(), open_rows(folder / "out" / FILE))


def test_from_hidden_states_to_accepted_drafts(captured: Mill) -> None:
    rows = captured.rows
    assert rows is not None
    subject = read_subject(captured.source, open_checkpoint(captured.source), captured.source)
    ids, _ = from_rows(subject, rows, 600)
    whole, plan = captured("int4", HeadOptions(bits=4, method="gptq"), ids)
    assert plan.report is not None
    assert plan.report.rtn is not None
    assert plan.report.gptq is not None
    assert plan.report.gptq.kl <= 0.6 * plan.report.rtn.kl
    prompts = [[token] for token in rows.tokens.unique().tolist()]
    # Four that end in different tokens.
    seen = {walk.said[-1]: walk for walk in walks(captured.source, dequantized(whole, 4).float(), prompts)}
    found = list(seen.values())[:4]
    covered = [token for walk in found for token in walk.said]
    assert bool(torch.isin(torch.tensor(covered), ids).all())
    lacking = ids[~torch.isin(ids, torch.tensor(found[0].said))]
    partial = captured.recut(whole, "partial", lacking)
    wrong = captured.tampered(whole, "wrong", shifted)
    assert failed(captured.source, wrong, plan) >= {"draft-ids", "draft-rows"}
    first, second, third = captured.serve([ask(whole, found), ask(partial, found), ask(wrong, found)])
    assert first.kernels == dict.fromkeys(["lm_head", "draft_lm_head"], "WNA16EmulationKernel")
    assert first.model == "draftmill_worker.bench.vllm_plugin.draft_vocab_models.Qwen3_5MTP"
    assert same(first, found)
    assert (first.drafted, first.accepted) == (36, 36) == counted(found, ids)
    assert same(second, found)
    assert (second.drafted, second.accepted) == counted(found, lacking)
    assert second.accepted < 36
    assert third.refused is not None
    assert third.refused.startswith("DraftVocabularyError: draft vocabulary: mtp.draft_lm_head.weight_packed does not")


@pytest.fixture(scope="module")
def moving(tmp_path_factory: pytest.TempPathFactory) -> Mill:
    """A target that answers each token with the one STEP further on, and stores its head."""
    pytest.importorskip("vllm")
    folder = tmp_path_factory.mktemp("moving")
    return Mill(target.build(folder / "source", exact=True, tied=False), folder, folder / "cache")


def _moving_walks() -> list[Walk]:
    prompts = [[5, 1200], [77], [901, 12, 64], [4000]]
    steps = range(1, TOKENS + DRAFTED + 1)
    return [Walk(one, [(one[-1] + target.STEP * step) % target.Shape.vocab for step in steps]) for one in prompts]


@pytest.mark.slow
def test_every_form_of_a_head_says_what_its_dequantized_checkpoint_says(moving: Mill) -> None:
    """Whole heads in four and eight bits, the block in eight beside one; with a draft vocabulary and without."""
    found, even = _moving_walks(), torch.arange(0, target.Shape.vocab, 2)
    eight, four = HeadOptions(bits=8, method="rtn", mtp=8), HeadOptions(bits=4, method="rtn")
    heads = {"int4": (four, 4, None), "int8-mtp8": (eight, 8, None), "int8-even": (eight, 8, even)}
    made = {name: moving(name, options, ids)[0] for name, (options, _, ids) in heads.items()}
    plain = {name: moving.plain(made[name], f"{name}-plain", bits) for name, (_, bits, _) in heads.items()}
    asked = [ask(folder, found) for folder in made.values()]
    asked += [ask(folder, found, drafted=0) for folder in plain.values()]
    asked += [ask(made["int4"], found, drafted=0), ask(moving.source, found)]
    int4, int8, cut, *others, alone, stock = moving.serve(asked)
    for served in (int4, int8, cut, *others, alone, stock):
        assert same(served, found)
    for served in (int4, int8, stock):
        assert (served.drafted, served.accepted) == (36, 36)
    assert (cut.drafted, cut.accepted) == counted(found, even)
    assert 0 < cut.accepted < 36
    assert int4.kernels == alone.kernels == {"lm_head": "WNA16EmulationKernel"}
    assert cut.kernels == dict.fromkeys(["lm_head", "draft_lm_head"], "WNA16EmulationKernel")
    assert stock.kernels == {"lm_head": None}


@pytest.mark.slow
@pytest.mark.parametrize("tied", [False, True])
def test_a_draft_head_in_bf16(tmp_path: Path, tied: bool) -> None:
    """With whole logits, and with the most likely token alone."""
    pytest.importorskip("vllm")
    source = target.build(tmp_path / "source", exact=True, tied=tied)
    mill = Mill(source, tmp_path, tmp_path / "cache")
    head = load_file(source / "model.safetensors")
    rows = head["model.embed_tokens.weight" if tied else "lm_head.weight"].float()
    found = list(walks(source, rows, [[token] for token in range(40, 4000, 230)]))[:4]
    said = torch.tensor(sorted({token for walk in found for token in walk.said}))
    covering = torch.cat([said, torch.arange(0, 4096, 5)]).unique()
    lacking = covering[~torch.isin(covering, torch.tensor(found[1].said[5:]))]
    whole, _ = mill("whole", None, covering)
    partial, _ = mill("partial", None, lacking)
    asked = [ask(whole, found), ask(whole, found, local_argmax=True), ask(partial, found), ask(partial, found, 1)]
    first, reduced, second, single = mill.serve(asked)
    for served in (first, reduced, second, single):
        assert same(served, found)
        assert served.kernels == {"lm_head": None, "draft_lm_head": None}
    assert (first.drafted, first.accepted) == (reduced.drafted, reduced.accepted) == (36, 36)
    assert (second.drafted, second.accepted) == counted(found, lacking)
    assert 0 < single.accepted < single.drafted
    # The target alone is served as ever, also by a vLLM without the plugin.
    (alone,) = serve([ask(whole, found, drafted=0)], mill.cache, features="torchvision")
    assert same(alone, found)


@pytest.mark.slow
@pytest.mark.parametrize("model", experts.MODELS)
def test_models_with_experts_draft_from_fewer_tokens_too(tmp_path: Path, model: str) -> None:
    pytest.importorskip("vllm")
    mill = Mill(experts.build(tmp_path / "source", model), tmp_path, tmp_path / "cache")
    found, even = _moving_walks(), torch.arange(0, target.Shape.vocab, 2)
    whole, _ = mill("whole", None, torch.arange(target.Shape.vocab))
    partial, _ = mill("partial", None, even)
    first, second = mill.serve([ask(whole, found), ask(partial, found)])
    for served in (first, second):
        assert same(served, found)
        assert served.model == f"draftmill_worker.bench.vllm_plugin.draft_vocab_models.{model}"
        assert "draft_lm_head" in served.kernels
    assert (first.drafted, first.accepted) == (36, 36)
    assert (second.drafted, second.accepted) == counted(found, even)


_CHANGES: dict[str, tuple[Callable[[dict[str, Tensor]], None], str]] = {
    "ids": (lambda held: void(held.pop(DRAFT_IDS)), "mtp.draft_vocab_ids is missing"),
    "scales": (
        lambda held: void(held.pop("mtp.draft_lm_head.weight_scale")),
        "mtp.draft_lm_head.weight_scale is missing",
    ),
    "order": (
        lambda held: held.update({DRAFT_IDS: held[DRAFT_IDS].flip(0)}),
        "mtp.draft_vocab_ids must be sorted, each once",
    ),
    "shifted": (shifted, "does not have the head's rows of its ids"),
}


def void(_: object) -> None:
    return


@pytest.mark.slow
def test_a_draft_vocabulary_that_is_not_whole_is_not_served(moving: Mill) -> None:
    found, even = _moving_walks()[:1], torch.arange(0, target.Shape.vocab, 2)
    variant, plan = moving("whole", HeadOptions(bits=4, method="rtn"), even)
    broken = {name: moving.tampered(variant, name, change) for name, (change, _) in _CHANGES.items()}
    for name, folder in broken.items():
        assert failed(moving.source, folder, plan), name
    silent = moving.tampered(variant, "silent", lambda _: None)
    config = json.loads((silent / "config.json").read_text())
    kept = {key: value for key, value in config.items() if not key.startswith("mtp_draft_vocab")}
    (silent / "config.json").write_text(json.dumps(kept))
    asked = [ask(folder, found) for folder in (*broken.values(), silent)]
    *refused, unsaid = moving.serve(asked)
    for served, (_, message) in zip(refused, _CHANGES.values(), strict=True):
        assert served.refused is not None
        assert served.refused.startswith("DraftVocabularyError: draft vocabulary: ")
        assert message in served.refused
    assert unsaid.refused is not None
    assert "config.json has no mtp_draft_vocab_size" in unsaid.refused
    # Without the plugin vLLM does not serve it either.
    (stock,) = serve([ask(variant, found)], moving.cache, features="emulation,torchvision")
    assert stock.refused is not None
    assert "draft_lm_head" in stock.refused
