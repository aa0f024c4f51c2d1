"""Builds drafters in the installed vLLM, without weights, and records what its modules ask the quantization config.

`python -m tests.unit.plan.engine_modules FOLDER` reads FOLDER/target and FOLDER/<method>/<drafter>/config.json and
writes FOLDER/asked.json: drafter, then run-time module, then whether the engine builds it quantized. A process of its
own, since vLLM keeps one distributed environment per process.
"""

import json
import os
import sys
from pathlib import Path
from typing import Any


def main(folder: Path) -> None:
    from vllm.config import VllmConfig, set_current_vllm_config
    from vllm.distributed import init_distributed_environment, initialize_model_parallel

    # The V1 runner refuses DSpark. Its classes can be built all the same, and nothing runs here.
    setattr(VllmConfig, "_get_v1_model_runner_unsupported_features", lambda self: [])  # noqa: B010
    started = False
    found: dict[str, dict[str, bool]] = {}
    for path in sorted(folder.glob("*/*/config.json")):
        config = _engine_config(folder / "target", path.parent)
        with set_current_vllm_config(config):
            if not started:
                init_distributed_environment(1, 0, f"file://{folder}/rendezvous", 0, "gloo")
                initialize_model_parallel(1, 1)
                started = True
            found[f"{path.parent.parent.name}/{path.parent.name}"] = _build(config)
    (folder / "asked.json").write_text(json.dumps(found))


def _engine_config(target: Path, drafter: Path) -> Any:
    from vllm.engine.arg_utils import EngineArgs

    method = drafter.parent.name
    speculative = {"model": str(drafter), "method": method, "num_speculative_tokens": 3}
    arguments = EngineArgs(
        model=str(target),
        dtype="bfloat16",
        max_model_len=64,
        enforce_eager=True,
        load_format="dummy",
        skip_tokenizer_init=True,
        speculative_config=speculative,
    )
    return arguments.create_engine_config()


def _build(config: Any) -> dict[str, bool]:
    import torch
    from vllm.config import set_current_vllm_config
    from vllm.config.utils import replace
    from vllm.model_executor.layers.linear import UnquantizedLinearMethod
    from vllm.model_executor.layers.quantization.modelopt import ModelOptQuantConfigBase
    from vllm.model_executor.model_loader.utils import initialize_model
    from vllm.utils.torch_utils import set_default_torch_dtype

    asked: dict[str, bool] = {}
    inner = ModelOptQuantConfigBase.get_quant_method

    def record(self: Any, layer: Any, prefix: str) -> Any:
        method = inner(self, layer, prefix)
        if method is None or type(layer).__name__.endswith("Attention"):
            return method
        asked[prefix] = not isinstance(method, UnquantizedLinearMethod)
        # The answer is what counts: a CPU has no kernel for some formats.
        return UnquantizedLinearMethod()

    ModelOptQuantConfigBase.get_quant_method = record
    speculative = config.speculative_config
    try:
        with set_default_torch_dtype(torch.bfloat16), torch.device("meta"):
            if speculative.method == "draft_model":
                # As v1/spec_decode/draft_model.py builds it.
                own = replace(config, quant_config=None, model_config=speculative.draft_model_config)
                with set_current_vllm_config(own):
                    initialize_model(vllm_config=own, prefix="draft_model")
            elif speculative.draft_model_config.architectures == ["Gemma4DSparkModel"]:
                _build_as_v2_loads_dspark(config)
            else:
                initialize_model(vllm_config=config, model_config=speculative.draft_model_config)
    finally:
        ModelOptQuantConfigBase.get_quant_method = inner
    return asked


def _build_as_v2_loads_dspark(config: Any) -> None:
    """As `load_dspark_model` (v1/worker/gpu/spec_decode/dspark/utils.py) does it: this class reads its config alone."""
    from vllm.config import set_current_vllm_config
    from vllm.config.utils import replace
    from vllm.model_executor.model_loader.utils import initialize_model
    from vllm.model_executor.models.utils import get_draft_quant_config

    own = replace(config)
    own.quant_config = get_draft_quant_config(config)
    with set_current_vllm_config(own):
        initialize_model(vllm_config=own, model_config=config.speculative_config.draft_model_config)


if __name__ == "__main__":
    os.environ |= {"HF_HUB_OFFLINE": "1", "VLLM_ENABLE_V1_MULTIPROCESSING": "0", "VLLM_LOGGING_LEVEL": "ERROR"}
    main(Path(sys.argv[1]))
