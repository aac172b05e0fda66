"""GemmArgs: what every GEMM launcher is given. InputArgs: what every input quantizer is given."""

from __future__ import annotations

from typing import Any, NamedTuple

import torch

from hybrid_humming.spec import PackLayout, Problem, Spec

Tensor = torch.Tensor


class GemmArgs(NamedTuple):
    """Tensors of one GEMM, checked and on one device.

    x               [M, K] unit stride along K; float, or quantized storage when the spec quantizes activations; M >= 1
    qweight, scale, zero_point, secondary_scale   as the layout's packer wrote them
    x_scale         [M, 1] | [M, K/G] | [1]; any strides (an M-major scale is a transposed view)
    x_global_scale  [1] fp32
    bias            [N]
    out             [M, N] unit stride along N; every element is written
    workspace       uint8 [at least plan.workspace_bytes], uninitialised; None if the plan needs none
    problem, layout what is computed, and the order of the packed bytes
    memo            a dict that lives as long as the prepared problem and is given again to every call of the same specialisation
                    (alignments and strides): a launcher keeps there what it need not work out twice
    block_offset    (n, k) of the weight inside its block grid; (0, 0) but for shards of block-scaled weights
    x_zero_point    int32 [M], the code of x that means 0; only beside int8 x without scales along K, and only where a kernel says
                    that it takes one
    """

    x: Tensor
    qweight: Tensor
    scale: Tensor
    zero_point: Tensor | None
    secondary_scale: Tensor | None
    x_scale: Tensor | None
    x_global_scale: Tensor | None
    bias: Tensor | None
    out: Tensor
    workspace: Tensor | None
    problem: Problem
    layout: PackLayout
    memo: dict[Any, Any]
    block_offset: tuple[int, int] = (0, 0)
    x_zero_point: Tensor | None = None


class InputArgs(NamedTuple):
    """One quantization of x, checked and on one device; M >= 1 and K >= 1.

    x             [T, K], or [T, 2K] before an activation; bf16, fp16 or fp32, unit stride along K
    values        [M, K], or [M, K/2] for codes of four bits, contiguous: written, in the storage of the format `stored`
    scale         [M, 1] | [M, K/G] | [1], any strides; with `packed` int32 [M, ceil(K/(4G))] with unit stride along M, four e8m0
                  scales a word, the first in the low byte. Written, with the rows that fill 16 bytes of an M-major one
    global_scale  [1] fp32 to write, or None
    input_scale   [1] fp32: a static scale (of the tensor, or the second one), or None
    rows          [M] int32 or int64: the row of x that each row is made from, one outside x stands for zeros; None: M = T
    pre_quant_scale, permutation   [K], as InputTransform's; hadamard: its block, or 0
    stored        name of the spec's activation format, or of one that holds its values and is stored in its place: int8, e4m3
    activation    "", or one of reference.prologue.ACTIVATIONS;  limit: of its clamp, 0 for none
    """

    x: Tensor
    values: Tensor
    scale: Tensor
    global_scale: Tensor | None
    input_scale: Tensor | None
    rows: Tensor | None
    pre_quant_scale: Tensor | None
    permutation: Tensor | None
    hadamard: int
    activation: str
    limit: float
    packed: bool
    spec: Spec
    stored: str
