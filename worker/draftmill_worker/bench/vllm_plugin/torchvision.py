"""torchvision's names where it is not installed.

vLLM imports Qwen3-VL's image code for every Qwen3.5 model, text-only ones too, and transformers imports torchvision at
the top of it. As published, torchvision breaks transformers beside a CPU build of torch, so that it stays out. Nothing
of it runs for text: every name here is empty, and an image would fail on it by name.
"""

import sys
from enum import Enum
from importlib.machinery import ModuleSpec
from importlib.util import find_spec
from types import ModuleType
from typing import Any


class InterpolationMode(Enum):
    NEAREST = "nearest"
    NEAREST_EXACT = "nearest-exact"
    BILINEAR = "bilinear"
    BICUBIC = "bicubic"
    BOX = "box"
    HAMMING = "hamming"
    LANCZOS = "lanczos"


_MODULES: dict[str, dict[str, Any]] = {
    # transformers asks for the version, and takes a package without one for a folder that happens to be there.
    "torchvision": {"__version__": "0.0.0"},
    "torchvision.io": {"ImageReadMode": None, "decode_image": None},
    "torchvision.transforms": {"InterpolationMode": InterpolationMode},
    "torchvision.transforms.functional": {"pil_to_tensor": None},
    "torchvision.transforms.v2": {},
    "torchvision.transforms.v2.functional": {},
}


def apply() -> tuple[str, ...]:
    """Nothing where torchvision is installed."""
    if find_spec("torchvision") is not None:
        return ()
    for name, names in _MODULES.items():
        module = ModuleType(name, __doc__)
        module.__spec__ = ModuleSpec(name, None, is_package=True)
        module.__path__ = []
        vars(module).update(names)
        sys.modules[name] = module
        parent, _, child = name.rpartition(".")
        if parent:
            setattr(sys.modules[parent], child, module)
    return ("names",)
