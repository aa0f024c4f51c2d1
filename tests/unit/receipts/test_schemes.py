"""The schemes that receipts are held against are those that the installed vLLM resolves a format to."""

import json
import os
import subprocess
import sys

import pytest

from draftmill.formats import FORMATS
from draftmill_worker.receipts.expected import SCHEMES

PROBE = """
import json, sys
from types import SimpleNamespace
import torch
from vllm.model_executor.layers.quantization import modelopt
found = {}
for algorithm in json.load(sys.stdin):
    spec, _, _ = modelopt.resolve(algorithm, SimpleNamespace(group_size=16), "")
    keys = [None if key is None else str(key) for key in (spec.weight, spec.activation)]
    found[algorithm] = [modelopt.ModelOptLinearMethod.__name__, *keys]
from compressed_tensors.quantization import QuantizationArgs
from vllm.model_executor.layers.quantization.compressed_tensors import compressed_tensors as library
for bits in (4, 8):
    weights = QuantizationArgs(num_bits=bits, type="int", symmetric=True, strategy="group", group_size=128)
    config = library.CompressedTensorsConfig({}, [], "pack-quantized")
    scheme = config._get_scheme_from_parts(weights, None, None, "pack-quantized", "fc")
    key = f"{scheme.quant_type}, group {scheme.group_size}"
    found[f"pack-quantized {bits}"] = [library.CompressedTensorsLinearMethod.__name__, key, None]
found["sentinel"] = modelopt.FP8_SCALE_SENTINEL == torch.finfo(torch.float32).min
found["bespoke"] = sorted(modelopt.LINEAR_METHOD_BUILDERS)
print("\\n" + json.dumps(found))
"""


@pytest.mark.vllm
def test_vllm_resolves_each_format_as_receipts_expect() -> None:
    environment = os.environ | {"VLLM_LOGGING_LEVEL": "ERROR", "OMP_NUM_THREADS": "1"}
    modelopt = [FORMATS[format].quant_algo for format in SCHEMES if FORMATS[format].algo_key == "quant_algo"]
    algorithms = json.dumps(modelopt)
    command = [sys.executable, "-c", PROBE]
    done = subprocess.run(
        command, input=algorithms, env=environment, capture_output=True, text=True, timeout=280, check=False
    )
    assert done.returncode == 0, done.stderr[-4000:]
    found = json.loads(done.stdout.strip().rpartition("\n")[2])
    assert (found.pop("sentinel"), found.pop("bespoke")) == (True, [])
    assert SCHEMES.keys() == FORMATS.keys()
    for format, scheme in SCHEMES.items():
        spec = FORMATS[format]
        integers = spec.algo_key == "format"
        method, weight, activation = found[f"{spec.quant_algo} {spec.bits}" if integers else spec.quant_algo]
        assert method in scheme.methods
        assert (weight, activation) == (scheme.weight, scheme.activation)
