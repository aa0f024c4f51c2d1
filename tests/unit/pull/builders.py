"""Small checkpoints of each family, written without torch."""

import json
from pathlib import Path
from typing import Any

import numpy as np
from safetensors.numpy import save_file

INDEX = "model.safetensors.index.json"
Shapes = dict[str, tuple[int, ...]]


def save(folder: Path, config: dict[str, Any], shapes: Shapes, *, shards: int = 1) -> Path:
    """A checkpoint of float16 noise; with more than one shard, with an index."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "config.json").write_text(json.dumps(config, indent=2))
    noise = np.random.default_rng(0)
    tensors = {name: noise.standard_normal(shape, dtype=np.float32).astype("f2") for name, shape in shapes.items()}
    for name in tensors.keys() & {"d2t"}:
        tensors[name] = np.arange(*shapes[name], dtype=np.int64)
    if shards == 1:
        save_file(tensors, folder / "model.safetensors")
        return folder
    files = [f"model-{number:05}-of-{shards:05}.safetensors" for number in range(1, shards + 1)]
    weight_map = {name: files[position % shards] for position, name in enumerate(tensors)}
    for file in files:
        save_file({name: tensors[name] for name in tensors if weight_map[name] == file}, folder / file)
    (folder / INDEX).write_text(json.dumps({"metadata": {}, "weight_map": weight_map}))
    return folder


def draft_model(
    folder: Path, *, vocab: int = 32, stored_vocab: int | None = None, shards: int = 1, **extra: Any
) -> Path:
    """A one-layer Llama of hidden size 8: about 16 bytes for each row of the vocabulary, and some 2 KB."""
    config = _sizes("LlamaForCausalLM", "llama", vocab) | {"tie_word_embeddings": True} | extra
    shapes = {"model.embed_tokens.weight": (stored_vocab or vocab, 8), "model.norm.weight": (8,)}
    return save(folder, config, shapes | _layer("model.layers.0"), shards=shards)


def eagle3(folder: Path, *, vocab: int = 64, draft_vocab: int | None = 32, head: bool = True, **extra: Any) -> Path:
    config = _sizes("LlamaForCausalLMEagle3", "llama", vocab) | {"tie_word_embeddings": False} | extra
    shapes: Shapes = {"fc.weight": (8, 24), "norm.weight": (8,), "midlayer.hidden_norm.weight": (8,)}
    shapes |= _layer("midlayer", in_size=16)
    if draft_vocab is not None:
        config["draft_vocab_size"] = draft_vocab
        shapes["d2t"] = (draft_vocab,)
    if head:
        shapes["lm_head.weight"] = (draft_vocab or vocab, 8)
    return save(folder, config, shapes)


def dflash(folder: Path, *, vocab: int = 32, top: dict[str, Any] | None = None, nested: dict[str, Any] | None) -> Path:
    """`nested` goes into dflash_config, `top` beside it."""
    config = _sizes("DFlashDraftModel", "qwen3", vocab) | (top or {})
    if nested is not None:
        config["dflash_config"] = nested
    return save(folder, config, _block_drafter())


def dspark(folder: Path, *, vocab: int = 32, architecture: str = "Qwen3DSparkModel") -> Path:
    config = _sizes(architecture, "qwen3", vocab)
    config |= {"markov_rank": 4, "block_size": 4, "dflash_config": {"target_layer_ids": [0, 1], "mask_token_id": 3}}
    shapes = {"markov_head.markov_w1.weight": (vocab, 4), "markov_head.markov_w2.weight": (vocab, 4)}
    return save(folder, config, _block_drafter() | shapes | {"confidence_head.proj.weight": (1, 8)})


def _sizes(architecture: str, model_type: str, vocab: int) -> dict[str, Any]:
    return {
        "architectures": [architecture],
        "model_type": model_type,
        "hidden_size": 8,
        "intermediate_size": 16,
        "num_hidden_layers": 1,
        "num_attention_heads": 2,
        "num_key_value_heads": 1,
        "head_dim": 4,
        "vocab_size": vocab,
    }


def _layer(prefix: str, in_size: int = 8) -> Shapes:
    return {
        f"{prefix}.self_attn.q_proj.weight": (8, in_size),
        f"{prefix}.self_attn.k_proj.weight": (4, in_size),
        f"{prefix}.self_attn.v_proj.weight": (4, in_size),
        f"{prefix}.self_attn.o_proj.weight": (8, 8),
        f"{prefix}.mlp.gate_proj.weight": (16, 8),
        f"{prefix}.mlp.up_proj.weight": (16, 8),
        f"{prefix}.mlp.down_proj.weight": (8, 16),
        f"{prefix}.input_layernorm.weight": (8,),
        f"{prefix}.post_attention_layernorm.weight": (8,),
    }


def _block_drafter() -> Shapes:
    shapes = _layer("layers.0") | {"fc.weight": (8, 16), "hidden_norm.weight": (8,), "norm.weight": (8,)}
    return shapes | {f"layers.0.self_attn.{name}_norm.weight": (4,) for name in "qk"}
