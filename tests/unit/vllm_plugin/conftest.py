"""One vLLM per test process, with the plugin's features applied in it."""

import sys
import warnings
from collections.abc import Iterator
from pathlib import Path

import pytest

from draftmill_worker.bench import vllm_plugin


@pytest.fixture(scope="session")
def applied(tmp_path_factory: pytest.TempPathFactory) -> Iterator[list[str]]:
    """What the plugin applied, asked for everything, in a process that is its own group of one rank."""
    pytest.importorskip("vllm")
    from vllm.config import VllmConfig, set_current_vllm_config
    from vllm.distributed import cleanup_dist_env_and_memory, init_distributed_environment, initialize_model_parallel
    from vllm.platforms import current_platform

    store: Path = tmp_path_factory.mktemp("group") / "store"
    with set_current_vllm_config(VllmConfig()):
        # Only here: later tests start processes of their own, which inherit the environment.
        with pytest.MonkeyPatch.context() as asked:
            asked.setenv(vllm_plugin.VARIABLE, ",".join(vllm_plugin.FEATURES))
            vllm_plugin.register()
        with warnings.catch_warnings(), pytest.MonkeyPatch.context() as hidden:
            # It looks into every module, also for what torch has deprecated, and stumbles over llvmlite's attributes.
            warnings.simplefilter("ignore", FutureWarning)
            for name in [name for name in sys.modules if name.partition(".")[0] == "llvmlite"]:
                hidden.delitem(sys.modules, name)
            current_platform.register_triton_kernel_overrides()
        init_distributed_environment(1, 0, f"file://{store}", 0, "gloo")
        initialize_model_parallel(1)
        yield vllm_plugin.APPLIED
        cleanup_dist_env_and_memory()
