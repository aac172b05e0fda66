"""Launchers of the CUDA kernels: GemmArgs and a plan -> a compilation, tensor maps and parameters -> a launch.

`prepare` and `prepare_small` do all of it but the launch and need no GPU: tests run what they return on the emulator.
"""

from __future__ import annotations

import functools
import struct
from dataclasses import dataclass
from pathlib import Path

import torch

from hybrid_humming.cuda_kernels.sm100.config import REALS, ROWS, GemmConfig
from hybrid_humming.cuda_kernels.sm100.maps import TensorMapSpec, operand_map, scale_map
from hybrid_humming.errors import CompileError, UnsupportedProblem
from hybrid_humming.jit import launch as jit_launch
from hybrid_humming.jit.args import GemmArgs
from hybrid_humming.jit.compile import Compiled
from hybrid_humming.jit.cuda import Kernel, encode_tensor_map, load
from hybrid_humming.jit.launch import target_sm
from hybrid_humming.jit.nvrtc import compile_cuda
from hybrid_humming.kinds import umma_kind
from hybrid_humming.plan import Plan, Tile

FOLDER = Path(__file__).parent
TORCH_REALS = {torch.float32: "fp32", torch.bfloat16: "bf16", torch.float16: "fp16"}
SMALL_WARPS = 8
Tensor = torch.Tensor


@dataclass(frozen=True, eq=False)
class Mapped:
    """A tensor-map parameter: which boxes of which tensor."""

    tensor: Tensor
    spec: TensorMapSpec


Param = Tensor | Mapped | bytes | None
"""A pointer, a tensor map, packed numbers, or a null pointer."""


@dataclass(frozen=True, eq=False)
class Prepared:
    """Everything of one launch. A parameter that is a list is a struct of its parts."""

    compiled: Compiled
    grid: tuple[int, int, int]
    cluster: int
    threads: int
    params: list[Param | list[Param]]

    def sizes(self) -> list[int]:
        """Bytes of each parameter."""
        return [sum(map(_size, p)) if isinstance(p, list) else _size(p) for p in self.params]


def launch(args: GemmArgs, plan: Plan) -> None:
    """Run gemm.cu on the current stream."""
    _launch(args, prepare(args, plan.tile, target_sm(args.x.device), _sm_count(args.x)))


def launch_small(args: GemmArgs, plan: Plan) -> None:
    """Run small_m.cu on the current stream."""
    _launch(args, prepare_small(args, plan.tile, target_sm(args.x.device)))


def config_of(args: GemmArgs, tile: Tile, sm: int) -> GemmConfig:
    """Return what gemm.cu is compiled for."""
    spec = args.problem.spec
    kind, reason = umma_kind(spec, args.layout.encoding)
    if reason:
        raise UnsupportedProblem(f"the UMMA kernel {reason}")
    blocks = kind != "f8f6f4"
    return GemmConfig(
        sm=sm,
        kind=kind,
        w=args.layout.encoding,
        x=spec.activation,
        out=TORCH_REALS[args.out.dtype],
        block_m=tile.block_m,
        ctas=tile.multicast,
        stages=tile.num_stages,
        scale="" if blocks else TORCH_REALS[args.scale.dtype],
        secondary="" if args.secondary_scale is None else "fp32",
        x_scale="" if blocks or args.x_scale is None else TORCH_REALS[args.x_scale.dtype],
        bias="" if args.bias is None else TORCH_REALS[args.bias.dtype],
        x_global=args.x_global_scale is not None,
    )


