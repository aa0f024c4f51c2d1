"""Random source checkpoints with each kind of file a source can have beside its weights."""

import json
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from tokenizers import Tokenizer
from tokenizers.models import WordLevel
from tokenizers.pre_tokenizers import Whitespace
from torch import Tensor

from draftmill.plans import Family
from tests.fixtures.synthetic import Layout, build
from tests.unit.checkpoint import layouts
from tests.unit.checkpoint.layouts import speculators

FAMILIES = (Family.EAGLE3, Family.DFLASH, Family.DSPARK, Family.DRAFT_MODEL)
BLOCK = 4
# Siblings differ in size, so that a shared scale is not what each has alone.
UNEVEN = {"*v_proj*": 0.2, "*up_proj*": 3.0}


def make_source(
    folder: Path, family: str, layout: Layout | None = None, extra: Mapping[str, Tensor] | None = None
) -> Path:
    """`family`: its name, or another layout's in `synthetic.LAYOUTS`."""
    layout = replace(layout or Layout(), scale=UNEVEN)
    config: dict[str, Any] = {
        "torch_dtype": layout.dtype if layout.dtype != "mixed" else "float32",
        "auto_map": {"AutoModel": "modeling_tiny.Tiny", "AutoTokenizer": [None, "modeling_tiny.Tokens"]},
    }
    build(folder, str(family), layout, config=config, extra=extra)
    _write_sidecars(folder)
    return folder


def edit_config(folder: Path, **changes: Any) -> None:
    """Sets keys of config.json; `...` deletes one."""
    path = folder / "config.json"
    config = json.loads(path.read_text()) | changes
    path.write_text(json.dumps({key: value for key, value in config.items() if value is not ...}))


def to_speculators(folder: Path, kind: str) -> None:
    """Rewrites config.json in speculators' dialect, with what that library adds."""
    path = folder / "config.json"
    config = speculators(layouts.Layout(json.loads(path.read_text())), kind).config
    proposal = {"proposal_type": "greedy", "speculative_tokens": 3}
    config["speculators_config"] = {"proposal_methods": [proposal], "verifier": {"name_or_path": "target"}}
    path.write_text(json.dumps(config))


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
