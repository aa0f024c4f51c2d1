"""What a family's reader works on: tensors, settings, and the faults found so far."""

import re
from collections.abc import Iterable
from dataclasses import dataclass, field

from draftmill_worker.checkpoint.checkpoint import Checkpoint
from draftmill_worker.checkpoint.drafter import Module
from draftmill_worker.checkpoint.families.settings import Settings
from draftmill_worker.checkpoint.findings import Findings
from draftmill_worker.checkpoint.headers import TensorInfo

_LAYER = re.compile(r"(?:model\.)?layers\.(\d{1,6})\.|midlayer\.")
_PREDICTOR = re.compile(r"(?:model\.)?mtp(?:\.layers|_layers|_block)\.(\d{1,6})\.")
_PREDICTORS = ("num_nextn_predict_layers", "mtp_num_hidden_layers")


@dataclass
class Reading:
    checkpoint: Checkpoint
    settings: Settings
    speculators: bool
    """True for speculators' dialect."""
    findings: Findings
    warnings: list[str] = field(default_factory=list)

    @property
    def tensors(self) -> dict[str, TensorInfo]:
        return self.checkpoint.tensors

    def expect(self, name: str, shape: tuple[int, ...], required: bool = True) -> None:
        """Notes a tensor that is missing, or stored with another shape."""
        tensor = self.tensors.get(name)
        if tensor is None:
            if required:
                self.findings.add("missing-tensors", name, f"the family needs this tensor, of shape {list(shape)}")
        elif tensor.shape != shape:
            message = f"has shape {list(tensor.shape)}; the configuration gives {list(shape)}"
            self.findings.add("shape-mismatch", name, message, list(tensor.shape))

    def expect_rows(self, name: str, rows: int, columns: int, setting: str, required: bool = True) -> None:
        """`expect` for a table with one row per token, which tells padding from another vocabulary."""
        tensor = self.tensors.get(name)
        if tensor is None or len(tensor.shape) != 2 or tensor.shape[1] != columns or tensor.shape[0] == rows:
            self.expect(name, (rows, columns), required)
            return
        stored = tensor.shape[0]
        step = next((step for step in (512, 256, 128, 64) if -(-rows // step) * step == stored), None)
        if step is None:
            message = f"has {stored} rows, {setting} is {rows}: another vocabulary"
        else:
            message = (
                f"has {stored} rows, {setting} is {rows}: the rows are padded to a multiple of {step}. "
                f"Set {setting} to {stored}, or cut the table to {rows} rows"
            )
        self.findings.add("shape-mismatch", name, message, [stored, columns])

    def layer_prefixes(self) -> dict[int, str]:
        """Checkpoint prefix of each stored decoder layer by number. `midlayer` is layer 0."""
        found: dict[int, str] = {}
        for name in self.tensors:
            match = _LAYER.match(name)
            if match is None:
                continue
            number, prefix = int(match[1] or 0), match[0][:-1]
            if found.setdefault(number, prefix) != prefix:
                self.findings.add("shape-mismatch", prefix, f"layer {number} is stored as {found[number]} too")
        return dict(sorted(found.items()))

    def check_layers(self, promised: int) -> None:
        """Notes layers the configuration promises that are not stored, and stored ones it does not promise."""
        stored = self.layer_prefixes()
        for number in range(promised):
            if number not in stored:
                message = f"num_hidden_layers is {promised}; layer {number} is not in the weights"
                self.findings.add("promised-layers-missing", f"layer {number}", message)
        self._check_predictors(stored, promised)

    def decoder_layers(self, promised: int) -> dict[int, str]:
        """`layer_prefixes` of the layers that the engine builds; those past the last one predict further tokens."""
        return {number: prefix for number, prefix in self.layer_prefixes().items() if number < promised}

    def _check_predictors(self, stored: dict[int, str], promised: int) -> None:
        """Blocks that predict further tokens are stored as `mtp.layers.N`, or as layers past the last."""
        extra = [prefix for number, prefix in stored.items() if number >= promised]
        found = len(extra) or len({match[1] for match in map(_PREDICTOR.match, self.tensors) if match})
        counts = {key: self.settings.natural(key) or 0 for key in _PREDICTORS}
        for key, count in counts.items():
            if count > found:
                where = f"layer {promised + found}"
                message = f"{key} is {count}; the weights hold no mtp.layers.{found} and no {where}"
                self.findings.add("promised-layers-missing", where, message)
        for prefix in extra[max(counts.values()) :]:
            self.findings.add("shape-mismatch", prefix, f"is stored; num_hidden_layers is {promised}")

    def other_modules(self, known: Iterable[Module], runtime_root: str) -> list[Module]:
        """Modules with a stored weight matrix that are not in `known`. They are kept."""
        members = {member for module in known for member in module.members}
        prefixes = {prefix: number for number, prefix in self.layer_prefixes().items()}
        found = []
        for name, tensor in self.tensors.items():
            module = name.removesuffix(".weight")
            if module == name or module in members or len(tensor.shape) < 2:
                continue
            prefix = next((prefix for prefix in prefixes if module.startswith(prefix + ".")), None)
            layer = None if prefix is None else prefixes[prefix]
            path = module if prefix is None else _in_layer(prefix) + module[len(prefix) :]
            reason = keep_reason(module)
            if reason == UNKNOWN:
                self.warnings.append(f"{module}: no module of this family; it is kept")
            found.append(Module(module, (module,), (runtime_root + path,), layer, keep=reason))
        return found


def _in_layer(prefix: str) -> str:
    """`model.layers.3` is `model.layers.{layer}` at run time, `midlayer` is `layers.{layer}`."""
    return f"{'model.' if prefix.startswith('model.') else ''}layers.{{layer}}"


UNKNOWN = "not a module the engine is known to quantize"
_REASONS = (
    ("embed", "embedding"),
    ("norm", "norm"),
    ("markov", "Markov head: a table per token"),
    ("confidence_head", "confidence head"),
    ("selector", "selector"),
    ("codebook", "codebook: a table per token"),
    ("conv", "convolution"),
    ("lm_head", "lm_head"),
)


def keep_reason(name: str) -> str:
    """Why a tensor or module outside the engine's quantized linear layers is kept, by its name."""
    return next((reason for part, reason in _REASONS if part in name), UNKNOWN)
