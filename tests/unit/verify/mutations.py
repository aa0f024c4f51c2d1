"""One way, or several, to spoil a good variant so that exactly one check fails."""

import shutil
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import torch
from safetensors.torch import save_file
from tokenizers import Tokenizer
from tokenizers.models import BPE

from draftmill.plans import OutputTensor, TensorPlan, UntouchedFile
from draftmill_worker.checkpoint.identity import fingerprint
from draftmill_worker.quantize.stream import quantize
from tests.unit.verify.variants import Case, Tensors

NORM = "norm.weight"
O_PROJ = "midlayer.self_attn.o_proj"
K_PROJ = "midlayer.self_attn.k_proj"
SHARD = "model-00002-of-00003.safetensors"
INDEX = "model.safetensors.index.json"

Spoil = Callable[[Case], dict[str, Any] | None]


@dataclass(frozen=True)
class Mutation:
    check: str
    base: str
    spoil: Spoil
    """Changes a copy of the base; may return options for `verify`."""

    @property
    def name(self) -> str:
        return f"{self.check}: {self.spoil.__name__}"


MUTATIONS: list[Mutation] = []


def mutation(check: str, base: str = "eagle3-nvfp4") -> Callable[[Spoil], Spoil]:
    def register(spoil: Spoil) -> Spoil:
        MUTATIONS.append(Mutation(check, base, spoil))
        return spoil

    return register


def _edit_outputs(case: Case, name: str, change: Callable[[TensorPlan], tuple[OutputTensor, ...]], size: int) -> None:
    """Another output set for one tensor of the plan, and `size` bytes more in all."""
    tensors = tuple(
        tensor.model_copy(update={"outputs": change(tensor)}) if tensor.name == name else tensor
        for tensor in case.plan.tensors
    )
    case.edit_plan(tensors=tensors, variant_bytes=case.plan.variant_bytes + size)


# The folder.


@mutation("regular-files")
def symbolic_link_with_the_right_bytes(case: Case) -> None:
    path = case.variant / "generation_config.json"
    path.unlink()
    path.symlink_to(case.source / "generation_config.json")


@mutation("regular-files")
def hard_link_to_the_source(case: Case) -> None:
    path = case.variant / "generation_config.json"
    path.unlink()
    path.hardlink_to(case.source / "generation_config.json")


@mutation("regular-files")
def writable_by_others(case: Case) -> None:
    (case.variant / "model.safetensors").chmod(0o666)


@mutation("weight-files-listed")
def stale_shard(case: Case) -> None:
    save_file({NORM: torch.zeros(4)}, case.variant / "stale.safetensors")


@mutation("weight-files-listed")
def pickle_below(case: Case) -> None:
    (case.variant / "old").mkdir()
    (case.variant / "old" / "pytorch_model.bin").write_bytes(b"\x80")


@mutation("weight-files-listed")
def planned_file_is_gone(case: Case) -> None:
    (case.variant / "model.safetensors").unlink()


@mutation("headers-sane")
def bytes_behind_the_last_tensor(case: Case) -> None:
    with (case.variant / "model.safetensors").open("ab") as stream:
        stream.write(b"\0\0\0\0")


@mutation("headers-sane")
def truncated_weights(case: Case) -> None:
    path = case.variant / "model.safetensors"
    with path.open("r+b") as stream:
        stream.truncate(path.stat().st_size - 1)


@mutation("documents-readable")
def half_a_document(case: Case) -> None:
    (case.variant / "hf_quant_config.json").write_text("{")


@mutation("documents-readable")
def no_plan(case: Case) -> None:
    (case.variant / "plan.json").unlink()


@mutation("documents-readable", "sharded")
def shards_without_an_index(case: Case) -> None:
    (case.variant / INDEX).unlink()


# Names, places, sizes.


@mutation("names-complete")
def lost_norm(case: Case) -> None:
    case.edit_tensors(lambda tensors: tensors.pop(NORM))


@mutation("names-complete")
def tensor_nobody_planned(case: Case) -> None:
    case.edit_tensors(lambda tensors: tensors.update(extra=torch.zeros(1)))


