"""A device "cuda" on a machine without one: tensors that say they lie there, and whose numbers lie on the CPU.

Within `pretend_cuda()` the code that CUDA would run is run, with real numbers, and what CUDA would refuse is refused:
tensors of two devices in one operation and, while a graph is being captured, all that waits for the device or copies to
it or from it. A captured graph is a tape of its operations; replaying it runs them again in the same memory, so that
what a step read of Python's numbers while it was captured stays what it was.

It cannot see what goes on inside one operation of CUDA (whether it waits, lacks a type, or adds up in another order),
nor Triton, the compiler, the order of streams, bf16, or how much memory a step takes.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, nullcontext
from typing import Any
from unittest import mock

import torch
from torch import Tag, Tensor
from torch.utils._python_dispatch import TorchDispatchMode, _disable_current_modes

CPU, CUDA = torch.device("cpu"), torch.device("cuda", 0)
# Where these tensors lie as torch's C++ knows it: for CUDA autograd would ask a driver, for this it asks nobody.
INSIDE = torch.device("meta")

aten = torch.ops.aten
COPIES = {aten.copy_, aten._to_copy}  # may go from one device to another
BY_INDEX = {aten.index, aten.index_put, aten.index_put_, aten._index_put_impl_}  # take indices from the CPU as well
FILLS = {aten.fill, aten.fill_, aten.masked_fill, aten.masked_fill_}  # take scalars from the CPU, as pointwise ones do
READS = {aten._linalg_check_errors, aten._linalg_eigh, aten._linalg_svd}  # beside those that torch marks as such
PRODUCTS = {aten.mm, aten.addmm, aten.bmm, aten.baddbmm, aten.mv, aten.addmv, aten.dot}  # on CUDA not of integers


class Refused(RuntimeError):  # noqa: N818
    """What CUDA would not do."""


class OnDevice(Tensor):
    """A tensor that says it lies on CUDA; `value` holds its numbers."""

    value: Tensor

    @staticmethod
    def __new__(cls, value: Tensor) -> OnDevice:
        strides, offset = value.stride(), value.storage_offset()
        tensor: OnDevice = Tensor._make_wrapper_subclass(
            cls, value.size(), strides=strides, storage_offset=offset, dtype=value.dtype, device=INSIDE
        )
        tensor.value = value
        return tensor

    device = property(lambda self: CUDA)
    is_cuda = property(lambda self: True)
    is_meta = property(lambda self: False)
    __torch_function__ = torch._C._disabled_torch_function_impl

    def __repr__(self, **_: Any) -> str:
        return f"OnDevice({self.value})"

    def to(self, *args: Any, **kwargs: Any) -> Tensor:
        """The tensor itself where it lies there already, which torch must be told in its own terms."""
        args = tuple(_inside(given) for given in args)
        return super().to(*args, **{name: _inside(given) for name, given in kwargs.items()})

    def tolist(self) -> Any:
        return self.cpu().tolist()  # a copy, as torch makes one; of a class of ours it would not

    @classmethod
    def __torch_dispatch__(cls, operation: Any, *_: Any, **__: Any) -> Any:
        raise Refused(f"{operation} of a tensor on a device that is not there any more")


class Graph:
    """Stands for torch.cuda.CUDAGraph."""

    def __init__(self) -> None:
        self.tape: list[tuple[Any, Any, Any, Any]] = []  # operation, arguments, named arguments, what it returned

    def replay(self) -> None:
        with _disable_current_modes(), torch.no_grad():
            for operation, args, kwargs, found in self.tape:
                for old, new in zip(_tensors(found), _tensors(operation(*args, **kwargs)), strict=True):
                    if old.data_ptr() != new.data_ptr():  # neither a view nor in place
                        old.copy_(new)


class Device(TorchDispatchMode):
    """Runs every operation on the CPU, after a look at where its tensors lie."""

    def __init__(self) -> None:
        super().__init__()
        self.captures: Graph | None = None

    def __torch_dispatch__(self, operation: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = dict(kwargs or {})
        if operation._can_decompose():  # in inference mode nobody has yet
            with self:
                return operation.decompose(*args, **kwargs)
        tensors = _tensors((*args, *kwargs.values()))
        here = [tensor for tensor in tensors if isinstance(tensor, OnDevice)]
        asked = kwargs.get("device")
        lands_here = bool(here) if asked is None else asked.type in (CUDA.type, INSIDE.type)
        kwargs |= {name: instead for name, instead in {"device": CPU, "pin_memory": False}.items() if kwargs.get(name)}
        if not here and not lands_here:
            return operation(*args, **kwargs)
        _refuse_mixing(operation, args, here, tensors)
        if self.captures:
            _refuse_waiting(operation, args, kwargs, lands_here and len(here) == len(tensors))
        args = _changed(args, self._value)
        kwargs = {name: _changed(argument, self._value) for name, argument in kwargs.items()}
        found = operation(*args, **kwargs)
        if self.captures:
            self.captures.tape.append((operation, args, kwargs, found))
        given = {id(tensor.value if isinstance(tensor, OnDevice) else tensor): tensor for tensor in tensors}
        return _changed(found, lambda value: _returned(value, given, lands_here))

    def _value(self, tensor: Tensor) -> Tensor:
        if isinstance(tensor, OnDevice):
            return tensor.value
        return tensor.clone() if self.captures else tensor  # a graph has a scalar of the CPU as it was

    @contextmanager
    def capture(self, graph: Graph) -> Iterator[None]:
        self.captures = graph
        try:
            yield
        finally:
            self.captures = None


def _changed(given: Any, change: Callable[[Tensor], Any]) -> Any:
    """Arguments or results with each tensor among them changed; torch's own way of doing so takes most of a step."""
    if isinstance(given, Tensor):
        return change(given)
    return type(given)(_changed(part, change) for part in given) if isinstance(given, list | tuple) else given


