"""Launchers of the Ampere family: the kernels of hopper/stream.py and hopper/dequant_matmul.py, with instructions that SM80 has.

Neither kernel holds an instruction that is newer than SM80 (mma.sync, cp.async) but for what its constants ask of it: the decoder's
PTX (cvt from FP8 is SM89's, sub and mul of bf16 pairs SM90's), scales in e4m3, and the dependent launch, which the catalog refuses.
"""

from hybrid_humming.jit.args import GemmArgs
from hybrid_humming.jit.launch import target_sm
from hybrid_humming.plan import Plan, Tile
from hybrid_humming.triton_kernels.hopper import dequant_matmul, stream
from hybrid_humming.triton_kernels.hopper.decode.decoder import FP8_CONVERTS
from hybrid_humming.triton_kernels.hopper.host import decoder_of
from hybrid_humming.triton_kernels.hopper.scale import BEFORE_FP8, KINDS


def launch_stream(args: GemmArgs, plan: Plan) -> None:
    """Run the stream kernel as `plan` says."""
    stream.launch_with(_stream_constants, args, plan)


def launch_dequant_matmul(args: GemmArgs, plan: Plan) -> None:
    """Dequantize into the workspace, then the vendor's matmul."""
    dequant_matmul.launch_with(_dequant_constants, args, plan)


def _stream_constants(args: GemmArgs, tile: Tile, even: bool) -> dict[str, object]:
    return stream.constants_of(args, tile, even) | _instructions(args)


def _dequant_constants(args: GemmArgs, tile: Tile) -> dict[str, object]:
    return dequant_matmul.constants_of(args, tile) | _instructions(args)


def _instructions(args: GemmArgs) -> dict[str, object]:
    """The constants that depend on the GPU."""
    sm, spec = target_sm(args.x.device), args.problem.spec
    kinds = KINDS if sm >= FP8_CONVERTS else BEFORE_FP8
    return {"DECODER": decoder_of(spec, args.layout, sm), "KIND": kinds[str(spec.scale)]}
