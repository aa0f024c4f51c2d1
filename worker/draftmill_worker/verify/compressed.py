"""What vLLM 0.32 makes of an `ignore` list of compressed-tensors, apart from what writes it.

Read in quantization/utils/config_utils.py (`find_matching_patterns`, `is_equal_or_regex_match`) and in
compressed_tensors/utils.py (`should_ignore_layer`).
"""

import re
from collections.abc import Mapping, Sequence

METHOD = "compressed-tensors"


def excluded(name: str, ignore: Sequence[str], packed: Mapping[str, Sequence[str]]) -> bool:
    """Whether vLLM builds `name` unquantized. ValueError when only some shards of a fused layer are listed."""
    if _listed(name, ignore):
        return True
    last = name.rpartition(".")[2]
    if last not in packed:
        return False
    parts = {_listed(name.replace(last, part), ignore) for part in packed[last]}
    if len(parts) > 1:
        raise ValueError(f"some but not all parts of {name} are excluded")
    return parts.pop()


def _listed(name: str, ignore: Sequence[str]) -> bool:
    return any(
        re.match(pattern[3:], name) is not None if pattern.startswith("re:") else pattern == name for pattern in ignore
    )
