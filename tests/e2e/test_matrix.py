"""Every family in every format through the whole service, from the Hub stand-in to the downloaded variant."""

from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

from draftmill import Client, Format, JobSpec, JobState, QuantizeOptions, RepoSource
from draftmill.plans import Family, Fate
from draftmill.reports import CheckStatus
from tests.e2e.conftest import World
from tests.e2e.embedded import Up
from tests.fixtures.mtp import build as build_target
from tests.unit.quantize.modelopt_reference import modelopt_tensors

# The trained drafters that ship.
FAMILIES = (Family.DRAFT_MODEL, Family.EAGLE3, Family.DFLASH, Family.DSPARK)
WIDE = (Format.MXFP8, Format.FP8_PB_WO, Format.INT4_G128, Format.INT8_G128)
CASES = [
    # Their families differ in nothing that the others' do not show: one of them is enough for every day.
    pytest.param(family, format, marks=[pytest.mark.slow] if format in WIDE and family is not Family.EAGLE3 else [])
    for family in FAMILIES
    for format in Format
]
MAY_BE_SKIPPED = {"tokenizer-encodes", "draft-vocabulary-maps", "tied-head", "index-agrees", "auto-map-files"}
"""They ask about what not every drafter has."""


@pytest.fixture(scope="session")
def client(up: Up, world: World, models: Path) -> Iterator[Client]:
    for family in FAMILIES:
        world.hub.add(f"trained/{family}", models / family)
    with up.client() as client:
        yield client


@pytest.mark.parametrize(("family", "format"), CASES)
def test_from_hub_to_download(client: Client, models: Path, tmp_path: Path, family: Family, format: Format) -> None:
    job = client.wait(client.submit(JobSpec(source=RepoSource(repo=f"trained/{family}"), format=format)))
    assert job.state is JobState.SUCCEEDED, job.problem
    report = client.verify(job)
    assert report.passed
    assert not [check.id for check in report.checks if check.status is CheckStatus.WARN]
    assert {check.id for check in report.checks if check.status is CheckStatus.SKIP} <= MAY_BE_SKIPPED
    files = client.download(job, tmp_path / "variant")
    assert files
    assert load_file(tmp_path / "variant" / "model.safetensors").keys() == {
        output.name for tensor in client.plan(job).tensors for output in tensor.outputs
    }


@pytest.mark.parametrize(("family", "format"), CASES)
def test_reference_scales_are_modelopts_bytes(
    client: Client, models: Path, tmp_path: Path, family: Family, format: Format
) -> None:
    options = QuantizeOptions(scales="reference")
    spec = JobSpec(source=RepoSource(repo=f"trained/{family}"), format=format, quantize=options)
    job = client.wait(client.submit(spec))
    assert job.state is JobState.SUCCEEDED, job.problem
    client.download(job, tmp_path / "variant")
    source = load_file(models / family / "model.safetensors")
    variant = load_file(tmp_path / "variant" / "model.safetensors")
    names = [tensor.name for tensor in client.plan(job).tensors if tensor.fate is Fate.QUANTIZED]
    assert names
    weights = [source[name].to(torch.bfloat16) for name in names]
    for name, expected in zip(names, modelopt_tensors(weights, format, fuse=False), strict=True):
        for suffix, tensor in expected.items():
            stored = variant[f"{name.removesuffix('weight')}{suffix}"]
            assert stored.dtype == tensor.dtype, (name, suffix)
            assert stored.shape == tensor.shape, (name, suffix)
            assert torch.equal(stored.reshape(-1).view(torch.uint8), tensor.reshape(-1).view(torch.uint8)), (
                name,
                suffix,
            )


def test_c17_c39_a_target_with_its_block(client: Client, up: Up, world: World, tmp_path: Path) -> None:
    """Two variants share the target's files with their source; each job's links move them under the other's eyes."""
    source = build_target(world.folder / "mtp", shards=2, apart=True)
    world.hub.add("org/mtp", source)
    specs = [JobSpec(source=RepoSource(repo="org/mtp"), format=format) for format in (Format.FP8, Format.NVFP4)]
    jobs = [client.wait(job) for job in [client.submit(spec) for spec in specs]]
    for job in jobs:
        assert job.state is JobState.SUCCEEDED, job.problem
        assert job.resolved_spec is not None
        plan = client.plan(job)
        assert plan.family is Family.MTP
        variant = up.data_dir / "variants" / job.resolved_spec.variant
        (pulled,) = (up.data_dir / "sources" / "org--mtp").glob("*/config.json")
        for file in plan.untouched:
            assert (variant / file.file).samefile(pulled.parent / file.file)
        folder = tmp_path / job.id
        client.download(job, folder)
        for file in plan.untouched:
            assert (folder / file.file).read_bytes() == (source / file.file).read_bytes()
        block = load_file(folder / "model-00003.safetensors")
        assert block["mtp.layers.0.self_attn.q_proj.weight"].dtype in (torch.float8_e4m3fn, torch.uint8)
