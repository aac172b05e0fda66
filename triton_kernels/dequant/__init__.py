"""Decoders: unsigned codes -> exact values, one small device function a kind of format.

A decoder is `decode(codes, DTYPE, EXPONENT, MANTISSA) -> tile of DTYPE`, where `codes` is an int32 tile and DTYPE holds every
value of the format exactly. Register it, and every kernel that takes a decoder can use it:

    @decoder(lambda fmt: fmt.name == "e1m2")
    @triton.jit
    def decode_e1m2(codes, DTYPE: tl.constexpr, EXPONENT: tl.constexpr, MANTISSA: tl.constexpr): ...
"""

from collections.abc import Callable
from typing import Any, NamedTuple

from hybrid_humming.dtypes import ElementFormat
from hybrid_humming.errors import UnsupportedProblem


class Decoder(NamedTuple):
    """A device function and its two constants for one format (for integers, EXPONENT is 0 and MANTISSA the bits).

    offset  where every value is code - offset: a kernel may then take codes out of their words by a cheaper way of its own
    """

    function: Any
    exponent: int
    mantissa: int
    offset: int | None = None


_decoders: list[tuple[Callable[[ElementFormat], bool], Any, Callable[[ElementFormat], int] | None]] = []


def decoder(accepts: Callable[[ElementFormat], bool], offset: Callable[[ElementFormat], int] | None = None) -> Callable[[Any], Any]:
    """Register a device function for the formats that `accepts`; the latest registered one that accepts wins."""

    def register(function: Any) -> Any:
        _decoders.insert(0, (accepts, function, offset))
        return function

    return register


def decoder_of(fmt: ElementFormat) -> Decoder:
    """Return the decoder of `fmt`; raises UnsupportedProblem when no registered function takes it."""
    from hybrid_humming.triton_kernels.dequant import floats, integers  # noqa: F401  (they register themselves)

    for accepts, function, offset in _decoders:
        if accepts(fmt):
            mantissa = fmt.bits if fmt.is_integer else fmt.mantissa_bits
            return Decoder(function, fmt.exponent_bits, mantissa, None if offset is None else offset(fmt))
    raise UnsupportedProblem(f"no decoder for {fmt}; register one with hybrid_humming.triton_kernels.dequant.decoder")