@mutation("names-complete", "eagle3-fp8")
def renamed_layer(case: Case) -> None:
    def rename(tensors: Tensors) -> None:
        tensors["layers.0.hidden_norm.weight"] = tensors.pop("midlayer.hidden_norm.weight")

    case.edit_tensors(rename)


@mutation("one-file-per-tensor", "sharded")
def second_copy_in_another_shard(case: Case) -> None:
    other = next(tensor for tensor in case.plan.tensors if tensor.file != SHARD and tensor.dtype == "BF16")
    output = other.outputs[0]
    case.edit_tensors(lambda tensors: tensors.update({output.name: torch.zeros(1)}), SHARD)


@mutation("index-agrees", "sharded")
def index_points_elsewhere(case: Case) -> None:
    def edit(index: dict[str, Any]) -> None:
        index["weight_map"][NORM] = "model-00001-of-00003.safetensors"
        if index["weight_map"]["d2t"] == "model-00001-of-00003.safetensors":
            index["weight_map"].pop("d2t")

    case.edit_json(edit, INDEX)


@mutation("index-agrees", "sharded")
def index_forgets_a_scale(case: Case) -> None:
    case.edit_json(lambda index: index["weight_map"].pop(f"{O_PROJ}.weight_scale"), INDEX)


@mutation("index-agrees", "sharded")
def index_counts_wrong(case: Case) -> None:
    case.edit_json(lambda index: index["metadata"].update(total_size=index["metadata"]["total_size"] + 1), INDEX)


@mutation("layers-present")
def layer_promised_but_not_stored(case: Case) -> None:
    case.edit_json(lambda config: config.update(num_hidden_layers=2), "config.json", source=True)


@mutation("layers-present", "predicting-block")
def predicting_layer_promised_but_not_stored(case: Case) -> None:
    case.edit_json(lambda config: config.update(num_nextn_predict_layers=2), "config.json", source=True)


@mutation("layers-present", "predicting-layer")
def layer_stored_but_not_promised(case: Case) -> None:
    case.edit_json(lambda config: config.update(num_nextn_predict_layers=0), "config.json", source=True)


@mutation("sizes-agree")
def plan_counts_wrong(case: Case) -> None:
    case.edit_plan(variant_bytes=case.plan.variant_bytes + 1)


@mutation("plan-recorded")
def another_plan_is_recorded(case: Case) -> None:
    case.edit_json(lambda plan: plan["warnings"].append("made up"), "plan.json")


# Schemes.


@mutation("dtypes-and-shapes")
def integer_map_in_bfloat16(case: Case) -> None:
    case.edit_tensors(lambda tensors: tensors.update(d2t=tensors["d2t"].bfloat16()))
    _edit_outputs(case, "d2t", lambda tensor: (tensor.outputs[0],), -6 * 128)


@mutation("dtypes-and-shapes")
def norm_of_two_dimensions(case: Case) -> None:
    case.edit_tensors(lambda tensors: tensors.update({NORM: tensors[NORM].reshape(1, -1)}))


@mutation("dtypes-and-shapes", "eagle3-fp8_pc_pt")
def channel_scale_as_a_column(case: Case) -> None:
    name = f"{O_PROJ}.weight_scale"
    case.edit_tensors(lambda tensors: tensors.update({name: tensors[name].reshape(-1, 1)}))


@mutation("dtypes-and-shapes", "no-fc")
def excluded_layer_quantized_anyway(case: Case) -> None:
    case.edit_tensors(lambda tensors: tensors.update({"fc.weight": tensors["fc.weight"].to(torch.float8_e4m3fn)}))
    _edit_outputs(case, "fc.weight", lambda tensor: tensor.outputs, -128 * 3 * 128)


def _without_input_scale(case: Case, module: str) -> None:
    name = f"{module}.input_scale"
    case.edit_tensors(lambda tensors: tensors.pop(name))
    keep = lambda tensor: tuple(output for output in tensor.outputs if output.name != name)  # noqa: E731
    _edit_outputs(case, f"{module}.weight", keep, -4)


@mutation("scales-complete")
def no_input_scale(case: Case) -> None:
    _without_input_scale(case, O_PROJ)


