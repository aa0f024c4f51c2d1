"""Small source checkpoints of every family, with random weights and each kind of file a source can have."""

import json
import math
import shutil
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file
from tokenizers import Tokenizer
from tokenizers.models import WordLevel
from tokenizers.pre_tokenizers import Whitespace

from draftmill.plans import Family

HIDDEN, INTERMEDIATE, HEAD_DIM, HEADS, KV_HEADS = 64, 128, 32, 2, 1
VOCAB, DRAFT_VOCAB, TARGET_LAYERS, BLOCK, RANK = 256, 96, 4, 4, 32
FAMILIES = (Family.EAGLE3, Family.DFLASH, Family.DSPARK, Family.DRAFT_MODEL)

Tensors = dict[str, torch.Tensor]

_COMMON = {
    "hidden_size": HIDDEN,
    "intermediate_size": INTERMEDIATE,
    "num_attention_heads": HEADS,
    "num_key_value_heads": KV_HEADS,
    "head_dim": HEAD_DIM,
    "rms_norm_eps": 1e-6,
    "rope_theta": 10000.0,
    "vocab_size": VOCAB,
    "max_position_embeddings": 256,
    "torch_dtype": "bfloat16",
    "tie_word_embeddings": False,
}
CONFIGS: dict[Family, dict[str, Any]] = {
    Family.EAGLE3: {
        "architectures": ["LlamaForCausalLMEagle3"],
        "model_type": "llama",
        "num_hidden_layers": 1,
        "draft_vocab_size": DRAFT_VOCAB,
        "eagle_aux_hidden_state_layer_ids": [1, 2, 3],
    },
    Family.DFLASH: {
        "architectures": ["DFlashDraftModel"],
        "model_type": "qwen3",
        "num_hidden_layers": 2,
        "block_size": BLOCK,
        "num_target_layers": TARGET_LAYERS,
        "dflash_config": {"mask_token_id": 1, "target_layer_ids": [1, 2, 3]},
    },
    Family.DSPARK: {
        "architectures": ["Qwen3DSparkModel"],
        "model_type": "qwen3",
        "num_hidden_layers": 2,
        "block_size": BLOCK,
        "num_target_layers": TARGET_LAYERS,
        "mask_token_id": 1,
        "target_layer_ids": [1, 2, 3],
        "markov_rank": RANK,
        "enable_confidence_head": True,
        "confidence_head_with_markov": True,
    },
    Family.DRAFT_MODEL: {"architectures": ["LlamaForCausalLM"], "model_type": "llama", "num_hidden_layers": 2},
}


def make_source(
    folder: Path, family: Family, *, shards: int = 1, dtype: torch.dtype = torch.bfloat16, sidecars: bool = True
) -> Path:
    """Writes a source checkpoint. With several shards, siblings that the engine fuses lie in different ones."""
    folder.mkdir(parents=True)
    tensors = make_tensors(family, dtype)
    config = _COMMON | CONFIGS[family] | {"torch_dtype": str(dtype).removeprefix("torch.")}
    if sidecars:
        config["auto_map"] = {"AutoModel": "modeling_tiny.Tiny", "AutoTokenizer": [None, "modeling_tiny.Tokens"]}
        _write_sidecars(folder)
    (folder / "config.json").write_text(json.dumps(config, indent=2) + "\n")
    names = sorted(tensors)
    if shards == 1:
        save_file(tensors, folder / "model.safetensors", {"format": "pt"})
        return folder
    files = [f"model-{number + 1:05}-of-{shards:05}.safetensors" for number in range(shards)]
    places = {name: files[number % shards] for number, name in enumerate(names)}
    for file in files:
        part = {name: tensors[name] for name in names if places[name] == file}
        save_file(part, folder / file, {"format": "pt"})
    total = sum(tensor.nbytes for tensor in tensors.values())
    index = {"metadata": {"total_size": total}, "weight_map": places}
    (folder / "model.safetensors.index.json").write_text(json.dumps(index))
    return folder


def make_tensors(family: Family, dtype: torch.dtype = torch.bfloat16) -> Tensors:
    """Weights of a fixed seed. Siblings differ in size, so that a shared scale is not what each has alone."""
    generator = torch.Generator().manual_seed(7)

    def normal(*shape: int, size: float = 1.0) -> torch.Tensor:
        return (torch.randn(shape, generator=generator) * size / math.sqrt(shape[-1])).to(dtype)

    tensors = {name: normal(*shape, size=_size(name)) for name, shape in _shapes(family).items()}
    tensors |= {name: (1 + normal(size)).contiguous() for name, size in _norms(family).items()}
    if family is Family.EAGLE3:
        ids = torch.randperm(VOCAB, generator=generator)[:DRAFT_VOCAB].sort().values
        tensors["d2t"] = ids - torch.arange(DRAFT_VOCAB)
        tensors["t2d"] = torch.zeros(VOCAB, dtype=torch.bool).index_fill(0, ids, True)
    return tensors