def prepare(args: GemmArgs, tile: Tile, sm: int, sm_count: int) -> Prepared:
    """Return the launch of gemm.cu for a weight in the umma layout."""
    config = config_of(args, tile, sm)
    spec, layout = args.problem.spec, args.layout
    m, n, k, padded_k = args.x.shape[0], layout.n, layout.k, layout.padded_k
    x = _aligned(args.x.view(torch.uint8))
    row_bytes = padded_k * spec.bits // 8
    w_map = Mapped(args.qweight, operand_map(config, config.w, n, padded_k, row_bytes, ROWS))
    x_map = Mapped(x, operand_map(config, config.x, m, k, x.stride(0), config.block_m // config.ctas))
    scale_columns, scale_maps = 0, [w_map, x_map]  # without block scales nothing is loaded through them
    if config.vector:
        scale_columns = padded_k // config.block // 4
        assert args.x_scale is not None
        tiles = tile_x_scales(args.x_scale, scale_columns)
        scale_maps = [
            Mapped(args.scale, scale_map(config, args.scale.numel() // 512)),
            Mapped(tiles, scale_map(config, tiles.numel() // 512)),
        ]
    x_scale = args.x_scale if config.x_scale else None
    factors: list[Param] = [
        args.scale if config.scale else None, args.secondary_scale, x_scale, args.x_global_scale, args.bias,
        _int(int(args.scale.numel() > 1)), _int(int(args.secondary_scale is not None and args.secondary_scale.numel() > 1)),
        _int(0 if x_scale is None or x_scale.numel() == 1 else x_scale.stride(0)),
    ]  # fmt: skip
    tiles_in_all = -(-m // config.block_m) * -(-n // (ROWS * config.ctas))
    clusters = min(tiles_in_all, max(1, sm_count // config.ctas))
    params: list[Param | list[Param]] = [
        w_map, x_map, *scale_maps, args.out, factors, _int(m), _int(n), _int(-(-k // config.step)), _int(scale_columns),
        _long(args.out.stride(0)),
    ]  # fmt: skip
    return Prepared(compile_gemm(config), (clusters * config.ctas, 1, 1), config.ctas, config.threads, params)


def prepare_small(args: GemmArgs, tile: Tile, sm: int) -> Prepared:
    """Return the launch of small_m.cu for an int4 weight in the portable layout and x in 16 bits."""
    m, n, k, spec = args.x.shape[0], args.layout.n, args.layout.k, args.problem.spec
    tiles = max(1, tile.block_m // 8)
    group = spec.group_size or -(-k // 128) * 128
    if spec.weight != "int4" or group % 128 or args.x.stride(0) % 2 or k % 2:
        raise UnsupportedProblem(
            "small_m.cu multiplies int4 with groups of a multiple of 128, and x of even K and row stride; "
            f"'{spec}' has K={k}, x rows {args.x.stride(0)} apart"
        )
    defines = {
        "WARPS": SMALL_WARPS, "M_TILES": tiles, "X_TYPE": REALS[spec.activation], "SCALE": REALS[TORCH_REALS[args.scale.dtype]],
        "BIAS": 0 if args.bias is None else REALS[TORCH_REALS[args.bias.dtype]], "OUT": REALS[TORCH_REALS[args.out.dtype]],
    }  # fmt: skip
    params: list[Param | list[Param]] = [
        args.qweight, args.x, args.scale, args.bias, args.out, _int(m), _int(n), _int(k), _int(group // 128),
        _long(args.x.stride(0)), _long(args.out.stride(0)),
    ]  # fmt: skip
    compiled = compile_small(sm, tuple(defines.items()))
    return Prepared(compiled, (-(-n // 16), -(-m // (8 * tiles)), 1), 1, 32 * SMALL_WARPS, params)


def tile_x_scales(scale: Tensor, columns: int) -> Tensor:
    """[M, K / block] one-byte scales -> [ceil(M / 128), columns, 32, 16] tiles; the order is that of pack/umma.py."""
    m, have = scale.shape
    data = torch.nn.functional.pad(scale.view(torch.uint8), (0, 4 * columns - have, 0, -m % ROWS))
    return data.view(-1, 4, 32, columns, 4).permute(0, 3, 2, 1, 4).contiguous()


@functools.cache
def compile_gemm(config: GemmConfig) -> Compiled:
    """Return gemm.cu compiled for `config`."""
    path, shared = FOLDER / "gemm.cu", config.shared_bytes
    return compile_cuda(path, "gemm", sm=config.sm, defines=config.defines(), shared_bytes=shared, signature=GEMM_SIGNATURE)


@functools.cache
def compile_small(sm: int, defines: tuple[tuple[str, int], ...]) -> Compiled:
    """Return small_m.cu compiled for `sm`."""
    return compile_cuda(FOLDER / "small_m.cu", "small_m", sm=sm, defines=dict(defines), signature=SMALL_SIGNATURE)


GEMM_SIGNATURE = (
    ("w_map", "tensormap"), ("x_map", "tensormap"), ("w_scale_map", "tensormap"), ("x_scale_map", "tensormap"), ("y", "pointer"),
    ("factors", "struct56"), ("M", "i32"), ("N", "i32"), ("steps", "i32"), ("scale_columns", "i32"), ("y_stride", "i64"),
)  # fmt: skip
SMALL_SIGNATURE = (
    ("w", "pointer"), ("x", "pointer"), ("scale", "pointer"), ("bias", "pointer"), ("y", "pointer"), ("M", "i32"), ("N", "i32"),
    ("K", "i32"), ("blocks_of_group", "i32"), ("x_stride", "i64"), ("y_stride", "i64"),
)  # fmt: skip
_loaded: dict[tuple[str, int], Kernel] = {}


def _launch(args: GemmArgs, prepared: Prepared) -> None:
    if jit_launch.offline is not None:
        jit_launch.offline[1].append(prepared.compiled)
        return
    stream = torch.cuda.current_stream(args.x.device)
    kernel = _loaded.get((prepared.compiled.key, args.x.device.index))
    if kernel is None:
        if torch.cuda.is_current_stream_capturing():
            raise CompileError(
                f"{prepared.compiled.entry} is not loaded for this problem yet and a CUDA graph is being captured; "
                "run the same call once before the capture"
            )
        kernel = load(prepared.compiled, sizes=prepared.sizes())
        _loaded[prepared.compiled.key, args.x.device.index] = kernel
    params = [b"".join(map(_encoded, p)) if isinstance(p, list) else _encoded(p) for p in prepared.params]
    kernel.launch(grid=prepared.grid, threads=prepared.threads, params=params, stream=stream.cuda_stream)


def _encoded(param: Param) -> bytes:
    if isinstance(param, Mapped):
        return _encoded_map(param.tensor.data_ptr(), param.spec)
    if isinstance(param, bytes):
        return param
    return struct.pack("<Q", 0 if param is None else param.data_ptr())


@functools.lru_cache(maxsize=4096)
def _encoded_map(pointer: int, spec: TensorMapSpec) -> bytes:
    return encode_tensor_map(pointer, **vars(spec))


def _size(param: Param) -> int:
    return 128 if isinstance(param, Mapped) else len(param) if isinstance(param, bytes) else 8


def _aligned(x: Tensor) -> Tensor:
    """Return x, or a copy whose address and row stride are multiples of 32 bytes, as TMA needs them."""
    if x.data_ptr() % 32 == 0 and x.stride(0) % 32 == 0:
        return x
    wide = x.new_zeros(x.shape[0], -(-x.shape[1] // 32) * 32)
    wide[:, : x.shape[1]] = x
    return wide[:, : x.shape[1]]


def _int(value: int) -> bytes:
    return struct.pack("<i", value)


def _long(value: int) -> bytes:
    return struct.pack("<q", value)


@functools.cache
def _count(index: int) -> int:
    return int(torch.cuda.get_device_properties(index).multi_processor_count)


def _sm_count(x: Tensor) -> int:
    if jit_launch.offline is not None:
        return 1  # nothing is launched
    return _count(x.device.index)


__all__ = ["Mapped", "Prepared", "compile_gemm", "launch", "launch_small", "prepare", "prepare_small", "tile_x_scales"]
