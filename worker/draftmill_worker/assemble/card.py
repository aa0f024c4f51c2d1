"""README.md of a variant: what it is, what changed, how large it is, how to serve it.

Neither times nor paths of the machine are in it: a rebuild gives the same bytes.
"""

from collections.abc import Sequence

from draftmill.formats import FORMATS, FormatSpec
from draftmill.plans import Family, Fate, Plan, TensorPlan
from draftmill_worker.assemble.serve import DEFAULT_TOKENS, serve_command, speculative_tokens
from draftmill_worker.checkpoint.drafter import Drafter
from draftmill_worker.checkpoint.headers import DTYPE_BYTES

_ACTIVATION = {"static": "quantized with a fixed scale", "dynamic": "quantized per token", "none": "not quantized"}


def model_card(
    drafter: Drafter, plan: Plan, *, repo: str | None, commit: str | None, files: Sequence[str], notes: Sequence[str]
) -> str:
    """Markdown with the Hub's YAML header. `repo` and `commit` name the source where it came from the Hub, `files` are
    those copied from it."""
    spec = FORMATS[plan.format]
    parts = [
        _header(plan, repo),
        f"# {_title(repo)} in {spec.name.value}\n",
        _what(plan, spec, repo, commit) + _tokenizer(files),
        "## Sizes\n\nBytes of tensors, as the weight files' headers count them.\n\n" + _sizes(plan),
        _serve(drafter, plan),
        _notes([*plan.warnings, *notes]),
    ]
    return "\n".join(part for part in parts if part)


def _header(plan: Plan, repo: str | None) -> str:
    lines = ["---"]
    if repo is not None:
        lines += [f"base_model: {repo}", "base_model_relation: quantized"]
    lines += ["library_name: vllm", "tags:", "- speculative-decoding", "- draftmill"]
    return "\n".join([*lines, f"- {plan.family.value}", f"- {plan.format.value}", "---\n"])


def _title(repo: str | None) -> str:
    return "A drafter" if repo is None else repo.rpartition("/")[2]


def _what(plan: Plan, spec: FormatSpec, repo: str | None, commit: str | None) -> str:
    source = "a local checkpoint folder" if repo is None else f"`{repo}`"
    if commit is not None:
        source += f" at commit `{commit}`"
    return (
        f"{_kind(plan)}, quantized by Draftmill from {source}, "
        f"without calibration data.\n\n"
        f"- Format: `{spec.name.value}`, {spec.bits}-bit weights, activations {_activation(spec)}. "
        f"Good for {spec.good_for}.\n"
        f"- Read by vLLM as `quant_method: {spec.quant_method}`, `{spec.algo_key}: {spec.quant_algo}`.\n"
        f"- Layers that the engine fuses {_sharing(plan)}.{_search(plan)}\n"
        f"- Head: {plan.head.value}. Layout: {plan.dialect}.\n"
        f"- `plan.json` names every tensor, what became of it and why.\n"
    )


def _activation(spec: FormatSpec) -> str:
    blocks = spec.activation == "dynamic" and spec.group is not None
    return _ACTIVATION[spec.activation] + (f" and {spec.group} columns" if blocks else "")


def _kind(plan: Plan) -> str:
    if plan.family is Family.MTP:
        return "A target as it was, but for its MTP block"
    return f"A speculative-decoding drafter of the {plan.family.value} family"


def _tokenizer(files: Sequence[str]) -> str:
    """An engine tokenizes with the target's; a drafter that ships none depends on it."""
    ships = any(name.startswith(("tokenizer.", "vocab.", "tekken.")) or name.endswith(".tiktoken") for name in files)
    return f"- Tokenizer: {'as the source ships it' if ships else 'the one of the target; none is in this folder'}.\n"


def _sharing(plan: Plan) -> str:
    if plan.scales == "fused":
        return "share their per-tensor scales"
    return "have scales of their own, for comparison only: engines fuse them"


def _search(plan: Plan) -> str:
    return " Block scales were searched for the least weight error." if plan.nvfp4_scale_search else ""


def _sizes(plan: Plan) -> str:
    rows: dict[tuple[Fate, str], list[TensorPlan]] = {}
    for tensor in plan.tensors:
        rows.setdefault((tensor.fate, tensor.reason), []).append(tensor)
    lines = ["| tensors | fate | why | source bytes | variant bytes |", "|---:|---|---|---:|---:|"]
    for (fate, reason), tensors in sorted(rows.items()):
        before = sum(_bytes(tensor.dtype, tensor.shape) for tensor in tensors)
        after = sum(_bytes(output.dtype, output.shape) for tensor in tensors for output in tensor.outputs)
        lines.append(f"| {len(tensors)} | {fate.value} | {_cell(reason)} | {before} | {after} |")
    count = len(plan.tensors)
    if plan.untouched:
        whole, size = sum(file.tensors for file in plan.untouched), sum(file.nbytes for file in plan.untouched)
        lines.append(f"| {whole} | {Fate.KEPT.value} | target: files without MTP tensors | {size} | {size} |")
        count += whole
    lines.append(f"| {count} | all | | {plan.source_bytes} | {plan.variant_bytes} |")
    return "\n".join(lines) + "\n"


def _bytes(dtype: str, shape: tuple[int, ...]) -> int:
    size = DTYPE_BYTES[dtype]
    for dimension in shape:
        size *= dimension
    return size


def _serve(drafter: Drafter, plan: Plan) -> str:
    tokens = speculative_tokens(drafter)
    if drafter.block_size is not None:
        why = f"the drafter was trained on blocks of {drafter.block_size}"
    elif tokens == DEFAULT_TOKENS:
        why = "a cautious start; measure acceptance before raising it"
    else:
        why = "from the drafter's configuration"
    words = (
        "Replace the two words in capitals: this folder is target and drafter in one"
        if plan.family is Family.MTP
        else "Replace the four words in capitals. Target and drafter are pinned each by its own revision"
    )
    return (
        f"## Serve\n\n{words}; a folder on disk needs no revision.\n\n```sh\n{serve_command(drafter, plan)}\n```\n\n"
        f"`num_speculative_tokens` is {tokens}: {why}.\n"
    )


def _notes(notes: Sequence[str]) -> str:
    lines = [f"- {' '.join(note.split())}\n" for note in notes]
    return "## Notes\n\n" + "".join(lines) if lines else ""


def _cell(text: str) -> str:
    return " ".join(text.split()).replace("|", "\\|")