@mutation("scales-complete", "lm-head")
def no_input_scale_of_the_head(case: Case) -> None:
    _without_input_scale(case, "lm_head")


@mutation("no-orphan-scales")
def scale_without_a_reader(case: Case) -> None:
    extra = OutputTensor(name="norm.weight_scale", dtype="F32", shape=(1,))
    case.edit_tensors(lambda tensors: tensors.update({extra.name: torch.ones(1)}))
    _edit_outputs(case, NORM, lambda tensor: (*tensor.outputs, extra), 4)


# The source.


@mutation("source-unchanged")
def source_written_again_with_the_same_bytes(case: Case) -> dict[str, Any]:
    before = fingerprint(case.source)
    path = case.source / "config.json"
    path.write_bytes(path.read_bytes())
    return {"source_identity": before}


@mutation("source-unchanged")
def source_with_another_card(case: Case) -> dict[str, Any]:
    from draftmill_worker.checkpoint.manifest import make_manifest

    before = make_manifest(case.source)
    (case.source / "README.md").write_text("another\n")
    return {"source_identity": None, "source_manifest": before}


# Kept tensors.


@mutation("values-finite")
def nan_in_a_norm(case: Case) -> None:
    case.edit_tensors(lambda tensors: tensors[NORM].__setitem__(3, float("nan")))


@mutation("values-finite", "eagle3-fp8")
def nan_among_the_codes(case: Case) -> None:
    case.edit_tensors(lambda tensors: tensors[f"{O_PROJ}.weight"].view(torch.uint8)[0].__setitem__(0, 0x7F))


@mutation("integers-identical")
def consistent_map_of_other_tokens(case: Case) -> None:
    def move(tensors: Tensors) -> None:
        targets = tensors["d2t"] + torch.arange(len(tensors["d2t"]))
        taken = set(targets.tolist())
        index = next(number for number, target in enumerate(targets.tolist()) if target + 1 not in taken | {320})
        tensors["t2d"][targets[index]] = False
        tensors["t2d"][targets[index] + 1] = True
        tensors["d2t"][index] += 1

    case.edit_tensors(move)


@mutation("untouched-identical")
def lowest_bit_of_a_norm(case: Case) -> None:
    case.edit_tensors(lambda tensors: tensors[NORM].view(torch.int16).bitwise_xor_(1))


@mutation("untouched-identical")
def kept_head_in_another_rounding(case: Case) -> None:
    case.edit_tensors(lambda tensors: tensors["lm_head.weight"].view(torch.int16)[5].add_(1))


@mutation("casts-exact", "float32")
def cast_by_truncation(case: Case) -> None:
    def truncate(tensors: Tensors) -> None:
        from safetensors.torch import load_file

        exact = load_file(case.source / "model.safetensors")["lm_head.weight"]
        tensors["lm_head.weight"] = (exact.view(torch.int32) >> 16).to(torch.int16).view(torch.bfloat16)

    case.edit_tensors(truncate)


# Scales.


@mutation("scales-positive", "eagle3-fp8_pc_pt")
def zero_scale_of_one_row(case: Case) -> None:
    case.edit_tensors(lambda tensors: tensors[f"{O_PROJ}.weight_scale"].__setitem__(7, 0.0))


@mutation("scales-positive", "eagle3-mxfp8")
def power_of_two_that_is_nan(case: Case) -> None:
    case.edit_tensors(lambda tensors: tensors[f"{O_PROJ}.weight_scale"][0].__setitem__(1, 255))


@mutation("scale-values", "eagle3-mxfp8")
def power_of_two_too_large(case: Case) -> None:
    case.edit_tensors(lambda tensors: tensors[f"{O_PROJ}.weight_scale"][3].add_(1))


@mutation("scale-values", "eagle3-fp8_pb_wo")
def scales_of_two_blocks_swapped(case: Case) -> None:
    case.edit_tensors(
        lambda tensors: tensors.update({f"{O_PROJ}.weight_scale": tensors[f"{O_PROJ}.weight_scale"].flip(2)})
    )