def _size(name: str) -> float:
    return {"v_proj": 0.2, "up_proj": 3.0}.get(name.split(".")[-2], 1.0)


def _prefixes(family: Family) -> list[str]:
    if family is Family.EAGLE3:
        return ["midlayer"]
    root = "model." if family is Family.DRAFT_MODEL else ""
    return [f"{root}layers.{number}" for number in range(2)]


def _shapes(family: Family) -> dict[str, tuple[int, int]]:
    attended = HIDDEN * (2 if family is Family.EAGLE3 else 1)
    layer = {
        "self_attn.q_proj": (HEADS * HEAD_DIM, attended),
        "self_attn.k_proj": (KV_HEADS * HEAD_DIM, attended),
        "self_attn.v_proj": (KV_HEADS * HEAD_DIM, attended),
        "self_attn.o_proj": (HIDDEN, HEADS * HEAD_DIM),
        "mlp.gate_proj": (INTERMEDIATE, HIDDEN),
        "mlp.up_proj": (INTERMEDIATE, HIDDEN),
        "mlp.down_proj": (HIDDEN, INTERMEDIATE),
    }
    shapes = {f"{prefix}.{name}.weight": shape for prefix in _prefixes(family) for name, shape in layer.items()}
    extra: dict[Family, dict[str, tuple[int, int]]] = {
        Family.EAGLE3: {"fc.weight": (HIDDEN, 3 * HIDDEN), "lm_head.weight": (DRAFT_VOCAB, HIDDEN)},
        Family.DFLASH: {"fc.weight": (HIDDEN, 3 * HIDDEN)},
        Family.DSPARK: {
            "fc.weight": (HIDDEN, 3 * HIDDEN),
            "markov_head.markov_w1.weight": (VOCAB, RANK),
            "markov_head.markov_w2.weight": (VOCAB, RANK),
            "confidence_head.proj.weight": (1, HIDDEN + RANK),
        },
        Family.DRAFT_MODEL: {"model.embed_tokens.weight": (VOCAB, HIDDEN), "lm_head.weight": (VOCAB, HIDDEN)},
    }
    return shapes | extra[family]


def _norms(family: Family) -> dict[str, int]:
    block = family in (Family.DFLASH, Family.DSPARK)
    found = {"model.norm.weight" if family is Family.DRAFT_MODEL else "norm.weight": HIDDEN}
    if block:
        found["hidden_norm.weight"] = HIDDEN
    for prefix in _prefixes(family):
        found |= {f"{prefix}.{name}_layernorm.weight": HIDDEN for name in ("input", "post_attention")}
        if family is Family.EAGLE3:
            found[f"{prefix}.hidden_norm.weight"] = HIDDEN
        if block:
            found |= {f"{prefix}.self_attn.{name}_norm.weight": HEAD_DIM for name in "qk"}
    return found


def _write_sidecars(folder: Path) -> None:
    words = {word: number for number, word in enumerate(["[UNK]", "The", "quick", "brown", "fox", "jumps", "over"])}
    tokenizer = Tokenizer(WordLevel(words, unk_token="[UNK]"))
    tokenizer.pre_tokenizer = Whitespace()
    tokenizer.save(str(folder / "tokenizer.json"))
    (folder / "tokenizer_config.json").write_text('{"model_max_length": 256}\n')
    (folder / "generation_config.json").write_text('{"temperature": 0.0}\n')
    (folder / "chat_template.jinja").write_text("{{ messages }}\n")
    (folder / "recipe.yaml").write_text("steps: []\n")
    (folder / "modeling_tiny.py").write_text("from .layers_tiny import Layer\n")
    (folder / "layers_tiny.py").write_text("Layer = None\n")
    # What must not travel on.
    (folder / "trainer_state.json").write_text("{}\n")
    (folder / "README.md").write_text("# The source's own card\n")
    (folder / "unused.py").write_text("UNUSED = 1\n")


def copy_folder(source: Path, destination: Path) -> Path:
    return Path(shutil.copytree(source, destination))
