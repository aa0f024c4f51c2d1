"""Masks in Triton's interpreter: DFlash2's walk joins masks in ways that leave them int32, which it then refuses."""

from typing import Any


def mend() -> None:
    """Let loads and stores of this process take such masks as the booleans that they are."""
    from triton.runtime.interpreter import InterpreterBuilder

    load, store = InterpreterBuilder.create_masked_load, InterpreterBuilder.create_masked_store

    def create_masked_load(self: Any, ptrs: Any, mask: Any, *rest: Any) -> Any:
        mask.data = mask.data.astype(bool)
        return load(self, ptrs, mask, *rest)

    def create_masked_store(self: Any, ptrs: Any, value: Any, mask: Any, *rest: Any) -> Any:
        mask.data = mask.data.astype(bool)
        return store(self, ptrs, value, mask, *rest)

    InterpreterBuilder.create_masked_load = create_masked_load
    InterpreterBuilder.create_masked_store = create_masked_store
