"""A `Prepared` launch of CPU tensors on the emulator: the kernel's own PTX, the host's own tensor maps and parameters."""

import ctypes
import dataclasses

import numpy as np
import torch

from hybrid_humming.cuda_kernels.sm100.launch import Mapped, Param, Prepared
from tests.emulation.machine import Pointer, run
from tests.emulation.memory import Map


def run_prepared(prepared: Prepared, *, ptx: str = "", seed: int = 0) -> dict[str, int]:
    """Run the launch; outputs are written in place. `ptx` stands in for the compilation's own."""
    seen: dict[int, Pointer] = {}
    params = [[_param(part, seen) for part in p] if isinstance(p, list) else _param(p, seen) for p in prepared.params]
    text = ptx or prepared.compiled.asm["ptx"]
    return run(text, params, grid=prepared.grid[:2], cluster=prepared.cluster, threads=prepared.threads, seed=seed)


def bytes_of(tensor: torch.Tensor) -> np.ndarray:
    """Return the tensor's memory from its first element to the end of its storage, uint8, shared."""
    length = tensor.untyped_storage().nbytes() - tensor.storage_offset() * tensor.element_size()
    return np.ctypeslib.as_array((ctypes.c_uint8 * length).from_address(tensor.data_ptr()))


def _param(param: Param, seen: dict[int, Pointer]):
    if isinstance(param, Mapped):
        return Map(bytes_of(param.tensor), **dataclasses.asdict(param.spec))
    if isinstance(param, bytes):
        return param
    if param is None:
        return bytes(8)
    return seen.setdefault(param.data_ptr(), Pointer(bytes_of(param)))
