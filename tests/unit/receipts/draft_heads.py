"""A Gemma4 assistant as a receipt's rules expect it, and a receipt of a real boot of one, its head in FP8."""

import json
from pathlib import Path
from typing import Any

from draftmill.benchmarks import Counts
from draftmill.plans import Family, Head
from draftmill.receipts import EngineView
from draftmill_worker.checkpoint.drafter import Drafter, Module
from draftmill_worker.receipts.collect import emulated
from tests.fixtures.gemma4 import Sizes, assistant_config
from tests.unit.receipts.good import Good, good

RECORDED = Path(__file__).parent / "draft_head" / "fp8.json"
"""Made by `python -m tests.e2e.vllm_plugin.draft_head`, which the test beside it compares with."""
DRAFTED = 3


def assistant(sizes: Sizes) -> Drafter:
    """Its modules as vLLM 0.32 names them (models/gemma4_mtp.py)."""
    layers = [
        module
        for layer in range(len(sizes.draft_layers))
        for module in (
            _module(f"layers.{layer}.self_attn.q_proj", layer),
            _module(f"layers.{layer}.self_attn.o_proj", layer),
            _module(f"layers.{layer}.mlp.gate_up_proj", layer, members=("gate_proj", "up_proj")),
            _module(f"layers.{layer}.mlp.down_proj", layer),
        )
    ]
    head = Module("lm_head", ("model.embed_tokens",), ("lm_head",), keep="tied")
    return Drafter(
        family=Family.MTP,
        dialect="gemma4_assistant",
        head=Head.TIED,
        num_layers=len(sizes.draft_layers),
        hidden_size=sizes.draft_hidden,
        vocab_size=sizes.vocab,
        draft_vocab_size=None,
        target_layer_ids=None,
        block_size=None,
        mask_token_id=None,
        target_num_layers=len(sizes.layers),
        config=assistant_config(sizes),
        engine_class="Gemma4MTP",
        modules=(_module("pre_projection"), _module("post_projection"), *layers, head),
    )


def _module(name: str, layer: int | None = None, members: tuple[str, ...] = ()) -> Module:
    stem, _, last = name.rpartition(".")
    stored = tuple(f"model.{stem}.{member}" for member in members or (last,))
    return Module(name, stored, (f"draft_model.{name}",), layer)


def recorded(scratch: Path) -> Good:
    """The record of a real boot in a receipt that is otherwise in order."""
    record: dict[str, Any] = json.loads(RECORDED.read_bytes())
    sizes, view = Sizes(), EngineView.model_validate(record["view"])
    base = good(scratch, Family.EAGLE3, None)
    return base.receive(
        view=view,
        emulated=emulated(view),
        counts=Counts.model_validate(record["counts"]),
        plugins=tuple(record["plugins"]),
        environment=record["environment"],
        speculative_config=record["speculative_config"],
    ).expect(
        drafter=assistant(sizes),
        plan=None,
        target_layers=len(sizes.layers),
        target_vocab=sizes.vocab,
        num_speculative_tokens=DRAFTED,
        draft_map_sha256=None,
    )
