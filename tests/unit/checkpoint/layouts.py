"""Tiny checkpoints of every family, as configuration and tensor shapes, and a writer for them."""

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file

from draftmill_worker.checkpoint.checkpoint import Checkpoint, open_checkpoint
from draftmill_worker.checkpoint.drafter import Drafter
from draftmill_worker.checkpoint.families import detect

DTYPES = {
    "BF16": torch.bfloat16,
    "F16": torch.float16,
    "F32": torch.float32,
    "F64": torch.float64,
    "I64": torch.int64,
    "I32": torch.int32,
    "BOOL": torch.bool,
    "U8": torch.uint8,
    "F8_E4M3": torch.float8_e4m3fn,
}
HIDDEN, INTERMEDIATE, HEADS, KV_HEADS, HEAD_DIM, VOCAB, DRAFT_VOCAB = 128, 256, 4, 2, 64, 128, 64
Q, KV = HEADS * HEAD_DIM, KV_HEADS * HEAD_DIM


@dataclass
class Layout:
    config: dict[str, Any]
    tensors: dict[str, tuple[str, tuple[int, ...]]] = field(default_factory=dict)
    """dtype and shape by name."""

    def add(self, shapes: Mapping[str, tuple[int, ...]], dtype: str = "BF16") -> "Layout":
        self.tensors |= {name: (dtype, shape) for name, shape in shapes.items()}
        return self

    def without(self, *names: str) -> "Layout":
        for name in names:
            del self.tensors[name]
        return self

    def cast(self, dtype: str) -> "Layout":
        """Every floating tensor in another dtype."""
        for name, (old, shape) in self.tensors.items():
            self.tensors[name] = (dtype if old in ("BF16", "F16", "F32") else old, shape)
        return self

    def write(self, folder: Path, shards: int = 1) -> Path:
        """Writes the checkpoint; tensors go to shards in turn, so that siblings are parted."""
        folder.mkdir(parents=True, exist_ok=True)
        files = [f"model-{i + 1:05}-of-{shards:05}.safetensors" for i in range(shards)]
        files = ["model.safetensors"] if shards == 1 else files
        places = {name: files[i % shards] for i, name in enumerate(self.tensors)}
        for file in files:
            content = {
                name: torch.zeros(shape, dtype=DTYPES[dtype])
                for name, (dtype, shape) in self.tensors.items()
                if places[name] == file
            }
            save_file(content, folder / file)
        if shards > 1:
            (folder / "model.safetensors.index.json").write_text(json.dumps({"metadata": {}, "weight_map": places}))
        (folder / "config.json").write_text(json.dumps(self.config))
        return folder

    def open(self, folder: Path, shards: int = 1) -> tuple[Checkpoint, Drafter]:
        checkpoint = open_checkpoint(self.write(folder, shards))
        return checkpoint, detect(checkpoint)


def stack(architecture: str, model_type: str, layers: int) -> dict[str, Any]:
    return {
        "architectures": [architecture],
        "model_type": model_type,
        "hidden_size": HIDDEN,
        "intermediate_size": INTERMEDIATE,
        "num_hidden_layers": layers,
        "num_attention_heads": HEADS,
        "num_key_value_heads": KV_HEADS,
        "head_dim": HEAD_DIM,
        "vocab_size": VOCAB,
        "tie_word_embeddings": False,
    }


def layer(
    prefix: str, in_size: int = HIDDEN, qk_norm: bool = False, hidden_norm: bool = False
) -> dict[str, tuple[int, ...]]:
    shapes: dict[str, tuple[int, ...]] = {
        "self_attn.q_proj": (Q, in_size),
        "self_attn.k_proj": (KV, in_size),
        "self_attn.v_proj": (KV, in_size),
        "self_attn.o_proj": (HIDDEN, Q),
        "mlp.gate_proj": (INTERMEDIATE, HIDDEN),
        "mlp.up_proj": (INTERMEDIATE, HIDDEN),
        "mlp.down_proj": (HIDDEN, INTERMEDIATE),
        "input_layernorm": (HIDDEN,),
        "post_attention_layernorm": (HIDDEN,),
    }
    if qk_norm:
        shapes |= {"self_attn.q_norm": (HEAD_DIM,), "self_attn.k_norm": (HEAD_DIM,)}
    if hidden_norm:
        shapes["hidden_norm"] = (HIDDEN,)
    return {f"{prefix}.{name}.weight": shape for name, shape in shapes.items()}


