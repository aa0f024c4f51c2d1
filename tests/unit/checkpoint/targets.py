"""Tiny targets with an MTP block, as configuration and tensor shapes."""

import json
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file

from tests.unit.checkpoint.layouts import DTYPES, HIDDEN, INTERMEDIATE, VOCAB, Layout, Q, layer, stack

LAYERS, EXPERTS = 2, 3
Shapes = dict[str, tuple[int, ...]]


class TargetLayout(Layout):
    def write_apart(self, folder: Path) -> Path:
        """The block in a file of its own."""
        folder.mkdir(parents=True)
        places = {name: "b.safetensors" if name.startswith("mtp.") else "a.safetensors" for name in self.tensors}
        for file in sorted(set(places.values())):
            names = [name for name, place in places.items() if place == file]
            save_file({name: torch.zeros(self.tensors[name][1], dtype=DTYPES["BF16"]) for name in names}, folder / file)
        (folder / "model.safetensors.index.json").write_text(json.dumps({"metadata": {}, "weight_map": places}))
        (folder / "config.json").write_text(json.dumps(self.config))
        return folder


def _attention(prefix: str, gated: bool = True) -> Shapes:
    shapes = {name: shape for name, shape in layer(prefix, qk_norm=True).items() if ".mlp." not in name}
    return shapes | {f"{prefix}.self_attn.q_proj.weight": (Q * (2 if gated else 1), HIDDEN)}


def _mlp(prefix: str, inner: int = INTERMEDIATE) -> Shapes:
    return {
        f"{prefix}.gate_proj.weight": (inner, HIDDEN),
        f"{prefix}.up_proj.weight": (inner, HIDDEN),
        f"{prefix}.down_proj.weight": (HIDDEN, inner),
    }


def _experts(prefix: str, shared: str) -> Shapes:
    shapes = {f"{prefix}.gate.weight": (EXPERTS, HIDDEN)} | _mlp(f"{prefix}.{shared}")
    for number in range(EXPERTS):
        shapes |= _mlp(f"{prefix}.experts.{number}")
    return shapes


def _target(config: dict[str, Any], stem: str = "model.") -> TargetLayout:
    layout = TargetLayout(config)
    layout.add({f"{stem}embed_tokens.weight": (VOCAB, HIDDEN), f"{stem}norm.weight": (HIDDEN,)})
    layout.add({"lm_head.weight": (VOCAB, HIDDEN)})
    for number in range(LAYERS):
        layout.add(_attention(f"{stem}layers.{number}") | _mlp(f"{stem}layers.{number}.mlp"))
    return layout


def _joint() -> Shapes:
    norms = ("pre_fc_norm_embedding", "pre_fc_norm_hidden", "norm")
    return {"mtp.fc.weight": (HIDDEN, 2 * HIDDEN)} | {f"mtp.{norm}.weight": (HIDDEN,) for norm in norms}


def qwen3_5(layers: int = 1, promised: int | None = None, multimodal: bool = False) -> TargetLayout:
    """`layers` of the block are stored, `promised` of them named."""
    config = stack("Qwen3_5ForCausalLM", "qwen3_5_text", LAYERS)
    config["mtp_num_hidden_layers"] = layers if promised is None else promised
    if multimodal:
        inner = {key: value for key, value in config.items() if key != "architectures"}
        config = {"architectures": ["Qwen3_5ForConditionalGeneration"], "model_type": "qwen3_5", "text_config": inner}
    layout = _target(config, "model.language_model." if multimodal else "model.")
    if multimodal:
        layout.add({"model.visual.blocks.0.attn.qkv.weight": (3 * HIDDEN, HIDDEN)})
    if layers:
        layout.add(_joint())
    for number in range(layers):
        layout.add(_attention(f"mtp.layers.{number}") | _mlp(f"mtp.layers.{number}.mlp"))
    return layout


