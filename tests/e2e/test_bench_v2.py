"""The same engine process on vLLM's model runner V2, its Triton kernels interpreted: what a GPU runs dspark on."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from draftmill.benchmarks import PromptSet
from draftmill_worker.bench import prompts
from draftmill_worker.bench.engine_env import engine_environment
from draftmill_worker.bench.wire import EngineRequest, EngineResult
from tests.e2e.vllm_plugin.triton_cpu import environment

pytestmark = [pytest.mark.vllm, pytest.mark.slow, pytest.mark.timeout(900)]
ROOT = Path(__file__).parents[2]


@pytest.mark.parametrize(
    ("family", "tokens", "proposer"), [("dspark", 4, "DSparkSpeculator"), ("eagle3", 3, "EagleSpeculator")]
)
def test_what_the_extension_sees(models: Path, tmp_path: Path, family: str, tokens: int, proposer: str) -> None:
    pytest.importorskip("vllm")
    request = EngineRequest(
        target=models / "target",
        engine_args={"dtype": "bfloat16", "enforce_eager": True, "max_num_seqs": 1, "max_model_len": 1024},
        speculative_config={"method": family, "model": str(models / family), "num_speculative_tokens": tokens},
        prompts=prompts.load(PromptSet(limit=2), None),
        warm_up=prompts.Prompt(id="warm-up", turns=("Hello",)),
        chat_template=True,
        max_tokens=16,
        temperature=0.0,
        seed=0,
        concurrency=1,
    )
    (tmp_path / "request.json").write_text(request.model_dump_json())
    (tmp_path / "tmp").mkdir()
    ours = environment(tmp_path / "triton")
    ours |= {"DRAFTMILL_VLLM_PLUGIN": "rmsnorm2d", "VLLM_ENABLE_V1_MULTIPROCESSING": "0"}
    reading, writing = os.pipe()
    done = subprocess.run(
        [
            *(sys.executable, "-m", "draftmill_worker.bench.engine_main"),
            *(str(tmp_path / "request.json"), str(tmp_path / "result.json"), str(os.getpid()), str(writing)),
        ],
        pass_fds=(writing,),
        env=engine_environment(tmp_path, ours, {}, cpu=True),
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=800,
        check=False,
    )
    os.close(reading)
    os.close(writing)
    assert done.returncode == 0, done.stderr[-4000:]
    result = EngineResult.model_validate_json((tmp_path / "result.json").read_bytes())
    assert result.counts is not None
    assert result.counts.drafts > 0
    view = result.view
    assert view is not None
    assert (view.runner, view.proposer) == ("v2", proposer)
    assert view.modules
    assert view.head is not None
    assert view.target_digest_before == view.target_digest_after is not None