@mutation("dtypes-and-shapes", "eagle3-fp8_pb_wo")
def block_scales_in_two_dimensions(case: Case) -> None:
    name = f"{O_PROJ}.weight_scale"
    case.edit_tensors(lambda tensors: tensors.update({name: tensors[name].reshape(tensors[name].shape[0], -1)}))


@mutation("dequantized-error", "eagle3-int4_g128")
def nibbles_of_every_byte_swapped(case: Case) -> None:
    def swap(tensors: Tensors) -> None:
        codes = tensors[f"{O_PROJ}.weight_packed"].view(torch.uint8)
        codes.copy_((codes >> 4) | (codes << 4))

    case.edit_tensors(swap)


@mutation("codes-not-zero", "eagle3-int8_g128")
def integers_that_stand_for_zero(case: Case) -> None:
    case.edit_tensors(lambda tensors: tensors[f"{O_PROJ}.weight_packed"].view(torch.uint8).fill_(0x80))


@mutation("scales-positive", "eagle3-fp8")
def negative_input_scale(case: Case) -> None:
    case.edit_tensors(lambda tensors: tensors[f"{O_PROJ}.input_scale"].neg_())


@mutation("fused-uniform")
def sibling_with_its_own_second_scale(case: Case) -> None:
    case.edit_tensors(lambda tensors: tensors[f"{K_PROJ}.weight_scale_2"].mul_(0.5))


@mutation("fused-uniform", "eagle3-fp8")
def sibling_with_its_own_scale(case: Case) -> None:
    case.edit_tensors(lambda tensors: tensors[f"{K_PROJ}.weight_scale"].mul_(2.0))


@mutation("fused-uniform")
def sibling_outside_the_plans_group(case: Case) -> None:
    case.edit_plan(
        tensors=tuple(
            tensor.model_copy(update={"group": None}) if tensor.name == f"{K_PROJ}.weight" else tensor
            for tensor in case.plan.tensors
        )
    )


@mutation("scale-values")
def block_scale_off_by_one_code(case: Case) -> None:
    case.edit_tensors(lambda tensors: tensors[f"{O_PROJ}.weight_scale"].view(torch.uint8)[0].__setitem__(0, 0x40))


@mutation("scale-values", "searched")
def searched_block_scale_one_code_off(case: Case) -> None:
    case.edit_tensors(lambda tensors: tensors[f"{O_PROJ}.weight_scale"].view(torch.uint8)[5].sub_(1))


@mutation("scale-values", "searched")
def plain_max_where_a_search_was_asked_for(case: Case) -> None:
    """Servable, and no worse than without the option."""
    plain = case.plan.model_copy(update={"nvfp4_scale_search": False})
    with TemporaryDirectory() as folder:
        quantize(case.source, plain, Path(folder), fsync=False)
        (case.variant / "model.safetensors").write_bytes((Path(folder) / "model.safetensors").read_bytes())


@mutation("modelopt-parity", "searched")
def negative_zero_among_searched_codes(case: Case) -> None:
    negative_zero_for_zero(case)


@mutation("dequantized-error", "searched")
def one_searched_code_one_step_off(case: Case) -> None:
    one_code_one_step_off(case)


@mutation("scale-values", "eagle3-fp8")
def guessed_input_scales(case: Case) -> None:
    def guess(tensors: Tensors) -> None:
        for name in tensors:
            if name.endswith("input_scale"):
                tensors[name].fill_(0.03)

    case.edit_tensors(guess)


@mutation("scale-values", "eagle3-fp8")
def scale_off_by_its_last_bit(case: Case) -> None:
    case.edit_tensors(lambda tensors: tensors[f"{O_PROJ}.weight_scale"].view(torch.int32).add_(1))


# Quantized weights.


@mutation("codes-not-zero")
def packed_zeros(case: Case) -> None:
    case.edit_tensors(lambda tensors: tensors[f"{O_PROJ}.weight"].zero_())


@mutation("codes-not-zero")
def packed_negative_zeros(case: Case) -> None:
    case.edit_tensors(lambda tensors: tensors[f"{O_PROJ}.weight"].fill_(0x88))


