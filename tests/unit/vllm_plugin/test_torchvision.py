"""Text models whose module imports torchvision load without it."""

import pytest

pytestmark = [pytest.mark.vllm, pytest.mark.usefixtures("applied")]


def test_qwen3_5_and_its_block_are_imported() -> None:
    from vllm.model_executor.models.qwen3_5_mtp import Qwen3_5MTP

    assert Qwen3_5MTP.packed_modules_mapping["qkv_proj"] == ["q_proj", "k_proj", "v_proj"]


def test_names_are_those_of_the_engines_mappers() -> None:
    """What this project says of the targets' renames is what their classes say."""
    from vllm.model_executor.models import qwen3_5

    from draftmill_worker.checkpoint.families.mtp_dialects import DIALECTS
    from draftmill_worker.verify.embedded import renames

    dialect = DIALECTS[0]
    for architecture in dialect.engine_classes:
        mapper = getattr(qwen3_5, architecture).hf_to_vllm_mapper.get_rename_mapper()
        theirs = dict(mapper.orig_to_new_prefix)
        assert dict(dialect.renames_of(architecture)) == theirs, architecture
        assert renames({"architectures": [architecture]}) == theirs, architecture