def _tensors(given: Any) -> list[Tensor]:
    found: list[Tensor] = []
    _changed(given, found.append)
    return found


def _refuse_mixing(operation: Any, args: Any, here: list[OnDevice], tensors: list[Tensor]) -> None:
    kind, first_here = operation.overloadpacket, bool(args) and isinstance(args[0], OnDevice)
    if kind in PRODUCTS and not here[0].is_floating_point():
        raise Refused(f"{operation} of integers")
    if not here or len(here) == len(tensors) or kind in COPIES:
        return
    elsewhere = [tensor for tensor in tensors if not isinstance(tensor, OnDevice)]
    if kind in BY_INDEX and first_here and (len(args) < 3 or isinstance(args[2], OnDevice) or not args[2].dim()):
        return
    scalars = all(not tensor.dim() for tensor in elsewhere) and (Tag.pointwise in operation.tags or kind in FILLS)
    if not scalars or (operation._schema.is_mutable and not first_here):
        shapes = ", ".join(str(tuple(tensor.shape)) for tensor in elsewhere)
        raise Refused(f"{operation} mixes devices: on the CPU {shapes}")


def _refuse_waiting(operation: Any, args: Any, kwargs: Any, all_here: bool) -> None:
    kind, tags = operation.overloadpacket, operation.tags
    if kind in COPIES | BY_INDEX and not all_here:
        raise Refused(f"{operation} copies between devices while a graph is captured")
    if Tag.data_dependent_output in tags or kind in READS:
        raise Refused(f"{operation} reads a value while a graph is captured")
    if Tag.nondeterministic_seeded in tags:  # CUDA would; but all draws are keyed, lest a resumed run draw others
        raise Refused(f"{operation} draws from a generator while a graph is captured")
    if kind in BY_INDEX:  # a mask becomes positions, as many as there are
        # (stricter than CUDA, which takes a number written through a mask for masked_fill)
        sized = not any(index is not None and index.dtype in (torch.bool, torch.uint8) for index in args[1])
    else:
        sized = Tag.dynamic_output_shape not in tags or kwargs.get("output_size") is not None
    if not sized:
        raise Refused(f"{operation} has as many results as values ask for, while a graph is captured")


def _returned(value: Tensor, given: dict[int, Tensor], lands_here: bool) -> Tensor:
    """What works in place gives back the very tensor that it was given."""
    if id(value) in given:
        assert given[id(value)].shape == value.shape, "operations that change a shape in place are not pretended"
        return given[id(value)]
    return OnDevice(value) if lands_here else value


def _inside(given: Any) -> Any:
    return INSIDE if isinstance(given, str | torch.device) and torch.device(given).type == CUDA.type else given


@contextmanager
def pretend_cuda(free: int = 1 << 40) -> Iterator[Device]:
    """In this thread there is a GPU, with `free` bytes of memory to spare."""
    device, lift, overwrite = Device(), torch._C._only_lift_cpu_tensors(), torch.__future__
    stand_ins: dict[str, Any] = {
        "is_available": lambda: True,
        "_lazy_init": lambda: None,
        "mem_get_info": lambda *_: (free, free),
        "current_device": lambda: 0,
        "stream": lambda _: nullcontext(),
        "is_current_stream_capturing": lambda: device.captures is not None,
        "CUDAGraph": Graph,
        "graph": device.capture,
        **{name: mock.MagicMock() for name in ("Stream", "Event", "current_stream", "synchronize", "set_device")},
    }
    before = overwrite.get_overwrite_module_params_on_conversion()
    with ExitStack() as stack:
        stack.enter_context(mock.patch.multiple(torch.cuda, **stand_ins))
        torch._C._ensureCUDADeviceGuardSet()  # where there is no driver, nobody is asked which GPU is meant
        stack.callback(torch._C._set_only_lift_cpu_tensors, lift)
        torch._C._set_only_lift_cpu_tensors(True)  # torch.tensor makes its tensor on the CPU, then copies it
        stack.callback(overwrite.set_overwrite_module_params_on_conversion, before)
        overwrite.set_overwrite_module_params_on_conversion(True)  # weights that move are other tensors
        yield stack.enter_context(device)
