"""Load any `Compiled` on the current GPU and launch it: the way of kernels that no Triton launcher starts.

    kernel = load(compiled)                                    # once a device
    kernel.launch(grid=(132, 1, 1), threads=192, params=[...], stream=torch.cuda.current_stream().cuda_stream)

params are bytes as the kernel's parameters hold them, in order: `struct.pack`ed numbers, pointers, structs, and tensor maps. The
driver is called through cuda-bindings; cuda-core, which stands on it, passes neither structs nor tensor maps of 4- and 6-bit
codes. A cubin for sm_90 or later is for that SM alone, an older one also for later SMs of its generation.
"""

from __future__ import annotations

import ctypes
import functools
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch

from hybrid_humming.errors import CompileError, DeviceError, MissingDependency
from hybrid_humming.jit.compile import Compiled
from hybrid_humming.jit.elf import read_cubin
from hybrid_humming.jit.nvrtc import EXTRA

EXACT = 90  # from this SM on a cubin runs on its own SM alone
STATIC_LIMIT = 49152  # shared memory that a launch gets without asking


@dataclass(frozen=True, eq=False)
class Kernel:
    """A kernel on one device; `module` keeps its code loaded."""

    function: int
    module: Any
    compiled: Compiled
    offsets: tuple[int, ...]

    def launch(self, *, grid: tuple[int, int, int], threads: int, params: Sequence[bytes], stream: int) -> None:
        """Launch over `grid` CTAs; raises CompileError with the driver's reason where it refuses."""
        buffer = (ctypes.c_byte * (self.offsets[-1] + len(params[-1])))()
        base = ctypes.addressof(buffer)
        pointers = (ctypes.c_void_p * len(params))()
        for i, (offset, data) in enumerate(zip(self.offsets, params, strict=True)):
            ctypes.memmove(base + offset, data, len(data))
            pointers[i] = base + offset
        status = _driver().cuLaunchKernel(
            self.function, *grid, threads, 1, 1, self.compiled.shared_bytes, stream, ctypes.addressof(pointers), 0
        )[0]
        _check(status, f"launch {self.compiled.entry} over {grid} with {threads} threads")


def load(compiled: Compiled, *, sizes: Sequence[int]) -> Kernel:
    """Return `compiled` loaded on the current CUDA device.

    sizes  bytes of each parameter; each lies at a multiple of 64 in the launch's buffer, whatever its alignment

    Raises DeviceError without a GPU, on another SM than the cubin's, or where the driver knows no such SM; PatchError for a
    cubin that is cut off.
    """
    read_cubin(compiled.cubin)
    if not torch.cuda.is_available():
        raise DeviceError(f"{compiled.entry} is compiled for sm_{compiled.sm}, and torch sees no CUDA device to load it on")
    major, minor = torch.cuda.get_device_capability()
    check_sm(compiled, 10 * major + minor)
    torch.cuda.current_stream()  # makes torch's context, in which the module is loaded
    driver = _driver()
    status, module = driver.cuModuleLoadData(compiled.cubin)
    if status == driver.CUresult.CUDA_ERROR_NO_BINARY_FOR_GPU:
        version = driver.cuDriverGetVersion()[1]
        raise DeviceError(
            f"the driver (CUDA {version // 1000}.{version % 1000 // 10}) takes no cubin for sm_{compiled.sm}; update the driver, "
            "or compile with an NVRTC of its own release"
        )
    _check(status, f"load {compiled.entry} for sm_{compiled.sm}")
    status, function = driver.cuModuleGetFunction(module, compiled.entry.encode())
    _check(status, f"find {compiled.entry} in its cubin")
    if compiled.shared_bytes > 0:
        limit = driver.CUfunction_attribute.CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES
        _check(driver.cuFuncSetAttribute(function, limit, compiled.shared_bytes)[0], f"give it {compiled.shared_bytes} bytes")
    offsets, at = [], 0
    for size in sizes:
        offsets.append(at)
        at += -(-size // 64) * 64
    return Kernel(int(function), module, compiled, tuple(offsets))


def check_sm(compiled: Compiled, sm: int) -> None:
    """Raise DeviceError unless a GPU of `sm` runs the cubin."""
    same = compiled.sm == sm if compiled.sm >= EXACT else compiled.sm // 10 == sm // 10 and compiled.sm <= sm
    if not same:
        raise DeviceError(f"{compiled.entry} is compiled for sm_{compiled.sm}, this GPU is sm_{sm}; compile it for sm_{sm}")


def encode_tensor_map(
    pointer: int,
    *,
    bits: int,
    columns: int,
    rows: int,
    stride_bytes: int,
    box_columns: int,
    box_rows: int,
    slots: bool,
    swizzled: bool,
) -> bytes:
    """Return the 128 bytes of a 2-D tensor map; the fields are those of a `TensorMapSpec`."""
    driver = _driver()
    kinds = driver.CUtensorMapDataType
    kind = {
        (8, False): kinds.CU_TENSOR_MAP_DATA_TYPE_UINT8,
        (16, False): kinds.CU_TENSOR_MAP_DATA_TYPE_UINT16,
        (4, True): kinds.CU_TENSOR_MAP_DATA_TYPE_16U4_ALIGN16B,
        (6, True): kinds.CU_TENSOR_MAP_DATA_TYPE_16U6_ALIGN16B,
    }[bits, slots]
    swizzle = driver.CUtensorMapSwizzle
    status, made = driver.cuTensorMapEncodeTiled(
        kind,
        2,
        pointer,
        [driver.cuuint64_t(columns), driver.cuuint64_t(rows)],
        [driver.cuuint64_t(stride_bytes)],
        [driver.cuuint32_t(box_columns), driver.cuuint32_t(box_rows)],
        [driver.cuuint32_t(1), driver.cuuint32_t(1)],
        driver.CUtensorMapInterleave.CU_TENSOR_MAP_INTERLEAVE_NONE,
        swizzle.CU_TENSOR_MAP_SWIZZLE_128B if swizzled else swizzle.CU_TENSOR_MAP_SWIZZLE_NONE,
        driver.CUtensorMapL2promotion.CU_TENSOR_MAP_L2_PROMOTION_L2_256B,
        driver.CUtensorMapFloatOOBfill.CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE,
    )
    _check(status, f"describe {rows} x {columns} codes of {bits} bits, {stride_bytes} bytes a row, to TMA")
    return ctypes.string_at(made.getPtr(), 128)


@functools.cache
def _driver() -> Any:
    try:
        from cuda.bindings import driver
    except ImportError as error:
        raise MissingDependency(f"cuda-bindings, through which CUDA kernels are launched, is missing; {EXTRA}") from error
    return driver


def _check(status: Any, what: str) -> None:
    if status != _driver().CUresult.CUDA_SUCCESS:
        raise CompileError(f"the driver does not {what}: {status.name}")
