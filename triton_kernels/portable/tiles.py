"""What the portable kernels' tiles may be, shared by the catalog and the launchers; imports no Triton."""

from hybrid_humming.device import DeviceInfo
from hybrid_humming.dtypes import parse_format
from hybrid_humming.plan import Tile
from hybrid_humming.spec import Problem, Spec

ROW, TILE, GATHER, IN_EPILOGUE = 0, 1, 2, 3
# Under Triton 3.6.0 an operand that was loaded as bytes takes 8 neighbouring k a thread: a shorter product sums wrongly.
LEAST_BLOCK_K = 32


def scale_mode(spec: Spec, block_k: int, block_offset: tuple[int, int] = (0, 0)) -> tuple[int, int]:
    """Return how the scale and the zero point of a [block_k, block_n] tile are found (see scale/tile.py).

    A float zero point is subtracted in fp32 and the difference scaled before it is rounded, so its scale is never ROW.
    """
    extent = spec.block[1] if spec.block else spec.group_size
    offset = block_offset[1] % spec.block[1] if spec.block else 0
    if extent is None:
        found = ROW
    elif extent % block_k == 0 and offset % block_k == 0:
        found = ROW
    elif not spec.block and extent & (extent - 1) == 0 and block_k % extent == 0:
        found = TILE
    else:
        found = GATHER
    if spec.zero_point not in (None, "int"):
        return (GATHER if found == ROW else found), found
    return (IN_EPILOGUE if extent is None else found), found


def operand(problem: Problem, device: DeviceInfo) -> str:
    """Return the format of the product's operands: one that holds every code of both sides exactly."""
    spec = problem.spec
    narrow = [f for f in (spec.weight_format, spec.activation_format) if not f.is_wide]
    fits_fp16 = all(f.largest <= 65504 for f in narrow)
    for fmt in (spec.activation,) if spec.activation_format.is_wide else ("bf16", "fp16"):
        if device.multiplies(fmt) and (fmt == "bf16" or fits_fp16):
            return fmt
    return "fp32"


def prescales_x(spec: Spec) -> bool:
    """Return whether a group's activation scale times its code is exact in 16 bits, so that x may be scaled before the product.

    NVFP4: two significant bits times four, at most 6 * 448.
    """
    if spec.activation_group_size is None or spec.activation_scale != "e4m3":
        return False
    fmt, scale = spec.activation_format, parse_format("e4m3")
    significant = fmt.bits if fmt.is_integer else fmt.mantissa_bits + 1
    return significant + scale.mantissa_bits + 1 <= 8 and fmt.largest * scale.largest <= 65504


def secondary_on_weights(spec: Spec, block_k: int, operand: str) -> bool:
    """Return whether the secondary scale multiplies the weights before they are rounded to `operand`.

    Usually the sum is what it multiplies. But a weight that is scaled before the product (its scale is finer than a block, or
    its zero point a float) may leave fp16's range while the secondary scale is missing.
    """
    if operand != "fp16" or spec.secondary is None or scale_mode(spec, block_k)[0] not in (TILE, GATHER):
        return False
    return spec.weight_format.largest * spec.scale_format.largest > 65504


def block_k_limit(spec: Spec) -> int:
    """Return the largest block_k: a group of activations, and the scales beside it, must cover a whole block."""
    if spec.activation_group_size is None or prescales_x(spec):
        return 256
    limit = spec.activation_group_size & -spec.activation_group_size
    extent = spec.block[1] if spec.block else spec.group_size
    if extent:
        limit = min(limit, extent & -extent)
    return limit


def shared_bytes(tile: Tile, operand_bytes: int, weight_bits: int) -> int:
    """Return an upper estimate of the shared memory of a tile: staged x and words, and the decoded W operand."""
    staged = tile.block_m * tile.block_k * operand_bytes + tile.block_k * tile.block_n * weight_bits // 8
    return tile.num_stages * staged + tile.block_k * tile.block_n * operand_bytes