def qwen3_next() -> TargetLayout:
    """The configuration says nothing of the block, of which the engine then takes one layer."""
    layout = _target(stack("Qwen3NextForCausalLM", "qwen3_next", LAYERS)).add(_joint())
    layout.add(_attention("mtp.layers.0") | _experts("mtp.layers.0.mlp", "shared_expert"))
    layout.add({"mtp.layers.0.mlp.shared_expert_gate.weight": (1, HIDDEN)})
    return layout


def glm4_moe(promised: int = 1) -> TargetLayout:
    config = stack("Glm4MoeForCausalLM", "glm4_moe", LAYERS) | {"num_nextn_predict_layers": promised}
    layout, block = _target(config), f"model.layers.{LAYERS}"
    layout.add(_attention(block, gated=False) | _experts(f"{block}.mlp", "shared_experts"))
    norms = ("enorm", "hnorm", "shared_head.norm")
    layout.add(
        {f"{block}.eh_proj.weight": (HIDDEN, 2 * HIDDEN)} | {f"{block}.{norm}.weight": (HIDDEN,) for norm in norms}
    )
    return layout


def mimo() -> TargetLayout:
    layout = _target(stack("MiMoForCausalLM", "mimo", LAYERS) | {"num_nextn_predict_layers": 1})
    block = "model.mtp_layers.0"
    return layout.add(
        _attention(block, gated=False) | _mlp(f"{block}.mlp") | {f"{block}.input_proj.weight": (HIDDEN, 2 * HIDDEN)}
    )


def deepseek_v3(architecture: str = "DeepseekV3ForCausalLM") -> TargetLayout:
    """As DeepSeekMTP.load_weights reads it."""
    layout = _target(stack(architecture, "deepseek_v3", LAYERS) | {"num_nextn_predict_layers": 1})
    block, rank = f"model.layers.{LAYERS}", HIDDEN // 2
    latent = {"q_a_proj": (rank, HIDDEN), "q_b_proj": (Q, rank), "kv_a_proj_with_mqa": (rank, HIDDEN)}
    latent |= {"kv_b_proj": (2 * Q, rank), "o_proj": (HIDDEN, Q)}
    layout.add({f"{block}.self_attn.{name}.weight": shape for name, shape in latent.items()})
    layout.add({f"{block}.{norm}.weight": (HIDDEN,) for norm in ("enorm", "hnorm", "shared_head.norm")})
    layout.add({f"{block}.eh_proj.weight": (HIDDEN, 2 * HIDDEN), f"{block}.shared_head.head.weight": (VOCAB, HIDDEN)})
    layout.add(_experts(f"{block}.mlp", "shared_experts"))
    return layout


def nemotron_h() -> TargetLayout:
    """As NemotronHMTP.load_weights reads it: one block of an attention layer and one of experts."""
    own = {"num_nextn_predict_layers": 1, "mtp_hybrid_override_pattern": "*E"}
    layout = TargetLayout(stack("NemotronHForCausalLM", "nemotron_h", LAYERS) | own)
    layout.add({"backbone.embeddings.weight": (VOCAB, HIDDEN), "lm_head.weight": (VOCAB, HIDDEN)})
    layout.add({f"backbone.layers.{number}.mixer.up_proj.weight": (INTERMEDIATE, HIDDEN) for number in range(LAYERS)})
    layout.add({f"mtp.layers.0.mixer.{part}_proj.weight": (Q, HIDDEN) for part in "qkv"})
    layout.add({"mtp.layers.0.mixer.o_proj.weight": (HIDDEN, Q), "mtp.layers.0.eh_proj.weight": (HIDDEN, 2 * HIDDEN)})
    layout.add({"mtp.layers.1.mixer.gate.weight": (EXPERTS, HIDDEN), "mtp.layers.1.final_layernorm.weight": (HIDDEN,)})
    for number in range(EXPERTS):
        layout.add({f"mtp.layers.1.mixer.experts.{number}.up_proj.weight": (INTERMEDIATE, HIDDEN)})
    return layout