def eagle3(layers: int = 1, qwen3: bool = False, prefix: str | None = "midlayer", **config: Any) -> Layout:
    """`prefix`: of the only layer; None for `layers.N`."""
    name = "Eagle3Qwen3ForCausalLM" if qwen3 else "LlamaForCausalLMEagle3"
    layout = Layout(stack(name, "qwen3" if qwen3 else "llama", layers))
    layout.config |= {
        "draft_vocab_size": DRAFT_VOCAB,
        "eagle_config": {"eagle_aux_hidden_state_layer_ids": [2, 4, 6]},
        **config,
    }
    layout.add({"fc.weight": (HIDDEN, 3 * HIDDEN), "norm.weight": (HIDDEN,), "lm_head.weight": (DRAFT_VOCAB, HIDDEN)})
    for number in range(layers):
        where = prefix if prefix and layers == 1 else f"layers.{number}"
        layout.add(layer(where, HIDDEN * (2 if number == 0 else 1), qk_norm=qwen3, hidden_norm=True))
    layout.add({"d2t": (DRAFT_VOCAB,)}, "I64").add({"t2d": (VOCAB,)}, "BOOL")
    return layout


def eagle(layers: int = 1, nested: bool = False, **config: Any) -> Layout:
    """EAGLE-1. `nested`: the decoder's settings in `model`, as vLLM's own converter writes them."""
    layout = Layout(stack("LlamaForCausalLM", "llama", layers) | config)
    layout.add({"embed_tokens.weight": (VOCAB, HIDDEN), "fc.weight": (HIDDEN, 2 * HIDDEN)})
    for number in range(layers):
        layout.add(layer(f"layers.{number}"))
    layout.without("layers.0.input_layernorm.weight")
    if nested:
        layout.config = {"model_type": "eagle", "architectures": ["EAGLEModel"], "model": layout.config}
    return layout


def _block(architecture: str, layers: int, config: dict[str, Any]) -> Layout:
    layout = Layout(stack(architecture, "qwen3", layers) | config)
    layout.add({"fc.weight": (HIDDEN, 3 * HIDDEN), "hidden_norm.weight": (HIDDEN,), "norm.weight": (HIDDEN,)})
    for number in range(layers):
        layout.add(layer(f"layers.{number}", qk_norm=True))
    return layout


def dflash(layers: int = 2, **config: Any) -> Layout:
    nested = {"block_size": 8, "dflash_config": {"mask_token_id": 1, "target_layer_ids": [1, 3, 5]}}
    return _block("DFlashDraftModel", layers, nested | {"num_target_layers": 8} | config)


