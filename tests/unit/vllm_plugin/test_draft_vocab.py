"""Draft vocabularies in the engine: which parts must be there, and what becomes of logits and ids."""

from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from draftmill_worker.bench.vllm_plugin import draft_vocab_parts as parts
from draftmill_worker.bench.vllm_plugin.targets import PluginError
from draftmill_worker.heads import draft_head
from draftmill_worker.quantize.formats import pack_quantized

VOCAB, COLUMNS = 320, 256
IDS = torch.arange(3, VOCAB, 5)
SIZE = len(IDS)
CLAIM = parts.Said(SIZE, tuple(IDS.tolist()))


def test_the_engine_reads_what_variants_are_written_with() -> None:
    assert (parts.HEAD, parts.IDS) == (draft_head.MODULE, draft_head.IDS)
    assert (parts.SIZE_KEY, parts.IDS_KEY) == draft_head.KEYS
    assert parts.SHAPE == pack_quantized.SHAPE


def test_a_configuration_that_tells_of_none() -> None:
    assert parts.said(SimpleNamespace(vocab_size=VOCAB), VOCAB) is None


@pytest.mark.parametrize(
    ("keys", "message"),
    [
        ({"mtp_draft_vocab_ids": [1, 2]}, r"mtp_draft_vocab_size must be in \[1, 320\], and is None"),
        ({"mtp_draft_vocab_size": 0}, "and is 0"),
        ({"mtp_draft_vocab_size": VOCAB + 1}, "and is 321"),
        ({"mtp_draft_vocab_size": "64"}, "and is '64'"),
        ({"mtp_draft_vocab_size": True}, "and is True"),
        ({"mtp_draft_vocab_size": 3, "mtp_draft_vocab_ids": [1, 2]}, "must be a list of 3"),
        ({"mtp_draft_vocab_size": 3, "mtp_draft_vocab_ids": "abc"}, "must be a list of 3"),
    ],
)
def test_half_of_a_configuration_is_refused(keys: dict[str, Any], message: str) -> None:
    with pytest.raises(parts.DraftVocabularyError, match=message):
        parts.said(SimpleNamespace(**keys), VOCAB)


@dataclass(frozen=True)
class Given:
    """What a checkpoint holds, by name, and what its configuration says."""

    tensors: dict[str, Tensor]
    claim: parts.Said = CLAIM
    tied: bool = False

    def but(self, **changed: Tensor | None) -> "Given":
        """With other draft tensors, by the last part of their names."""
        named = {f"{parts.IDS if last in parts.IDS else f'{parts.HEAD}.{last}'}": one for last, one in changed.items()}
        held = self.tensors | named
        return replace(self, tensors={name: one for name, one in held.items() if one is not None})


