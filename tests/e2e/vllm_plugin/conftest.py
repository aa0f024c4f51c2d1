"""Engine boots and variants that the plugin's tests share."""

from pathlib import Path

import pytest

from draftmill.formats import Format
from draftmill.jobs import QuantizeOptions
from draftmill_worker.mill import Switches, mill
from tests.e2e.vllm_plugin.engines import Boots, Variant


@pytest.fixture(scope="session")
def boots(tmp_path_factory: pytest.TempPathFactory) -> Boots:
    pytest.importorskip("vllm")
    return Boots(tmp_path_factory.mktemp("boots"))


@pytest.fixture(scope="session")
def variant(models: Path, tmp_path_factory: pytest.TempPathFactory) -> Variant:
    """The folder of a shipped drafter in a format; None is bf16, as it is shipped."""
    folder = tmp_path_factory.mktemp("variants")

    def quantized(drafter: str, format: Format | None) -> Path:
        if format is None:
            return models / drafter
        out = folder / f"{drafter}-{format}"
        if not out.exists():
            switches = Switches(verify=False, fsync=False)
            mill(models / drafter, out, format, QuantizeOptions(), switches=switches, progress=lambda *_: None)
        return out

    return quantized
