"""Builds targets and their MTP blocks in the installed vLLM, without weights, under the one configuration they share.

`python -m tests.unit.plan.mtp_modules FOLDER` reads FOLDER/<name>/config.json and writes FOLDER/asked.json: name, then
`target` and `block`, then run-time module, then whether the engine builds it quantized. See engine_modules.
"""

import json
import os
import sys
from pathlib import Path
from typing import Any


def main(folder: Path) -> None:
    from vllm.config import set_current_vllm_config
    from vllm.distributed import init_distributed_environment, initialize_model_parallel

    started = False
    found: dict[str, dict[str, dict[str, bool]]] = {}
    for path in sorted(folder.glob("*/config.json")):
        config = _engine_config(path.parent)
        with set_current_vllm_config(config):
            if not started:
                init_distributed_environment(1, 0, f"file://{folder}/rendezvous", 0, "gloo")
                initialize_model_parallel(1, 1)
                started = True
            # The target first: its class renames the list that both read.
            found[path.parent.name] = {
                "target": _build(config, config.model_config),
                "block": _build(config, config.speculative_config.draft_model_config),
            }
    (folder / "asked.json").write_text(json.dumps(found))


def _engine_config(model: Path) -> Any:
    from vllm.engine.arg_utils import EngineArgs

    arguments = EngineArgs(
        model=str(model),
        dtype="bfloat16",
        max_model_len=64,
        enforce_eager=True,
        load_format="dummy",
        skip_tokenizer_init=True,
        speculative_config={"method": "mtp", "num_speculative_tokens": 1},
    )
    return arguments.create_engine_config()


def _build(config: Any, model: Any) -> dict[str, bool]:
    import torch
    from vllm.model_executor.layers.linear import UnquantizedLinearMethod
    from vllm.model_executor.layers.quantization.modelopt import ModelOptQuantConfigBase
    from vllm.model_executor.model_loader.utils import initialize_model
    from vllm.utils.torch_utils import set_default_torch_dtype

    asked: dict[str, bool] = {}
    inner = ModelOptQuantConfigBase.get_quant_method

    def record(self: Any, layer: Any, prefix: str) -> Any:
        if type(layer).__name__.endswith("Attention"):
            return inner(self, layer, prefix)
        if type(layer).__name__ == "RoutedExperts":
            asked[prefix] = not self.is_layer_excluded(prefix)
            return None
        method = inner(self, layer, prefix)
        if method is not None:
            asked[prefix] = not isinstance(method, UnquantizedLinearMethod)
            method = UnquantizedLinearMethod()
        return method

    ModelOptQuantConfigBase.get_quant_method = record
    try:
        with set_default_torch_dtype(torch.bfloat16), torch.device("meta"):
            initialize_model(vllm_config=config, model_config=model)
    finally:
        ModelOptQuantConfigBase.get_quant_method = inner
    return asked


if __name__ == "__main__":
    os.environ |= {"HF_HUB_OFFLINE": "1", "VLLM_ENABLE_V1_MULTIPROCESSING": "0", "VLLM_LOGGING_LEVEL": "ERROR"}
    os.environ["DRAFTMILL_VLLM_PLUGIN"] = "torchvision"
    main(Path(sys.argv[1]))
