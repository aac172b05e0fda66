"""The input quantization kernels as data. Imports no Triton."""

from hybrid_humming.plan import QuantizerEntry
from hybrid_humming.spec import Spec

LONGEST_BLOCK = 1024  # Hadamard blocks beyond it leave too few registers


def fuses(spec: Spec, k: int, hadamard: int, permuted: bool) -> bool:
    """Whether the kernel itself can do this Hadamard transform; otherwise it is done before, in torch."""
    if not hadamard:
        return True
    group = spec.activation_group_size
    return not permuted and hadamard <= LONGEST_BLOCK and (group is None or group & (group - 1) == 0 or group % hadamard == 0)


def launches(spec: Spec, static: bool) -> int:
    """One pass over x; one more where a scale that is not given spans the tensor."""
    return 1 if static or (spec.activation_granularity != "tensor" and not spec.activation_secondary) else 2


QUANTIZER = QuantizerEntry(
    name="triton.quantize_input",
    launcher="hybrid_humming.triton_kernels.quantize.launch:quantize",
    device="cuda",
    launches=launches,
    fuses=fuses,
    status="compiled, not run",
)
