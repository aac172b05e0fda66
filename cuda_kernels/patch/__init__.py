"""Hidden tensor-core types, set on machine code that was built with a legal type of the same width.

    float8 e3m4   as e5m2: QMMA (sm_120, sm_121), tcgen05 kinds f8f6f4 and mxf8f6f4 (sm_100, sm_103)
    float4 e0m3   as e2m1: OMMA with one scale for 16 values, tcgen05 kind mxf4nvf4 with block16

`fields.py` has the bits, `cubin.py` edits SASS, `descriptor.py` and `ptx.py` the instruction descriptor of tcgen05,
`available.py` says where the types exist. Every editor counts what it finds and refuses when that is not what was promised.
"""

from hybrid_humming.cuda_kernels.patch.available import hidden_reason
from hybrid_humming.cuda_kernels.patch.cubin import count_edits, patch_cubin
from hybrid_humming.cuda_kernels.patch.descriptor import InstructionDescriptor
from hybrid_humming.cuda_kernels.patch.fields import EDITS, BitField, SassEdit
from hybrid_humming.cuda_kernels.patch.ptx import patch_ptx, read_descriptors

__all__ = [
    "EDITS",
    "BitField",
    "InstructionDescriptor",
    "SassEdit",
    "count_edits",
    "hidden_reason",
    "patch_cubin",
    "patch_ptx",
    "read_descriptors",
]
