"""What a capturing engine process is asked, and what it answers: files both."""

from pathlib import Path
from typing import Any

from draftmill._model import Model
from draftmill_worker.bench.prompts import Prompt
from draftmill_worker.bench.wire import Answer


class CaptureRequest(Model):
    target: Path
    engine_args: dict[str, Any]
    texts: tuple[Prompt, ...]
    chat_template: bool
    own_outputs: bool
    """Generate the target's answer to each text first, and read both."""
    max_tokens: int
    """Of an answer."""
    max_length: int
    """Tokens read of one text, its answer included; the rest is cut off."""
    max_rows: int
    """Texts are left out once so many rows are reached."""
    out: Path
    """The file that takes the rows."""


class CaptureResult(Answer):
    runner: str = ""
    """The engine's model runner, by module and class."""
    model: str = ""
    norm: str = ""
    """Module that was hooked."""
    rows: int = 0
    texts: int = 0
    plugins: tuple[str, ...] = ()
