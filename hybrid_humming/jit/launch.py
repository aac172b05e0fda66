"""Launch a Triton kernel with little host time, and refuse to compile one while a CUDA graph is being captured.

Triton's own `kernel[grid](...)` costs about 20 us of host time a call; a compiled kernel that is launched through its handle
costs about 6. A launch is therefore looked up by what Triton specialises on: the constants, the dtype and 16-byte alignment of
each tensor, and whether an integer is 1 or a multiple of 16.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable
from typing import Any

import torch

from hybrid_humming.errors import CompileError
from hybrid_humming.jit.compile import Compiled, check_target, compile_launch
from hybrid_humming.jit.store import keeping

_compiled: dict[tuple[Any, ...], Any] = {}
# (sm, results) inside `offline.compiling_for`, where a launch compiles and runs nothing.
offline: tuple[int, list[Compiled]] | None = None


def target_sm(device: torch.device) -> int:
    """Return the SM that a launch on `device` is compiled for, 90 for sm_90."""
    if offline is not None:
        return offline[0]
    major, minor = torch.cuda.get_device_capability(device)
    return major * 10 + minor


def load_launcher(path: str) -> Callable[..., None]:
    """Return the launcher that a catalog names as `module:function`, importing its module."""
    module, _, function = path.partition(":")
    launcher: Callable[..., None] = getattr(importlib.import_module(module), function)
    return launcher


def launch_triton(
    kernel: Any,
    grid: tuple[int, int, int],
    *args: Any,
    num_warps: int = 4,
    num_stages: int = 3,
    constants: dict[str, Any],
    options: dict[str, Any] | None = None,
    memo: dict[str, Any] | None = None,
) -> None:
    """Run `kernel` over `grid` with positional run-time `args` followed by its constexpr parameters, in their order.

    memo  the GemmArgs' own: the compiled kernel is kept in it, and found there without looking at the arguments again

    Raises CompileError when the kernel would have to be compiled while the current stream is being captured.
    """
    bound = memo.get(kernel.__name__) if memo is not None else None
    if bound is not None:
        run, function, metadata, values, device = bound
        stream = torch._C._cuda_getCurrentRawStream(device)
        run(*grid, stream, function, metadata, None, None, None, *args, *values)
        return
    options = options or {}
    if offline is not None:
        sm, results = offline
        launch = {"num_warps": num_warps, "num_stages": num_stages, **options}
        results.append(compile_launch(kernel, grid, args, constants, sm=sm, launch=launch))
        return
    if not hasattr(kernel, "device_caches"):  # the interpreter, in tests
        kernel[grid](*args, **constants)
        return
    key = (kernel, num_warps, num_stages, tuple(constants.values()), tuple(options.items()), *map(_kind, args))
    compiled = _compiled.get(key)
    if compiled is None:
        if torch.cuda.is_current_stream_capturing():
            raise CompileError(
                f"{kernel.fn.__name__} is not compiled for this problem yet and a CUDA graph is being captured; "
                "run the same call once before the capture, for each bucket of M"
            )
        check_target(target_sm(next(arg.device for arg in args if isinstance(arg, torch.Tensor))))
        with keeping():
            compiled = kernel[grid](*args, **constants, num_warps=num_warps, num_stages=num_stages, **options)
        _compiled[key] = compiled
    else:
        compiled[grid](*args, *constants.values())
    if memo is not None and not _hooked():
        values = tuple(constants.values())
        device = torch.cuda.current_device()
        memo[kernel.__name__] = (compiled.run, compiled.function, compiled.packed_metadata, values, device)


def _hooked() -> bool:
    """True while a profiler listens to launches: then each one goes through Triton's own launch."""
    from triton import knobs

    return knobs.runtime.launch_enter_hook is not None or knobs.runtime.launch_exit_hook is not None


def compiled_kernels() -> int:
    """Return how many specialisations this process has launched."""
    return len(_compiled)


def _kind(arg: Any) -> Any:
    if isinstance(arg, torch.Tensor):
        return arg.dtype, arg.data_ptr() % 16 == 0, arg.device.index
    if isinstance(arg, bool) or arg is None:
        return arg
    if isinstance(arg, int):
        return arg == 1, arg % 16 == 0, arg.bit_length() > 31
    box = getattr(arg, "block_shape", None)  # a TMA descriptor
    return type(arg) if box is None else (type(arg), arg.base.dtype, tuple(box))