def _packed() -> Given:
    words = torch.randint(-(2**31), 2**31 - 1, (VOCAB, COLUMNS // 8), generator=_seeded(), dtype=torch.int32)
    scale = torch.rand(VOCAB, COLUMNS // 128, generator=_seeded()).bfloat16()
    head = {"lm_head.weight_packed": words, "lm_head.weight_scale": scale}
    draft = {f"mtp.draft_{name}": tensor[IDS] for name, tensor in head.items()}
    shapes = {
        "lm_head.weight_shape": torch.tensor([VOCAB, COLUMNS]),
        "mtp.draft_lm_head.weight_shape": torch.tensor([SIZE, COLUMNS]),
    }
    return Given({**draft, **head, **shapes, "mtp.draft_vocab_ids": IDS})


def _plain(name: str = "lm_head.weight", *, tied: bool = False) -> Given:
    head = torch.randn(VOCAB, COLUMNS, generator=_seeded()).bfloat16()
    tensors = {"mtp.draft_vocab_ids": IDS, name: head, "mtp.draft_lm_head.weight": head[IDS]}
    return Given({**tensors, "mtp.fc.weight": head.T}, tied=tied)


def _seeded() -> torch.Generator:
    return torch.Generator().manual_seed(1)


PLAIN: parts.Wanted = {"weight": ((COLUMNS,), torch.bfloat16)}
PACKED: parts.Wanted = {
    "weight_packed": ((COLUMNS // 8,), torch.int32),
    "weight_scale": ((COLUMNS // 128,), torch.bfloat16),
    "weight_shape": ((), torch.int64),
}


def _check(given: Given, wanted: parts.Wanted) -> Tensor:
    found = parts.Parts(given.tied)
    passed = dict(found.passing(given.tensors.items()))
    # The model goes without the draft vocabulary's tensors, and with all others.
    assert passed.keys() == {name for name in given.tensors if not name.startswith("mtp.draft_")}
    return parts.check(found, wanted, given.claim, VOCAB)


@pytest.mark.parametrize(
    ("given", "wanted"),
    [
        (_packed(), PACKED),
        (_plain(), PLAIN),
        (_plain("model.language_model.embed_tokens.weight", tied=True), PLAIN),
        (_plain("language_model.lm_head.weight"), PLAIN),
        (replace(_plain(), claim=parts.Said(SIZE, None)), PLAIN),
    ],
)
def test_whole_parts_give_the_ids(given: Given, wanted: parts.Wanted) -> None:
    assert torch.equal(_check(given, wanted), IDS)


def test_a_draft_head_of_another_form_than_the_heads_is_taken_as_it_is() -> None:
    packed, plain = _packed(), _plain()
    head = {name: tensor for name, tensor in plain.tensors.items() if not name.startswith("mtp.draft_")}
    held = {name: tensor for name, tensor in packed.tensors.items() if name.startswith("mtp.draft_")}
    assert torch.equal(_check(replace(packed, tensors=head | held), PACKED), IDS)


def _one_other_row() -> Tensor:
    whole = _packed().tensors["lm_head.weight_packed"]
    return torch.cat([whole[:1], whole[IDS[1:]]])


NO_IDS = "mtp.draft_vocab_ids is missing"
NO_HEAD = "mtp.draft_lm_head.weight is missing"
UNSORTED = "mtp.draft_vocab_ids must be sorted, each once"
OUTSIDE = "mtp.draft_vocab_ids must lie in [0, 320)"
OTHER = "mtp.draft_vocab_ids differs from config.json's mtp_draft_vocab_ids"
_WRONG: dict[str, tuple[Given, parts.Wanted, list[str]]] = {
    "head without ids": (_packed().but(draft_vocab_ids=None), PACKED, [NO_IDS]),
    "ids without head": (_plain().but(weight=None), PLAIN, [NO_HEAD]),
    "no scales": (_packed().but(weight_scale=None), PACKED, ["mtp.draft_lm_head.weight_scale is missing"]),
    "a tied head that vLLM unties": (
        _plain("model.embed_tokens.weight"),
        PLAIN,
        ["lm_head is not stored, and vLLM has taken mtp.draft_lm_head.weight for it"],
    ),
    "nothing at all": (Given({"lm_head.weight": torch.zeros(VOCAB, COLUMNS)}), PLAIN, [NO_IDS, NO_HEAD]),
    "packed where the configuration says plain": (
        _packed(),
        PLAIN,
        [
            NO_HEAD,
            *(
                f"mtp.draft_lm_head.{name} is not what this checkpoint's quantization makes of a head"
                for name in PACKED
            ),
        ],
    ),
    "too few rows": (
        _plain().but(weight=torch.zeros(SIZE - 1, COLUMNS, dtype=torch.bfloat16)),
        PLAIN,
        ["mtp.draft_lm_head.weight must be [64, 256], like torch.bfloat16, and is [63, 256] of torch.bfloat16"],
    ),
    "words that are no integers": (
        _packed().but(weight_packed=torch.zeros(SIZE, COLUMNS // 8)),
        PACKED,
        ["mtp.draft_lm_head.weight_packed must be [64, 32], like torch.int32, and is [64, 32] of torch.float32"],
    ),
    "a shape of another head": (
        _packed().but(weight_shape=torch.tensor([VOCAB, COLUMNS])),
        PACKED,
        ["mtp.draft_lm_head.weight_shape must say 64 rows, and says 320"],
    ),
    "ids of another size": (
        _plain().but(draft_vocab_ids=IDS[1:]),
        PLAIN,
        ["mtp.draft_vocab_ids must be [64] of torch.int64, and is [63] of torch.int64"],
    ),
    "ids of another kind": (
        _plain().but(draft_vocab_ids=IDS.int()),
        PLAIN,
        ["mtp.draft_vocab_ids must be [64] of torch.int64, and is [64] of torch.int32"],
    ),
    "ids out of order": (_plain().but(draft_vocab_ids=IDS.flip(0)), PLAIN, [UNSORTED, OTHER]),
    "an id twice": (_plain().but(draft_vocab_ids=torch.cat([IDS[:1], IDS[:-1]])), PLAIN, [UNSORTED, OTHER]),
    "an id past the vocabulary": (
        _plain().but(draft_vocab_ids=torch.cat([IDS[:-1], torch.tensor([VOCAB])])),
        PLAIN,
        [OUTSIDE, OTHER],
    ),
    "a negative id": (
        _plain().but(draft_vocab_ids=torch.cat([torch.tensor([-1]), IDS[1:]])),
        PLAIN,
        [OUTSIDE, OTHER],
    ),
    "other ids than the configuration's": (_plain().but(draft_vocab_ids=IDS + 1), PLAIN, [OTHER]),
    "other ids, in the configuration too": (
        replace(_plain().but(draft_vocab_ids=IDS + 1), claim=parts.Said(SIZE, tuple((IDS + 1).tolist()))),
        PLAIN,
        ["mtp.draft_lm_head.weight does not have the head's rows of its ids: 64 differ, from 4 on"],
    ),
    "one row of another token": (
        _packed().but(weight_packed=_one_other_row()),
        PACKED,
        ["mtp.draft_lm_head.weight_packed does not have the head's rows of its ids: 1 differ, from 3 on"],
    ),
    "a head with fewer rows than the vocabulary": (
        replace(_plain(), tensors=_plain().tensors | {"lm_head.weight": torch.zeros(100, COLUMNS).bfloat16()}),
        PLAIN,
        ["mtp.draft_lm_head.weight is [64, 256], beside a head of [100, 256]"],
    ),
}


@pytest.mark.parametrize("case", _WRONG)
def test_wrong_parts_end_the_loading_with_all_that_is_wrong(case: str) -> None:
    given, wanted, messages = _WRONG[case]
    with pytest.raises(parts.DraftVocabularyError) as caught:
        _check(given, wanted)
    assert str(caught.value) == f"draft vocabulary: {'; '.join(messages)}"


@pytest.mark.parametrize("name", ["mtp.draft_vocab_ids", "mtp.draft_lm_head.weight", "mtp.draft_lm_head.weight_packed"])
def test_parts_that_the_configuration_does_not_tell_of_are_refused(name: str) -> None:
    held = {"mtp.fc.weight": torch.ones(2), name: torch.ones(2)}
    with pytest.raises(parts.DraftVocabularyError, match=rf"{name} is there, and config\.json has no mtp_draft_vocab"):
        dict(parts.refusing(held.items()))
    assert dict(parts.refusing([("mtp.fc.weight", IDS)])) == {"mtp.fc.weight": IDS}


class _Stock(nn.Module):
    """As much of an MTP model as is changed."""

    def __init__(self, *, vllm_config: Any, prefix: str = "") -> None:
        super().__init__()
        self.config = SimpleNamespace(vocab_size=VOCAB, hidden_size=COLUMNS, tie_word_embeddings=False)
        self.lm_head = nn.Linear(COLUMNS, VOCAB, bias=False)
        self.seen: set[str] = set()

    def compute_logits(self, hidden_states: Tensor, spec_step_idx: int = 0) -> Tensor:
        return hidden_states + spec_step_idx

    def get_top_tokens(self, hidden_states: Tensor) -> Tensor:
        return hidden_states.argmax(-1)

    def load_weights(self, weights: Iterable[tuple[str, Tensor]]) -> set[str]:
        self.seen = {name for name, _ in weights}
        return {f"model.{name}" for name in self.seen}


@pytest.fixture
def built(applied: list[str]) -> Callable[..., Any]:
    """A model with the keys of config.json that are given."""
    assert "draft_vocab.Qwen3_5MTP" in applied
    from draftmill_worker.bench.vllm_plugin.draft_vocab_head import DraftVocabulary, TopDraftTokens

    class Model(TopDraftTokens, DraftVocabulary, _Stock):
        pass

    def build(**keys: Any) -> Any:
        drafter = SimpleNamespace(hf_config=SimpleNamespace(**keys))
        speculative = SimpleNamespace(draft_model_config=drafter)
        return Model(vllm_config=SimpleNamespace(speculative_config=speculative, quant_config=None))

    return build


@pytest.mark.vllm
def test_a_model_without_a_draft_vocabulary_is_vllms(built: Callable[..., Any]) -> None:
    model, hidden = built(), torch.rand(2, 5)
    assert torch.equal(model.compute_logits(hidden, 3), hidden + 3)
    assert torch.equal(model.get_top_tokens(hidden), hidden.argmax(-1))
    assert model.load_weights([("mtp.fc.weight", hidden)]) == {"model.mtp.fc.weight"}
    assert {name for name, _ in model.named_parameters()} == {"lm_head.weight"}
    with pytest.raises(parts.DraftVocabularyError, match=r"config\.json has no mtp_draft_vocab_size"):
        model.load_weights(_plain().tensors.items())


@pytest.mark.vllm
def test_logits_are_the_draft_heads_at_their_tokens(built: Callable[..., Any]) -> None:
    model, given = built(mtp_draft_vocab_size=SIZE, mtp_draft_vocab_ids=IDS.tolist()), _plain()
    assert model.load_weights(given.tensors.items()) == {
        "model.mtp.fc.weight",
        "model.lm_head.weight",
        "draft_lm_head.weight",
        "draft_vocab_ids",
    }
    # As vLLM's loader does when all is loaded.
    model.draft_lm_head.quant_method.process_weights_after_loading(model.draft_lm_head)
    hidden = torch.randn(7, COLUMNS, generator=_seeded())
    rows = given.tensors["mtp.draft_lm_head.weight"].float()
    wanted = torch.full((7, VOCAB), -torch.inf)
    wanted[:, IDS] = hidden @ rows.T
    found = model.compute_logits(hidden)
    assert torch.equal(found.isinf(), wanted.isinf())
    assert torch.allclose(found[:, IDS], wanted[:, IDS], rtol=1e-5, atol=1e-4)
    assert torch.equal(found.argmax(-1), wanted.argmax(-1))
    assert torch.equal(model.get_top_tokens(hidden), wanted.argmax(-1))
    # vLLM puts the target's here: nothing of the whole head was loaded twice.
    assert not list(model.lm_head.parameters())


@pytest.mark.vllm
def test_a_model_that_lacks_a_part_does_not_load(built: Callable[..., Any]) -> None:
    model = built(mtp_draft_vocab_size=SIZE)
    with pytest.raises(parts.DraftVocabularyError, match=NO_IDS):
        model.load_weights(_plain().but(draft_vocab_ids=None).tensors.items())


@pytest.mark.vllm
def test_each_model_that_has_one_is_registered(applied: list[str]) -> None:
    from vllm.model_executor.models.registry import ModelRegistry

    from draftmill_worker.bench.vllm_plugin.draft_vocab import CLASSES, MODELS

    assert {patch for patch in applied if patch.startswith("draft_vocab.")} == {
        f"draft_vocab.{name}" for name in MODELS
    }
    for name, module in MODELS.items():
        found = ModelRegistry.models[name].load_model_cls()
        assert (found.__module__, found.__name__) == (CLASSES, name)
        assert next(one for one in found.__mro__ if one.__module__.startswith("vllm.")).__module__ == module


@pytest.mark.vllm
@pytest.mark.usefixtures("applied")
def test_another_source_is_refused_by_name(monkeypatch: pytest.MonkeyPatch) -> None:
    from draftmill_worker.bench.vllm_plugin import draft_vocab

    module = "vllm.model_executor.models.qwen3_5_mtp"
    monkeypatch.setattr(draft_vocab, "_RELIED_ON", {module: {"0123456789abcdef"}})
    with pytest.raises(PluginError, match=rf"^draft_vocab: vLLM's {module} is not one that was written for: [0-9a-f]"):
        draft_vocab.apply()
    monkeypatch.setattr(draft_vocab, "_RELIED_ON", {"vllm.nowhere": set()})
    with pytest.raises(PluginError, match=r"^draft_vocab: vLLM's vllm\.nowhere is not there"):
        draft_vocab.apply()
