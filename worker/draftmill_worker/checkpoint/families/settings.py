"""A drafter's configuration with its types checked and its dialects made one."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from draftmill_worker.checkpoint.findings import Findings

# No count, size or token id of a real model comes near.
LIMIT = 1 << 31
MAX_LAYERS = 512


@dataclass(frozen=True)
class Settings:
    """One JSON object of the configuration. Wrong types are noted as `malformed-config` and read as absent."""

    values: Mapping[str, Any]
    findings: Findings
    where: str = "config.json"

    def section(self, key: str) -> "Settings":
        """A nested object; an absent one is empty."""
        value = self._get(key, dict, "an object")
        return Settings(value or {}, self.findings, f"{self.where}: {key}")

    def natural(self, key: str, minimum: int = 0) -> int | None:
        value: int | None = self._get(key, int, "an integer")
        if value is None or minimum <= value < LIMIT:
            return value
        self._note(key, f"must be an integer from {minimum}")
        return None

    def required(self, key: str) -> int:
        """A positive integer; 0 when it is missing, which is noted."""
        value = self.natural(key, 1)
        if value is None and self.values.get(key) is None:
            self._note(key, "is required")
        return value or 0

    def naturals(self, key: str) -> tuple[int, ...] | None:
        """A list of distinct natural numbers. An empty one is an absent one: ModelOpt writes it for "the default"."""
        value = self._get(key, list, "a list")
        if not value:
            return None
        good = all(type(item) is int and 0 <= item < LIMIT for item in value)
        if not good or len(set(value)) != len(value):
            self._note(key, "must be a list of distinct natural numbers")
            return None
        return tuple(value)

    def flag(self, key: str) -> bool | None:
        value: bool | None = self._get(key, bool, "true or false")
        return value

    def text(self, key: str) -> str:
        return self._get(key, str, "a string") or ""

    def texts(self, key: str) -> tuple[str, ...]:
        value = self._get(key, list, "a list of strings")
        if value is None:
            return ()
        if not all(isinstance(item, str) for item in value):
            self._note(key, "must be a list of strings")
            return ()
        return tuple(value)

    def _get(self, key: str, kind: type, name: str) -> Any:
        value = self.values.get(key)
        # JSON's true is an int to Python.
        if value is None or (isinstance(value, kind) and not (kind is int and isinstance(value, bool))):
            return value
        self._note(key, f"must be {name}")
        return None

    def _note(self, key: str, message: str) -> None:
        self.findings.add("malformed-config", f"{self.where}: {key}", f"{key} {message}")


@dataclass(frozen=True)
class Sizes:
    """What a decoder stack's shapes follow from."""

    layers: int
    hidden: int
    intermediate: int
    heads: int
    kv_heads: int
    head_dim: int
    vocab: int


def read_sizes(settings: Settings) -> Sizes:
    hidden, heads = settings.required("hidden_size"), settings.required("num_attention_heads")
    layers = settings.required("num_hidden_layers")
    if layers > MAX_LAYERS:
        settings.findings.add("malformed-config", "config.json: num_hidden_layers", f"at most {MAX_LAYERS} are read")
    return Sizes(
        layers=layers,
        hidden=hidden,
        intermediate=settings.required("intermediate_size"),
        heads=heads,
        kv_heads=settings.natural("num_key_value_heads", 1) or heads,
        head_dim=settings.natural("head_dim", 1) or (hidden // heads if heads else 0),
        vocab=settings.required("vocab_size"),
    )


def flatten(config: Mapping[str, Any], findings: Findings) -> tuple[Settings, bool]:
    """The settings, and whether they came in speculators' dialect: the decoder's in `transformer_layer_config`.

    speculators counts a target layer by the auxiliary state after it, one more than DFlash and DSpark count;
    vLLM's `configs/speculators/algos.py` converts it the same way. EAGLE-1's nested dialect keeps the decoder's
    settings in `model`; what stands beside it goes first, as vLLM's `configs/eagle.py` has it.
    """
    settings = Settings(config, findings)
    if not settings.text("speculators_model_type"):
        return Settings(_without_nesting(config), findings), False
    layer = settings.section("transformer_layer_config").values
    flat = {**layer, **{key: value for key, value in config.items() if key != "transformer_layer_config"}}
    flat["model_type"] = layer.get("model_type")
    if (ids := settings.naturals("aux_hidden_state_layer_ids")) is not None:
        if 0 in ids:
            findings.add("malformed-config", "config.json: aux_hidden_state_layer_ids", "auxiliary layers count from 1")
        flat["target_layer_ids"] = [number - 1 for number in ids if number]
    return Settings(flat, findings), True


def is_nested_eagle(config: Mapping[str, Any]) -> bool:
    return config.get("model_type") == "eagle" and isinstance(config.get("model"), dict)


def _without_nesting(config: Mapping[str, Any]) -> Mapping[str, Any]:
    if not is_nested_eagle(config):
        return config
    inner = config["model"]
    kept = ("model_type", "architectures")  # vLLM takes the class from the inner ones
    outer = {key: value for key, value in config.items() if key != "model" and not (key in kept and key in inner)}
    return {**inner, **outer}
