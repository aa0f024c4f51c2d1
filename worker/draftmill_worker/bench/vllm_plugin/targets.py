"""What a patch replaces or relies on, as it was when the patch was written."""

import hashlib
import inspect
from collections.abc import Callable, Collection
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from typing import Any

VLLM = "0.32."
"""The release whose sources the patches were written for."""


class PluginError(RuntimeError):
    """A feature was asked for that cannot be applied as written."""


def on_cpu(feature: str) -> None:
    """PluginError unless this is the vLLM release that was patched, on a CPU."""
    import vllm
    from vllm.platforms import current_platform

    if not vllm.__version__.startswith(VLLM):
        raise PluginError(f"{feature}: written for vLLM {VLLM}x, this is {vllm.__version__}")
    if not current_platform.is_cpu():
        raise PluginError(f"{feature}: for the CPU platform only, this is {current_platform.device_type}")


def expect(feature: str, path: str, *digests: str) -> Callable[..., Any]:
    """The function or class at `module:name`; PluginError unless its source has one of these digests."""
    module, _, name = path.partition(":")
    try:
        found: Any = import_module(module)
        for part in name.split("."):
            found = getattr(found, part)
        seen = source_digest(found)
    except (ImportError, AttributeError, OSError, TypeError) as error:
        raise PluginError(f"{feature}: vLLM's {path} is not there: {error}") from error
    if seen not in digests:
        wanted = " or ".join(digests)
        raise PluginError(f"{feature}: vLLM's {path} is not as in {VLLM}x: source {seen}, expected {wanted}")
    return found  # type: ignore[no-any-return]


def expect_file(feature: str, module: str, digests: Collection[str]) -> None:
    """PluginError unless the file of a module, which need not be imported, has one of these digests."""
    found = find_spec(module)
    if found is None or found.origin is None:
        raise PluginError(f"{feature}: vLLM's {module} is not there")
    seen = hashlib.sha256(Path(found.origin).read_bytes()).hexdigest()[:16]
    if seen not in digests:
        raise PluginError(f"{feature}: vLLM's {module} is not one that was written for: {seen}, of {sorted(digests)}")


def source_digest(found: Any) -> str:
    return hashlib.sha256(inspect.getsource(found).encode()).hexdigest()[:16]
