"""Finding a model's modules inside the engine, and what they share."""

from torch import nn


def named(model: nn.Module, last: str) -> nn.Module | None:
    """The module whose name ends so; the one nearest to the root."""
    found = [(name.count("."), module) for name, module in model.named_modules() if name.rpartition(".")[2] == last]
    return min(found, key=lambda item: item[0])[1] if found else None


def same_storage(one: nn.Module | None, other: nn.Module | None) -> bool:
    """Whether two modules' weights are the same memory, whatever Python objects hold them."""
    first, second = getattr(one, "weight", None), getattr(other, "weight", None)
    if first is None or second is None or first.device != second.device:
        return False
    if not first.numel():
        # Packed away on a CPU: sharing is one module in both models.
        return one is other
    return bool(first.untyped_storage().data_ptr() == second.untyped_storage().data_ptr())
