"""Whatever the configuration and the headers say, the answer is a plan or a named problem."""

import json
import math
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from draftmill.formats import Format
from draftmill.jobs import QuantizeOptions
from draftmill.plans import Plan
from draftmill.problems import ProblemError
from draftmill_worker.checkpoint.checkpoint import from_headers
from draftmill_worker.checkpoint.families import detect
from draftmill_worker.checkpoint.headers import DTYPE_BYTES, TensorInfo
from draftmill_worker.quantize.plan import make_plan
from tests.unit.checkpoint.layouts import Layout, dflash, draft_model, dspark, eagle3, medusa, speculators

LAYOUTS: list[Callable[[], Layout]] = [
    eagle3,
    lambda: eagle3(qwen3=True),
    lambda: eagle3(layers=2),
    dflash,
    dspark,
    draft_model,
    medusa,
    lambda: speculators(dspark(), "dspark"),
]
KEYS = [
    *dspark().config,
    *draft_model().config,
    *eagle3().config,
    *medusa().config,
    *speculators(dflash(), "dflash").config,
    "auto_map",
    "has_lm_head",
    "has_own_lm_head",
    "target_hidden_size",
    "num_nextn_predict_layers",
    "quantization_config",
    "num_aux_hidden_states",
]
SCALARS = (
    st.none() | st.booleans() | st.integers(-3, 600) | st.floats() | st.sampled_from(["", "qwen3", "DSparkDraftModel"])
)
VALUES = (
    SCALARS
    | st.lists(SCALARS, max_size=3)
    | st.dictionaries(st.sampled_from(KEYS), SCALARS | st.lists(SCALARS, max_size=3))
)
SHAPES = st.lists(st.integers(0, 300), max_size=4).map(tuple)


def _attempt(layout: Layout, format: Format, options: QuantizeOptions) -> Plan | None:
    headers = {
        name: TensorInfo(name, dtype, shape, "model.safetensors", 0, math.prod(shape) * DTYPE_BYTES[dtype])
        for name, (dtype, shape) in layout.tensors.items()
    }
    try:
        checkpoint = from_headers(json.dumps(layout.config).encode(), None, {"model.safetensors": headers}, [])
        return make_plan(checkpoint, detect(checkpoint), format, options)
    except ProblemError as error:
        json.dumps(error.problem.model_dump(mode="json"))
        return None


@given(
    make=st.sampled_from(LAYOUTS),
    config=st.dictionaries(st.sampled_from(KEYS), VALUES, max_size=3),
    change=st.data(),
    format=st.sampled_from(Format),
    lm_head=st.booleans(),
    exclude=st.lists(
        st.sampled_from(["*", "*q_proj*", "[", "layers.1.*", "fc.weight", "*\\*", "midlayer.*"]), max_size=2
    ),
)
@settings(max_examples=400, deadline=None)
def test_plan_or_problem(
    make: Callable[[], Layout],
    config: dict[str, Any],
    change: st.DataObject,
    format: Format,
    lm_head: bool,
    exclude: list[str],
) -> None:
    layout = make()
    layout.config |= config
    names = sorted(layout.tensors)
    for name in change.draw(st.lists(st.sampled_from(names), max_size=3, unique=True)):
        action = change.draw(st.sampled_from(["drop", "shape", "dtype", "rename"]))
        dtype, shape = layout.tensors.pop(name)
        if action == "shape":
            layout.tensors[name] = (dtype, change.draw(SHAPES))
        elif action == "dtype":
            layout.tensors[name] = (change.draw(st.sampled_from(sorted(DTYPE_BYTES))), shape)
        elif action == "rename":
            layout.tensors[
                change.draw(st.sampled_from([f"{name}x", f"x.{name}", "layers.99999.a.weight", "{layer}"]))
            ] = (dtype, shape)
    plan = _attempt(layout, format, QuantizeOptions(exclude=tuple(exclude), lm_head=lm_head))
    if plan is not None:
        assert {tensor.name for tensor in plan.tensors} == set(layout.tensors)


@pytest.mark.parametrize("make", LAYOUTS)
def test_scalar_tensors_everywhere(make: Callable[[], Layout]) -> None:
    layout = make()
    layout.tensors = {name: (dtype, ()) for name, (dtype, _) in layout.tensors.items()}
    assert _attempt(layout, Format.NVFP4, QuantizeOptions()) is None


def test_many_layers_are_planned_in_time() -> None:
    plan = _attempt(draft_model(layers=500), Format.NVFP4, QuantizeOptions(exclude=("*self_attn*",)))
    assert plan is not None
    assert len(plan.tensors) == 3 + 9 * 500
