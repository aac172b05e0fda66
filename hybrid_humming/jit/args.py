"""GemmArgs: what every GEMM launcher is given."""

from __future__ import annotations

from typing import Any, NamedTuple

import torch

from hybrid_humming.spec import PackLayout, Problem

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
    memo: dict[str, Any]
    block_offset: tuple[int, int] = (0, 0)
