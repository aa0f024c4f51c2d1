"""How targets of each architecture store an MTP block, and what vLLM 0.32 makes of its names.

Read in models/qwen3_5_mtp.py, qwen3_next_mtp.py, glm4_moe_mtp.py, deepseek_mtp.py, nemotron_h_mtp.py and mimo_mtp.py,
and in the targets' `hf_to_vllm_mapper`s. A target's quantization config serves its block too, renamed by the target's
mapper.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field

PREFIX, PAST_LAST = "mtp.", "layers past the target's last"
NEXTN, MTP_LAYERS = "num_nextn_predict_layers", "mtp_num_hidden_layers"
_FP4 = ("modelopt_fp4",)


@dataclass(frozen=True)
class Join:
    """The linear layer in which the block joins embedding and hidden state."""

    name: str
    """Below the block's prefix, or below each of its layers with `{layer}`."""
    keep: str | None = None
    """Why it is never quantized."""
    plain_under: tuple[str, ...] = ()
    """Quantization methods under which the engine builds it unquantized whatever the checkpoint holds."""


@dataclass(frozen=True)
class Dialect:
    name: str
    engine_classes: Mapping[str, str]
    """vLLM's class for the block, by the target's architecture."""
    key: str
    """Configuration key that counts the block's layers."""
    join: Join
    norms: tuple[str, ...]
    """Vectors of the hidden size beside the layers' own, as `Join.name`."""
    attention: str = "self_attn"
    layer_norms: tuple[str, ...] = ("input_layernorm", "post_attention_layernorm")
    default: int = 0
    """The count where the configuration has no such key."""
    gated: bool = True
    """Whether q_proj has a second half that gates the attention's output, unless the configuration says otherwise."""
    past_last: bool = False
    """Stored as `model.layers.<N>` from the target's layer count on, and not under `mtp.`."""
    renames: Mapping[str, str] = field(default_factory=dict)
    """Prefixes of the target's names that the engine replaces, in every architecture of the dialect."""
    renames_by_architecture: Mapping[str, Mapping[str, str]] = field(default_factory=dict)
    refusal: str | None = None
    """Why the engine cannot serve such a block quantized beside its target."""
    unread: str | None = None
    """Why this build does not plan such a block."""

    def renames_of(self, architecture: str) -> Mapping[str, str]:
        return {**self.renames, **self.renames_by_architecture.get(architecture, {})}


_MULTIMODAL = {
    "model.language_model.": "language_model.model.",
    "model.visual.": "visual.",
    "lm_head.": "language_model.lm_head.",
}
_FC = Join("fc", plain_under=_FP4)
_FC_NORMS = ("pre_fc_norm_embedding", "pre_fc_norm_hidden", "norm")

DIALECTS = (
    Dialect(
        name="mtp.* of Qwen3.5",
        engine_classes={
            "Qwen3_5ForCausalLM": "Qwen3_5MTP",
            "Qwen3_5ForConditionalGeneration": "Qwen3_5MTP",
            "Qwen3_5MoeForCausalLM": "Qwen3_5MoeMTP",
            "Qwen3_5MoeForConditionalGeneration": "Qwen3_5MoeMTP",
        },
        key=MTP_LAYERS,
        join=_FC,
        norms=_FC_NORMS,
        renames={"model.language_model.": "model."},
        renames_by_architecture={
            "Qwen3_5ForConditionalGeneration": _MULTIMODAL,
            "Qwen3_5MoeForConditionalGeneration": _MULTIMODAL,
        },
    ),
    Dialect(
        name="mtp.* of Qwen3-Next",
        engine_classes={"Qwen3NextForCausalLM": "Qwen3NextMTP"},
        key=NEXTN,
        join=_FC,
        norms=_FC_NORMS,
        default=1,
    ),
    Dialect(
        name="layers past the last of GLM-4.5",
        engine_classes={"Glm4MoeForCausalLM": "Glm4MoeMTP"},
        key=NEXTN,
        join=Join("layers.{layer}.eh_proj", keep="the engine builds it as a plain linear layer"),
        norms=("layers.{layer}.enorm", "layers.{layer}.hnorm", "layers.{layer}.shared_head.norm"),
        gated=False,
        past_last=True,
    ),
    Dialect(
        name="mtp.* of MiMo",
        engine_classes={"MiMoForCausalLM": "MiMoMTP"},
        key=NEXTN,
        join=Join("layers.{layer}.input_proj", keep="the engine builds it as a plain linear layer"),
        norms=(),
        refusal=(
            "vLLM 0.32 counts MiMo's MTP layers from 0 and asks for them by the names of the target's first layers: "
            "they cannot be quantized apart"
        ),
    ),
    Dialect(
        name="layers past the last of DeepSeek-V3",
        engine_classes=dict.fromkeys(
            ("DeepseekV3ForCausalLM", "DeepseekV32ForCausalLM", "GlmMoeDsaForCausalLM"), "DeepSeekMTP"
        ),
        key=NEXTN,
        join=Join("layers.{layer}.eh_proj", keep="the engine builds it as a plain linear layer"),
        norms=("layers.{layer}.enorm", "layers.{layer}.hnorm", "layers.{layer}.shared_head.norm"),
        past_last=True,
        unread=(
            "the MTP block of DeepSeek-V3 is not planned by this build: its attention is latent, q_a_proj and "
            "kv_a_proj_with_mqa are one layer in the engine, which also takes kv_b_proj apart. Serve it as it is"
        ),
    ),
    Dialect(
        name="mtp.* of Nemotron-H",
        engine_classes=dict.fromkeys(("NemotronHForCausalLM", "NemotronHPuzzleForCausalLM"), "NemotronHMTP"),
        key=NEXTN,
        join=Join("layers.{layer}.eh_proj"),
        norms=(),
        unread=(
            "the MTP block of Nemotron-H is not planned by this build: its layers are those of "
            "mtp_hybrid_override_pattern, and the engine drops in silence what it has no place for. Serve it as it is"
        ),
    ),
)
