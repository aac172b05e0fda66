"""The Ampere layout holds the bytes of the Hopper layout under a family of its own, and gives every code back."""

import torch

from hybrid_humming import pack as packing
from hybrid_humming.spec import PackLayout, Spec
from hybrid_humming.weight import Facts
from tests.kernels.problems import weight_of


def test_bytes_are_hoppers_and_come_back():
    for line in ("int4 g128 x bf16", "uint3 g64 zp x fp16", "e4m3 b128x128 x bf16", "nvfp4 x bf16"):
        weight = weight_of(Spec.parse(line), 192, 256)
        packed = {
            f: packing.pack(weight, packing.make_layout(f, weight.spec, 192, 256, facts=Facts())) for f in ("hopper", "ampere")
        }
        assert torch.equal(packed["ampere"].qweight, packed["hopper"].qweight)
        assert packed["ampere"].layout.family == "ampere"
        assert PackLayout.parse(str(packed["ampere"].layout)) == packed["ampere"].layout
        back = packing.unpack(packed["ampere"])
        assert torch.equal(back.codes, weight.codes) and torch.equal(back.scale.view(torch.uint8), weight.scale.view(torch.uint8))