def dflash2(layers: int = 2, taps: int = 3, group: int = 8, rank: int = 16, **config: Any) -> Layout:
    layout = dflash(layers, architectures=["DFlash2DraftModel"])
    layout.config["dflash_config"] |= {
        "conv_kernel_size": taps,
        "conv_group_size": group,
        "selector_rank": rank,
        "selector_top_k": 4,
    }
    layout.config |= config
    for number in range(layers):
        for name in ("attention_conv", "mlp_conv"):
            where = f"layers.{number}.{name}"
            layout.add({f"{where}.base_kernel": (2, taps, HIDDEN)})
            layout.add({f"{where}.kernel_projection.weight": (2 * taps * HIDDEN // group, HIDDEN)})
    tables = {f"candidate_selector.{name}_codebook": (VOCAB, rank) for name in ("predecessor", "successor")}
    return layout.add({**tables, "candidate_selector.hidden_projection.weight": (rank, HIDDEN)})


def dspark(layers: int = 2, rank: int = 16, **config: Any) -> Layout:
    own = {
        "block_size": 7,
        "mask_token_id": 1,
        "target_layer_ids": [1, 3, 5],
        "num_target_layers": 8,
        "markov_rank": rank,
        "enable_confidence_head": True,
        "confidence_head_with_markov": True,
    }
    layout = _block("Qwen3DSparkModel", layers, own | config)
    layout.add({"markov_head.markov_w1.weight": (VOCAB, rank), "markov_head.markov_w2.weight": (VOCAB, rank)})
    return layout.add({"confidence_head.proj.weight": (1, HIDDEN + rank), "confidence_head.proj.bias": (1,)})


def gemma4_dspark(layers: int = 2, rank: int = 16, **config: Any) -> Layout:
    """Heads of full attention are wider and fewer than those of the sliding layers, which it has none of."""
    own: dict[str, Any] = {
        "attention_k_eq_v": True,
        "global_head_dim": 2 * HEAD_DIM,
        "num_global_key_value_heads": 1,
        "layer_types": ["full_attention"] * layers,
        "block_size": 7,
        "mask_token_id": 1,
        "target_layer_ids": [1, 3, 5],
        "num_target_layers": 8,
        "markov_rank": rank,
        "enable_confidence_head": True,
        "confidence_head_with_markov": True,
        "tie_word_embeddings": True,
    }
    layout = Layout(stack("Gemma4DSparkModel", "gemma4_text", layers) | own | config)
    layout.add({"fc.weight": (HIDDEN, 3 * HIDDEN), "hidden_norm.weight": (HIDDEN,), "norm.weight": (HIDDEN,)})
    shapes: dict[str, tuple[int, ...]] = {
        "self_attn.q_proj": (2 * Q, HIDDEN),
        "self_attn.k_proj": (2 * HEAD_DIM, HIDDEN),
        "self_attn.o_proj": (HIDDEN, 2 * Q),
        "self_attn.q_norm": (2 * HEAD_DIM,),
        "self_attn.k_norm": (2 * HEAD_DIM,),
        "mlp.gate_proj": (INTERMEDIATE, HIDDEN),
        "mlp.up_proj": (INTERMEDIATE, HIDDEN),
        "mlp.down_proj": (HIDDEN, INTERMEDIATE),
    }
    norms = ("input", "post_attention", "pre_feedforward", "post_feedforward")
    shapes |= {f"{name}_layernorm": (HIDDEN,) for name in norms}
    for number in range(layers):
        layout.add({f"layers.{number}.{name}.weight": shape for name, shape in shapes.items()})
        layout.add({f"layers.{number}.layer_scalar": (1,)})
    layout.add({f"markov_head.markov_w{number}.weight": (VOCAB, rank) for number in (1, 2)})
    layout.add({"embed_tokens.weight": (VOCAB, HIDDEN), "confidence_head.proj.bias": (1,)})
    return layout.add({"confidence_head.proj.weight": (1, HIDDEN + rank)})


def draft_model(layers: int = 2, architecture: str = "LlamaForCausalLM", tied: bool = False, **config: Any) -> Layout:
    qwen3 = architecture == "Qwen3ForCausalLM"
    layout = Layout(stack(architecture, "qwen3" if qwen3 else "llama", layers) | {"tie_word_embeddings": tied} | config)
    layout.add({"model.embed_tokens.weight": (VOCAB, HIDDEN), "model.norm.weight": (HIDDEN,)})
    for number in range(layers):
        layout.add(layer(f"model.layers.{number}", qk_norm=qwen3))
    return layout if tied else layout.add({"lm_head.weight": (VOCAB, HIDDEN)})


def medusa(heads: int = 3) -> Layout:
    layout = Layout(
        {"architectures": ["MedusaModel"], "model_type": "medusa", "medusa_num_heads": heads, "medusa_num_layers": 1}
    )
    for number in range(heads):
        layout.add({f"{number}.0.linear.weight": (HIDDEN, HIDDEN), f"{number}.1.weight": (VOCAB, HIDDEN)})
    return layout


def speculators(layout: Layout, kind: str) -> Layout:
    """The same drafter in speculators' dialect: the decoder's settings in their own object."""
    flat = dict(layout.config)
    nested = flat.pop("dflash_config", {}) | flat.pop("eagle_config", {})
    inner = {key: flat.pop(key) for key in stack("", "", 0) if key not in ("architectures", "tie_word_embeddings")}
    outer: dict[str, Any] = {key: value for key, value in (flat | nested).items() if key != "target_layer_ids"}
    ids = flat.get("target_layer_ids") or nested.get("target_layer_ids")
    if ids:
        outer["aux_hidden_state_layer_ids"] = [number + 1 for number in ids]
    outer |= {"speculators_model_type": kind, "transformer_layer_config": inner}
    return Layout(outer, layout.tensors)