@mutation("dequantized-error")
def one_code_one_step_off(case: Case) -> None:
    def step(tensors: Tensors) -> None:
        codes = tensors[f"{O_PROJ}.weight"].flatten()
        largest = ((codes & 0x7) == 0x7).nonzero()[0]  # 6 becomes 4
        codes[largest] ^= 1

    case.edit_tensors(step)


@mutation("dequantized-error", "eagle3-fp8")
def two_rows_swapped(case: Case) -> None:
    def swap(tensors: Tensors) -> None:
        codes = tensors[f"{O_PROJ}.weight"].view(torch.uint8)
        codes[[0, 1]] = codes[[1, 0]]

    case.edit_tensors(swap)


@mutation("modelopt-parity")
def negative_zero_for_zero(case: Case) -> None:
    def negate(tensors: Tensors) -> None:
        codes = tensors[f"{O_PROJ}.weight"].flatten()
        codes[((codes & 0x7) == 0).nonzero()[0]] ^= 0x8

    case.edit_tensors(negate)


# Configurations.


@mutation("one-quant-algo")
def mixed_precision(case: Case) -> None:
    case.edit_json(lambda config: config["quantization_config"].update(quant_algo="MIXED_PRECISION"), "config.json")


@mutation("one-quant-algo")
def no_quant_method(case: Case) -> None:
    case.edit_json(lambda config: config["quantization_config"].pop("quant_method"), "config.json")


@mutation("one-quant-algo")
def second_configuration(case: Case) -> None:
    old = {"quant_method": "compressed-tensors"}
    case.edit_json(lambda config: config.update(compression_config=old), "config.json")


@mutation("no-layer-overrides")
def quantized_layers(case: Case) -> None:
    layers = {"midlayer.mlp.down_proj": {"quant_algo": "NVFP4"}}
    case.edit_json(lambda config: config["quantization"].update(quantized_layers=layers), "hf_quant_config.json")


@mutation("no-layer-overrides")
def two_groups(case: Case) -> None:
    group = {"group_1": {"targets": ["Linear"], "weights": {}}}
    case.edit_json(lambda config: config["quantization_config"]["config_groups"].update(group), "config.json")


@mutation("hf-quant-config-agrees")
def exclusion_in_one_file_only(case: Case) -> None:
    case.edit_json(lambda config: config["quantization"]["exclude_modules"].pop(), "hf_quant_config.json")


@mutation("hf-quant-config-agrees")
def kv_cache_scheme(case: Case) -> None:
    case.edit_json(lambda config: config["quantization"].update(kv_cache_quant_algo="FP8"), "hf_quant_config.json")


@mutation("one-quant-algo", "eagle3-int4_g128")
def another_layout_of_integers(case: Case) -> None:
    case.edit_json(lambda config: config["quantization_config"].update(format="int-quantized"), "config.json")


@mutation("no-layer-overrides", "eagle3-int4_g128")
def heads_aimed_at_without_being_quantized(case: Case) -> None:
    def aim(config: dict[str, Any]) -> None:
        config["quantization_config"]["config_groups"]["group_0"]["targets"].append("re:.*lm_head$")

    case.edit_json(aim, "config.json")


@mutation("hf-quant-config-agrees", "eagle3-int4_g128")
def modelopts_file_beside_integers(case: Case) -> None:
    (case.variant / "hf_quant_config.json").write_text('{"quantization": {}}')


@mutation("config-preserved")
def another_rope_theta(case: Case) -> None:
    case.edit_json(lambda config: config.update(rope_theta=1e6), "config.json")


@mutation("config-preserved")
def auto_map_dropped(case: Case) -> None:
    case.edit_json(lambda config: config.pop("auto_map"), "config.json")


@mutation("dtype-declared")
def half_precision(case: Case) -> None:
    case.edit_json(lambda config: config.update(torch_dtype="float16"), "config.json")


@mutation("dtype-declared")
def no_dtype(case: Case) -> None:
    case.edit_json(lambda config: config.pop("torch_dtype"), "config.json")


# Exclusions.


def _set_ignore(case: Case, ignore: list[str]) -> None:
    case.edit_json(lambda config: config["quantization_config"].update(ignore=ignore), "config.json")
    case.edit_json(lambda config: config["quantization"].update(exclude_modules=ignore), "hf_quant_config.json")


