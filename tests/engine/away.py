"""A device that is not there: tensors that say they are elsewhere, and refuse to be mixed with those of the CPU.

What code silently assumes of a CPU fails on them as it would on a GPU: `.numpy()`, an operation over tensors of both
places, an `out=` that is here. Copies from one place to the other are counted.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_map

AWAY = torch.device("meta")  # torch lets no other name stand for a device that it has no code for
_ATEN = torch.ops.aten
# Indices, and what is copied from or into, may be here; so may numbers: torch takes them to the device.
_MIXES = {
    _ATEN.index.Tensor,
    _ATEN.index_put_.default,
    _ATEN._index_put_impl_.default,
    _ATEN.copy_.default,
    _ATEN._to_copy.default,
}


class AwayTensor(Tensor):
    """`inside` is where the numbers are."""

    inside: Tensor

    @staticmethod
    def __new__(cls, inside: Tensor) -> AwayTensor:
        made = Tensor._make_wrapper_subclass(
            cls, inside.shape, strides=inside.stride(), storage_offset=inside.storage_offset(), dtype=inside.dtype,
            device=AWAY,
        )  # fmt: skip
        made.inside = inside
        return made

    @classmethod
    def __torch_dispatch__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        return _run(func, args, kwargs or {}, None)


class AwayMode(TorchDispatchMode):
    """Lets tensors be made on that device, and counts what comes back from it."""

    def __init__(self) -> None:
        super().__init__()
        self.fetched = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func is not _ATEN.lift_fresh.default and torch._C._dispatch_has_kernel_for_dispatch_key(
            func.name(), "CompositeImplicitAutograd"
        ):
            with self:  # in inference mode torch leaves the taking apart to us
                found = func.decompose(*args, **(kwargs or {}))
            if found is not NotImplemented:
                return found
        return _run(func, args, kwargs or {}, self)


@contextmanager
def away(mode: AwayMode | None = None) -> Iterator[None]:
    """Inside, AWAY is a device like any other, for this thread."""
    mode = mode or AwayMode()
    with _Literals(), mode:
        yield


class _Literals(TorchFunctionMode):
    """torch makes tensors of Python's numbers beneath the mode; as a copy from here the mode sees them."""

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        given = kwargs or {}
        if func in (torch.tensor, torch.as_tensor) and given.get("device") is not None:
            return func(*args, **{**given, "device": "cpu"}).to(given["device"])
        if func in (Tensor.__getitem__, Tensor.__setitem__) and isinstance(args[1], list):
            args = (args[0], torch.tensor(args[1]), *args[2:])
        if func is Tensor.tolist and isinstance(args[0], AwayTensor):
            return args[0].to("cpu").tolist()
        return func(*args, **given)


def _run(func: Any, args: Any, kwargs: dict[str, Any], mode: AwayMode | None) -> Any:
    given = [x for x in torch.utils._pytree.tree_leaves((args, kwargs)) if isinstance(x, Tensor)]
    if any(x.device == AWAY and not isinstance(x, AwayTensor) for x in given):
        raise RuntimeError(f"{func}: torch made a tensor beneath the mode, without numbers")
    there = [x for x in given if isinstance(x, AwayTensor)]
    here = [x for x in given if not isinstance(x, AwayTensor) and x.dim()]
    if there and here and func not in _MIXES:
        raise RuntimeError(f"{func}: tensors of two devices: {[tuple(x.shape) for x in given]}")
    goes = kwargs.get("device")
    out_is_away = bool(there) if goes is None else torch.device(goes) == AWAY
    if func is _ATEN.copy_.default:
        out_is_away = isinstance(args[0], AwayTensor)
    if func is _ATEN.index.Tensor:
        out_is_away = isinstance(args[0], AwayTensor)
    if mode is not None and there and (not out_is_away or func is _ATEN._local_scalar_dense.default):
        mode.fetched += 1
    if goes is not None:
        kwargs = {**kwargs, "device": torch.device("cpu")}
    inner_args, inner = tree_map(lambda x: x.inside if isinstance(x, AwayTensor) else x, (args, kwargs))
    if func in (_ATEN.mm.dtype, _ATEN.mm.dtype_out):  # of CUDA alone: FP16 in, float32 out
        x, y, kind = inner_args
        assert x.dtype == y.dtype == torch.float16 and kind == torch.float32
        result = torch.mm(x.float(), y.float(), out=inner.get("out"))
    else:
        result = func(*inner_args, **inner)
    if _written(func) and isinstance(args[0], Tensor):
        return args[0]
    if "out" in kwargs:
        return kwargs["out"]
    return tree_map(lambda x: AwayTensor(x) if out_is_away and isinstance(x, Tensor) else x, result)


def _written(func: Any) -> bool:
    name = func._schema.name.split("::")[1]
    return bool(name.endswith("_") and not name.startswith("__"))
