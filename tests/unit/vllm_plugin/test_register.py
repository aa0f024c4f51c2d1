"""What the plugin does when asked for nothing, for something, twice, or for what does not exist."""

from importlib.metadata import entry_points

import pytest

from draftmill_worker.bench import vllm_plugin
from draftmill_worker.bench.vllm_plugin.targets import PluginError, expect


def test_vllm_finds_the_plugin_by_its_entry_point() -> None:
    (found,) = entry_points(group="vllm.general_plugins", name="draftmill")
    assert found.load() is vllm_plugin.register


@pytest.mark.parametrize("value", [None, "", " , "])
def test_nothing_is_done_unless_asked(monkeypatch: pytest.MonkeyPatch, value: str | None) -> None:
    monkeypatch.delenv(vllm_plugin.VARIABLE, raising=False)
    if value is not None:
        monkeypatch.setenv(vllm_plugin.VARIABLE, value)
    before = list(vllm_plugin.APPLIED)
    vllm_plugin.register()
    assert vllm_plugin.features() == ()
    assert before == vllm_plugin.APPLIED


def test_features_come_in_one_order_whatever_was_typed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(vllm_plugin.VARIABLE, "temperature, emulation ,")
    assert vllm_plugin.features() == ("emulation", "temperature")


def test_unknown_features_are_refused_by_name(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(vllm_plugin.VARIABLE, "emulation,emulate,dsparc")
    with pytest.raises(PluginError, match=r"no such feature: dsparc, emulate"):
        vllm_plugin.register()


@pytest.mark.vllm
def test_everything_is_applied_once(applied: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    assert {patch.partition(".")[0] for patch in applied} == set(vllm_plugin.FEATURES)
    before = list(applied)
    monkeypatch.setenv(vllm_plugin.VARIABLE, ",".join(vllm_plugin.FEATURES))
    vllm_plugin.register()
    assert before == applied


@pytest.mark.vllm
@pytest.mark.usefixtures("applied")
@pytest.mark.parametrize("feature", [name for name in vllm_plugin.FEATURES if name != "torchvision"])
def test_a_target_that_is_not_the_one_written_for_is_named(feature: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Every target is patched by now, which is as good as another release of vLLM."""
    monkeypatch.setattr(vllm_plugin, "APPLIED", [])
    monkeypatch.setenv(vllm_plugin.VARIABLE, feature)
    with pytest.raises(PluginError, match=rf"^{feature}: .*vllm\."):
        vllm_plugin.register()
    assert vllm_plugin.APPLIED == []


@pytest.mark.vllm
@pytest.mark.usefixtures("applied")
@pytest.mark.parametrize("path", ["vllm.nowhere:rms_norm", "vllm._custom_ops:no_such_norm"])
def test_a_missing_target_is_named(path: str) -> None:
    with pytest.raises(PluginError, match=f"rmsnorm2d: vLLM's {path} is not there"):
        expect("rmsnorm2d", path, "0123456789abcdef")


@pytest.mark.vllm
@pytest.mark.usefixtures("applied")
def test_another_release_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    import vllm

    monkeypatch.setattr(vllm, "__version__", "0.33.0")
    monkeypatch.setattr(vllm_plugin, "APPLIED", [])
    monkeypatch.setenv(vllm_plugin.VARIABLE, "rmsnorm2d")
    with pytest.raises(PluginError, match=r"written for vLLM 0\.32\.x, this is 0\.33\.0"):
        vllm_plugin.register()
