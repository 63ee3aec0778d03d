"""A device that is not the CPU, without hardware: its numbers lie in the CPU's memory, and the CPU works them out.

As on a GPU, tensors of two devices cannot be mixed, so a forgotten move is an error; and since the CPU computes,
results must be those of the CPU to the bit.
"""

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.utils import backend_registration
from torch.utils._pytree import tree_flatten, tree_map_only

NAME = "foreign"
_ATEN = torch.ops.aten
_COPIES = (_ATEN.copy_.default, _ATEN._to_copy.default)
_INDEXED = (_ATEN.index.Tensor, _ATEN.index_put_.default, _ATEN.index_put.default)
"""Row numbers may lie on the CPU, as for a GPU."""
_libraries: list[torch.library.Library] = []


class ForeignTensor(Tensor):
    """A tensor on the foreign device; ``inner`` holds its numbers."""

    inner: Tensor

    @staticmethod
    def __new__(cls, inner: Tensor) -> "ForeignTensor":
        made = torch.Tensor._make_wrapper_subclass(
            cls,
            inner.shape,
            strides=inner.stride(),
            storage_offset=inner.storage_offset(),
            dtype=inner.dtype,
            device=torch.device(NAME, 0),
        )
        made.inner = inner
        return made

    def __repr__(self) -> str:
        return f"ForeignTensor({self.inner!r})"

    def tolist(self) -> Any:
        return self.detach().inner.tolist()

    @classmethod
    def __torch_dispatch__(cls, function: Any, types: Any, arguments: Any = (), keywords: Any = None) -> Any:
        return _run(function, arguments, keywords or {})


def _run(function: Callable[..., Any], arguments: tuple[Any, ...], keywords: dict[str, Any]) -> Any:
    known = {id(part.inner): part for part in _tensors((arguments, keywords)) if isinstance(part, ForeignTensor)}
    looked_at = (arguments[0], *arguments[2:]) if function in _INDEXED else (arguments, keywords)
    strangers = [part for part in _tensors(looked_at) if not isinstance(part, ForeignTensor) and part.ndim > 0]
    if known and strangers and function not in _COPIES:
        raise RuntimeError(f"{function}: tensors on two devices, {NAME} and {strangers[0].device}")
    is_foreign = bool(known)
    if function is _ATEN.copy_.default:
        is_foreign = isinstance(arguments[0], ForeignTensor)
    elif keywords.get("device") is not None:
        is_foreign = torch.device(keywords["device"]).type == NAME
        keywords = {**keywords, "device": torch.device("cpu")}
    if torch.Tag.inplace_view in function.tags:  # the shape of the wrapper changes too
        with torch._C._DisableTorchDispatch():
            function(*arguments, **keywords)
    plain, named = tree_map_only(ForeignTensor, lambda part: part.inner, (arguments, keywords))

    def wrap(found: Tensor) -> Tensor:
        if not is_foreign:
            return found
        return known[id(found)] if id(found) in known else ForeignTensor(found)

    return tree_map_only(Tensor, wrap, function(*plain, **named))


def _tensors(tree: Any) -> list[Tensor]:
    return [part for part in tree_flatten(tree)[0] if isinstance(part, Tensor)]


def _empty(size: Sequence[int], *, dtype: torch.dtype | None = None, **ignored: Any) -> Tensor:
    return ForeignTensor(torch.empty(size, dtype=dtype))


def _empty_strided(
    size: Sequence[int], stride: Sequence[int], *, dtype: torch.dtype | None = None, **ignored: Any
) -> Tensor:
    return ForeignTensor(torch.empty_strided(size, stride, dtype=dtype))


def _copy_from(source: Tensor, target: Tensor, non_blocking: bool = False) -> Tensor:
    inner, other = (part.inner if isinstance(part, ForeignTensor) else part for part in (target, source))
    inner.copy_(other)
    return target


def register() -> None:
    """Make the device known to PyTorch, for the rest of this process."""

    class Module(backend_registration._DummyBackendModule):  # the oldest PyTorch has none
        def get_amp_supported_dtype(self) -> list[torch.dtype]:
            return [torch.bfloat16]

    backend_registration._setup_privateuseone_for_python_backend(NAME, backend_module=Module())
    library = torch.library.Library("aten", "IMPL")
    library.impl("empty.memory_format", _empty, "PrivateUse1")
    library.impl("empty_strided", _empty_strided, "PrivateUse1")
    library.impl("_copy_from", _copy_from, "PrivateUse1")
    _libraries.append(library)  # what it registered lives as long as it does