@mutation("exclusions-present")
def no_exclusions(case: Case) -> None:
    _set_ignore(case, [])


@mutation("exclusions-present")
def exclusions_of_another_plan(case: Case) -> None:
    _set_ignore(case, [*case.plan.ignore, "other"])


def _plan_ignore(case: Case, ignore: list[str]) -> None:
    _set_ignore(case, ignore)
    case.edit_plan(ignore=tuple(ignore))


@mutation("ignore-resolves")
def exclusions_that_match_nothing(case: Case) -> None:
    _plan_ignore(case, ["nothing.here"])


@mutation("ignore-resolves")
def exclusions_that_match_everything(case: Case) -> None:
    _plan_ignore(case, [*case.plan.ignore, "*"])


@mutation("ignore-resolves")
def exclusion_that_is_part_of_other_names(case: Case) -> None:
    _plan_ignore(case, [*case.plan.ignore, "mlp.down"])


@mutation("ignore-resolves", "dflash-fp8")
def shards_without_their_fused_name(case: Case) -> None:
    _plan_ignore(case, [name for name in case.plan.ignore if "qkv_proj" not in name])


@mutation("ignore-resolves", "dspark-nvfp4")
def markov_head_forgotten(case: Case) -> None:
    _plan_ignore(case, [name for name in case.plan.ignore if "markov" not in name])


@mutation("engine-reads-config")
def nested_section_that_vllm_prefers(case: Case) -> None:
    nested = {"quant_algo": "NVFP4", "group_size": 16, "kv_cache_quant_algo": None, "exclude_modules": []}
    case.edit_json(lambda config: config["quantization_config"].update(quantization=nested), "config.json")


@mutation("engine-reads-config")
def activations_forgotten(case: Case) -> None:
    def edit(config: dict[str, Any]) -> None:
        config["quantization_config"]["config_groups"]["group_0"].pop("input_activations")

    case.edit_json(edit, "config.json")


# Heads and vocabularies.


@mutation("draft-vocabulary-maps")
def token_reached_twice(case: Case) -> None:
    def repeat(tensors: Tensors) -> None:
        tensors["d2t"][1] = tensors["d2t"][0] - 1

    case.edit_tensors(repeat, source=True)


@mutation("draft-vocabulary-maps")
def token_beyond_the_vocabulary(case: Case) -> None:
    case.edit_tensors(lambda tensors: tensors["d2t"].__setitem__(-1, 4096), source=True)


@mutation("draft-vocabulary-maps")
def mask_of_other_tokens(case: Case) -> None:
    case.edit_tensors(lambda tensors: tensors["t2d"].logical_not_(), source=True)


@mutation("tied-head")
def tied_flag_copied_from_the_target(case: Case) -> None:
    case.edit_json(lambda config: config.update(tie_word_embeddings=True), "config.json", source=True)


# Beside the weights.


@mutation("no-stray-files")
def training_state(case: Case) -> None:
    shutil.copy(case.source / "trainer_state.json", case.variant)


@mutation("sidecars-identical")
def another_generation_config(case: Case) -> None:
    (case.variant / "generation_config.json").write_text('{"temperature": 1.0}\n')


@mutation("sidecars-identical")
def template_dropped(case: Case) -> None:
    (case.variant / "chat_template.jinja").unlink()


@mutation("auto-map-files")
def module_dropped(case: Case) -> None:
    (case.variant / "modeling_tiny.py").unlink()


@mutation("auto-map-files")
def imported_module_dropped(case: Case) -> None:
    (case.variant / "layers_tiny.py").unlink()


@mutation("auto-map-files")
def module_patched(case: Case) -> None:
    (case.variant / "layers_tiny.py").write_text("import os\n")


@mutation("tokenizer-encodes")
def tokenizer_without_words(case: Case) -> None:
    for folder in (case.source, case.variant):
        Tokenizer(BPE()).save(str(folder / "tokenizer.json"))


