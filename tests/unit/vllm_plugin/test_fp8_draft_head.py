"""The FP8 draft head: what is refused and why, and its numbers against plain torch. Boots of it are end to end."""

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from draftmill_worker.bench import vllm_plugin
from draftmill_worker.bench.vllm_plugin import PluginError, fp8_draft_head
from draftmill_worker.receipts.ruleset.draft_head import CONDITIONS, METHOD, SPEC

pytestmark = [pytest.mark.vllm, pytest.mark.usefixtures("applied")]

VOCAB, HIDDEN = 130, 48


@pytest.fixture
def emulation(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(vllm_plugin.VARIABLE, "emulation")


def _config() -> SimpleNamespace:
    """The parts of an engine's configuration that are looked at, as vLLM has them for an assistant."""
    draft = SimpleNamespace(
        runner_type="draft",
        architectures=["Gemma4MTPModel"],
        quantization=None,
        dtype=torch.bfloat16,
        head_dtype=torch.bfloat16,
        hf_config=SimpleNamespace(tie_word_embeddings=True, use_ordered_embeddings=False),
    )
    one = SimpleNamespace(tensor_parallel_size=1)
    speculative = SimpleNamespace(draft_model_config=draft, draft_parallel_config=one)
    return SimpleNamespace(speculative_config=speculative, parallel_config=SimpleNamespace(tensor_parallel_size=1))


def _draft(**changes: Any) -> Callable[[SimpleNamespace], None]:
    return lambda config: vars(config.speculative_config.draft_model_config).update(changes)


def _hf(**changes: Any) -> Callable[[SimpleNamespace], None]:
    return lambda config: vars(config.speculative_config.draft_model_config.hf_config).update(changes)


def _ranks(name: str) -> Callable[[SimpleNamespace], None]:
    def change(config: SimpleNamespace) -> None:
        owner = config if name == "parallel_config" else config.speculative_config
        setattr(owner, name, SimpleNamespace(tensor_parallel_size=2))

    return change


REFUSED: dict[str, tuple[Callable[[SimpleNamespace], None], str]] = {
    "role": (_draft(runner_type="generate"), "role: there is no drafter"),
    "another drafter": (_draft(architectures=["LlamaForCausalLMEagle3"]), "drafter: .* LlamaForCausalLMEagle3, not a"),
    "quantized": (_draft(quantization="modelopt"), "quantization: the drafter is quantized otherwise, by modelopt"),
    "online on a CPU": (_draft(quantization="fp8_per_tensor"), "quantization: .* by fp8_per_tensor"),
    "untied": (_hf(tie_word_embeddings=False), "tied: its head is not tied"),
    "ordered": (_hf(use_ordered_embeddings=True), "ordered: its ordered embeddings"),
    "a head of another dtype": (_draft(head_dtype=torch.float32), "head_dtype: its head is torch.float32, the model"),
    "two ranks": (_ranks("parallel_config"), "tensor_parallel: tensor parallel size must be 1, not 2"),
    "two ranks of the drafter": (_ranks("draft_parallel_config"), "tensor_parallel: .* not 2"),
}


@pytest.mark.usefixtures("emulation")
def test_an_assistant_is_eligible() -> None:
    fp8_draft_head.require(fp8_draft_head.configured("fp8_per_tensor", _config()))


@pytest.mark.usefixtures("emulation")
@pytest.mark.parametrize("name", REFUSED)
def test_a_request_that_is_not_eligible_is_refused_with_its_reason(name: str) -> None:
    change, reason = REFUSED[name]
    config = _config()
    change(config)
    with pytest.raises(PluginError, match=f"^DRAFTMILL_FP8_DRAFT_HEAD cannot be met: {reason}[^;]*$"):
        fp8_draft_head.require(fp8_draft_head.configured("fp8_per_tensor", config))


@pytest.mark.usefixtures("emulation")
@pytest.mark.parametrize(
    ("asked", "given"),
    [
        ("1", "None"),
        ("fp8", "None"),
        ("fp8_per_tensor_static", "None"),
        ("fp8_per_block", "fp8_per_block_static"),
        ("fp8_per_channel", "fp8_per_channel_static"),
        ("mxfp8", "None"),
        ("int8_per_channel_weight_only", "None"),
    ],
)
def test_no_other_spec_is_taken(asked: str, given: str) -> None:
    with pytest.raises(PluginError, match=rf"online_spec: '{asked}' must be fp8_per_tensor, .*; it gives {given}$"):
        fp8_draft_head.require(fp8_draft_head.configured(asked, _config()))


@pytest.mark.usefixtures("emulation")
def test_every_reason_is_named_at_once() -> None:
    config = _config()
    _hf(tie_word_embeddings=False, use_ordered_embeddings=True)(config)
    with pytest.raises(PluginError, match=r"online_spec: .*; tied: .*; ordered: "):
        fp8_draft_head.require(fp8_draft_head.configured("1", config))


@pytest.mark.usefixtures("emulation")
def test_an_engine_without_a_drafter_is_refused() -> None:
    config = SimpleNamespace(speculative_config=None)
    with pytest.raises(PluginError, match="role: there is no drafter"):
        fp8_draft_head.require(fp8_draft_head.configured("fp8_per_tensor", config))


def test_a_cpu_needs_the_emulated_kernel(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(vllm_plugin.VARIABLE, "temperature")
    with pytest.raises(PluginError, match="kernel: a CPU's kernel comes with the feature emulation"):
        fp8_draft_head.require(fp8_draft_head.configured("fp8_per_tensor", _config()))


def _tied(prefix: str = "lm_head") -> Any:
    """An assistant's head and embedding, of vLLM's own classes, with random weights."""
    from vllm.model_executor.layers.vocab_parallel_embedding import ParallelLMHead, VocabParallelEmbedding

    embedding = VocabParallelEmbedding(VOCAB, HIDDEN, params_dtype=torch.bfloat16)
    head = ParallelLMHead(VOCAB, HIDDEN, params_dtype=torch.bfloat16, prefix=prefix).tie_weights(embedding)
    generator = torch.Generator().manual_seed(1)
    embedding.weight.data.copy_(torch.randn(embedding.weight.shape, generator=generator))
    return SimpleNamespace(lm_head=head, model=SimpleNamespace(embed_tokens=embedding), masked_embedding=None)


def test_what_vllm_builds_is_eligible() -> None:
    fp8_draft_head.require(fp8_draft_head.built(_tied(), torch.bfloat16))


def _embedding_as_head(model: Any) -> None:
    model.lm_head = model.model.embed_tokens
    model.lm_head.prefix = "lm_head"


def _untie(model: Any) -> None:
    weight = model.lm_head.weight
    model.lm_head.weight = torch.nn.Parameter(weight.data.clone(), requires_grad=False)


BUILT_OTHERWISE: dict[str, tuple[Callable[[Any], None], str]] = {
    "class": (_embedding_as_head, "class: its head is VocabParallelEmbedding, not ParallelLMHead"),
    "prefix": (lambda model: setattr(model.lm_head, "prefix", "lm_head.0"), "prefix: its head's prefix 'lm_head.0'"),
    "method": (lambda model: setattr(model.lm_head, "quant_method", object()), "method: its head has object already"),
    "tied": (_untie, "tied: its head does not hold its embedding's weight"),
    "ordered": (lambda model: setattr(model, "masked_embedding", object()), "ordered: its ordered embeddings"),
    "tensor_parallel": (lambda model: setattr(model.lm_head, "tp_size", 2), "tensor_parallel: .* not 2"),
}


@pytest.mark.parametrize("name", BUILT_OTHERWISE)
def test_a_head_that_is_built_otherwise_is_refused_with_its_reason(name: str) -> None:
    change, reason = BUILT_OTHERWISE[name]
    model = _tied()
    change(model)
    with pytest.raises(PluginError, match=f"^DRAFTMILL_FP8_DRAFT_HEAD cannot be met: {reason}[^;]*$"):
        fp8_draft_head.require(fp8_draft_head.built(model, torch.bfloat16))


def test_a_head_of_another_dtype_than_the_models_is_refused() -> None:
    with pytest.raises(PluginError, match=r"head_dtype: its head is torch\.bfloat16, the model torch\.float16"):
        fp8_draft_head.require(fp8_draft_head.built(_tied(), torch.float16))


@pytest.mark.usefixtures("emulation")
def test_the_rules_of_receipts_know_every_condition() -> None:
    configured = fp8_draft_head.configured("fp8_per_tensor", _config())
    assert configured.keys() | fp8_draft_head.built(_tied(), torch.bfloat16).keys() == CONDITIONS
    assert fp8_draft_head.SPEC == SPEC


@pytest.fixture
def model_config(monkeypatch: pytest.MonkeyPatch) -> None:
    from vllm.config import get_current_vllm_config

    monkeypatch.setattr(get_current_vllm_config(), "model_config", SimpleNamespace(dtype=torch.bfloat16))


@pytest.fixture
def quantized(model_config: None) -> Any:
    return _quantized()


def _quantized() -> Any:
    """The same, with the head quantized as after loading."""
    from draftmill_worker.bench.vllm_plugin.fp8_draft_head_model import Fp8DraftHeadMethod

    model = _tied()
    model.lm_head.quant_method = Fp8DraftHeadMethod(model.lm_head, torch.bfloat16, {})
    for _ in range(2):
        # A second time changes nothing.
        model.lm_head.quant_method.process_weights_after_loading(model.lm_head)
    return model


def test_the_head_gets_a_weight_of_its_own(quantized: Any) -> None:
    head, embedding = quantized.lm_head, quantized.model.embed_tokens
    loaded = _tied().model.embed_tokens.weight
    assert torch.equal(embedding.weight, loaded)
    assert embedding.weight.dtype == torch.bfloat16
    assert head.weight.dtype == torch.float8_e4m3fn
    assert head.weight.shape == (HIDDEN, 192), "hidden size by the padded vocabulary"
    assert head.weight.untyped_storage().data_ptr() != embedding.weight.untyped_storage().data_ptr()
    assert type(head.quant_method).__module__ + "." + type(head.quant_method).__qualname__ == METHOD
    assert str(head.quant_method.spec) == SPEC


def _rebinding(layer: torch.nn.Module, name: str, new: torch.Tensor) -> None:
    """What vLLM 0.33 does where 0.32 registers a new parameter."""
    if (old := getattr(layer, name, None)) is None:
        layer.register_parameter(name, torch.nn.Parameter(new, requires_grad=False))
    else:
        old.data = new


@pytest.mark.usefixtures("model_config")
def test_the_embedding_keeps_its_weight_where_parameters_are_rebound(monkeypatch: pytest.MonkeyPatch) -> None:
    from draftmill_worker.bench.vllm_plugin import fp8_draft_head_model

    monkeypatch.setattr(fp8_draft_head_model, "replace_parameter", _rebinding)
    model = _quantized()
    assert model.lm_head.weight.dtype == torch.float8_e4m3fn
    assert torch.equal(model.model.embed_tokens.weight, _tied().model.embed_tokens.weight)


def test_the_weight_is_the_nearest_fp8_under_one_scale(quantized: Any) -> None:
    head, loaded = quantized.lm_head, quantized.model.embed_tokens.weight.float()
    assert head.weight_scale.tolist() == [pytest.approx(loaded.abs().max().item() / 448, rel=1e-6)]
    error = (head.weight.float().t() * head.weight_scale - loaded).abs()
    # Half a step of e4m3: three bits of mantissa, and steps of 2^-9 below 2^-6.
    assert (error <= torch.maximum(loaded.abs() * 2**-4, head.weight_scale * 2**-10) * 1.0001).all()


def test_the_weight_is_what_vllms_own_quantizer_gives(quantized: Any) -> None:
    from vllm.model_executor.layers.quantization.input_quant_fp8 import QuantFP8
    from vllm.model_executor.layers.quantization.utils.quant_utils import GroupShape

    head = quantized.lm_head
    quantizer = QuantFP8(static=True, group_shape=GroupShape.PER_TENSOR)
    codes, _ = quantizer.forward_native(quantized.model.embed_tokens.weight.data, head.weight_scale)
    assert torch.equal(codes.view(torch.uint8).t(), head.weight.data.view(torch.uint8))


def test_logits_are_those_of_both_sides_dequantized(quantized: Any) -> None:
    head = quantized.lm_head
    x = torch.randn(5, HIDDEN, generator=torch.Generator().manual_seed(2)).bfloat16()
    scale = x.float().abs().max() / 448
    rounded = (x.float() / scale).to(torch.float8_e4m3fn).double() * scale.double()
    weight = head.weight.double() * head.weight_scale.double()
    out = head.quant_method.apply(head, x)
    assert out.dtype == torch.bfloat16
    assert out.shape == (5, 192)
    torch.testing.assert_close(out.double(), rounded @ weight, rtol=2**-7, atol=1e-2)
    exact = x.double() @ quantized.model.embed_tokens.weight.double().t()
    assert not torch.allclose(out.double(), exact, rtol=2**-7, atol=1e-2), "it is not the bf16 head"


def test_the_variable_applies_it_and_nothing_else_does(monkeypatch: pytest.MonkeyPatch) -> None:
    from vllm import ModelRegistry
    from vllm.v1.worker.worker_base import WorkerWrapperBase

    monkeypatch.setattr(WorkerWrapperBase, "init_device", WorkerWrapperBase.init_device)
    monkeypatch.setattr(ModelRegistry, "models", dict(ModelRegistry.models))
    monkeypatch.setattr(vllm_plugin, "APPLIED", [])
    monkeypatch.setenv(vllm_plugin.VARIABLE, "")
    monkeypatch.setenv(vllm_plugin.FP8_DRAFT_HEAD, "")
    vllm_plugin.register()
    assert vllm_plugin.APPLIED == []
    monkeypatch.setenv(vllm_plugin.FP8_DRAFT_HEAD, "fp8_per_tensor")
    for _ in range(2):
        vllm_plugin.register()
    assert vllm_plugin.APPLIED == ["fp8_draft_head.worker", "fp8_draft_head.gemma4_mtp"]
    with pytest.raises(PluginError, match="role: there is no drafter"):
        WorkerWrapperBase.init_device(SimpleNamespace(vllm_config=SimpleNamespace(speculative_config=None)))