@mutation("tokenizer-encodes")
def tokenizer_that_does_not_load(case: Case) -> None:
    for folder in (case.source, case.variant):
        (folder / "tokenizer.json").write_text("{}\n")


# The card.


def _edit_card(case: Case, before: str, after: str) -> None:
    path = case.variant / "README.md"
    text = path.read_text()
    assert before in text
    path.write_text(text.replace(before, after))


@mutation("serve-command")
def draft_tokens_left_out(case: Case) -> None:
    _edit_card(case, ', "num_speculative_tokens": 3', "")


@mutation("serve-command")
def quantization_left_to_the_target(case: Case) -> None:
    _edit_card(case, '"quantization": "modelopt_fp4", ', "")


@mutation("serve-command")
def one_revision_for_both(case: Case) -> None:
    _edit_card(case, '"revision": "DRAFTER_REVISION", ', "")


@mutation("serve-command")
def served_in_half(case: Case) -> None:
    _edit_card(case, "--dtype bfloat16", "--dtype half")


@mutation("serve-command", "dflash-fp8")
def more_tokens_than_the_block(case: Case) -> None:
    _edit_card(case, '"num_speculative_tokens": 3', '"num_speculative_tokens": 4')


@mutation("serve-command", "dspark-nvfp4")
def fewer_tokens_than_the_block(case: Case) -> None:
    _edit_card(case, '"num_speculative_tokens": 4', '"num_speculative_tokens": 3')


@mutation("no-local-paths")
def path_in_a_document(case: Case) -> None:
    case.edit_json(lambda config: config["producer"].update(folder=str(case.variant)), "hf_quant_config.json")


@mutation("no-local-paths")
def path_on_the_card(case: Case) -> None:
    _edit_card(case, "## Sizes", f"Built in {case.source}.\n\n## Sizes")


# A target in the drafter's checkpoint.


@mutation("whole-files-identical", "mtp-nvfp4")
def target_weight_changed_in_a_file_passed_whole(case: Case) -> None:
    case.edit_tensors(lambda tensors: tensors["model.embed_tokens.weight"].neg_(), "model-00001.safetensors")


@mutation("target-untouched", "mtp-one-by-one")
def block_passed_off_as_the_targets(case: Case) -> None:
    """One norm of the block, which is kept anyway, in a file that the plan says holds nothing of it."""
    (norm,) = (tensor for tensor in case.plan.tensors if tensor.name == "mtp.norm.weight")
    passed = UntouchedFile(file=norm.file, tensors=1, nbytes=2 * norm.shape[0])
    (case.variant / norm.file).write_bytes((case.source / norm.file).read_bytes())
    tensors = tuple(tensor for tensor in case.plan.tensors if tensor is not norm)
    case.edit_plan(tensors=tensors, untouched=(*case.plan.untouched, passed))


@mutation("untouched-identical", "mtp-fp8")
def target_weight_changed_beside_the_block(case: Case) -> None:
    case.edit_tensors(lambda tensors: tensors["model.layers.1.mlp.up_proj.weight"].neg_())


@mutation("ignore-resolves", "mtp-fp8")
def target_layer_not_excluded(case: Case) -> None:
    _plan_ignore(case, [name for name in case.plan.ignore if name != "model.layers.1.*"])


@mutation("ignore-resolves", "mtp-nvfp4")
def target_pattern_that_hits_the_block(case: Case) -> None:
    """Substrings count: a name so short keeps the block's layers too."""
    _plan_ignore(case, [*case.plan.ignore, "layers"])


@mutation("layers-present", "mtp-fp8")
def mtp_layer_promised_but_not_stored(case: Case) -> None:
    case.edit_json(lambda config: config.update(mtp_num_hidden_layers=2), "config.json", source=True)


@mutation("regular-files", "mtp-fp8_pc_pt")
def written_file_linked_to_the_source(case: Case) -> None:
    file = "model-00002.safetensors"
    (case.root / "elsewhere").hardlink_to(case.variant / file)


@mutation("serve-command", "mtp-fp8")
def block_served_from_another_directory(case: Case) -> None:
    _edit_card(case, '{"method": "mtp", ', '{"method": "mtp", "model": "DRAFTER", ')
