"""Packing loses nothing: unpack(pack(w)) == w, for every format and ragged shape."""

from unittest import mock

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.utils._python_dispatch import TorchDispatchMode

import hybrid_humming as hh
from hybrid_humming.errors import LayoutError
from hybrid_humming.pack import portable

FORMATS = [f"int{b}" for b in range(1, 9)] + ["e0m1", "e2m1", "e3m2", "e2m3", "e4m3", "e5m2", "e3m4", "e1m3"]


def canonical(fmt, n, k, experts=0, seed=0, zero=None):
    gen = torch.Generator().manual_seed(seed)
    lead = (experts,) if experts else ()
    line = f"{fmt} channel x bf16" if zero is None else f"{fmt} channel zp x bf16"
    spec = hh.Spec.parse(line)
    return hh.CanonicalWeight(
        spec=spec,
        codes=torch.randint(0, 2**spec.bits, (*lead, n, k), generator=gen, dtype=torch.uint8),
        scale=torch.rand(*lead, n, 1, generator=gen).bfloat16(),
        zero_point=None if zero is None else torch.randint(0, 2**spec.bits, (*lead, n, 1), generator=gen, dtype=torch.uint8),
    )


@settings(max_examples=120, deadline=None)
@given(
    fmt=st.sampled_from(FORMATS), n=st.integers(1, 70), k=st.integers(1, 700), experts=st.sampled_from([0, 0, 1, 3]),
    seed=st.integers(0, 1000), chunk=st.sampled_from([1, 3000, portable.CHUNK]),
)  # fmt: skip
def test_unpack_is_the_inverse_of_pack(fmt, n, k, experts, seed, chunk):
    weight = canonical(fmt, n, k, experts, seed)
    with mock.patch.object(portable, "CHUNK", chunk):
        packed = hh.pack_weight(weight)
        back = hh.unpack_weight(packed)
    assert torch.equal(back.codes, weight.codes) and torch.equal(back.scale, weight.scale)
    assert packed.shape == ((experts, n, k) if experts else (n, k))


def test_zero_points_and_the_small_tensors_survive():
    weight = canonical("uint3", 24, 100, zero=True).replace(
        input_scale=torch.ones(1), transform=hh.InputTransform(permutation=torch.randperm(100).int())
    )
    back = hh.unpack_weight(hh.pack_weight(weight))
    assert torch.equal(back.zero_point, weight.zero_point)
    assert back.input_scale is weight.input_scale and back.transform is weight.transform


@pytest.mark.parametrize("bits", range(1, 9))
def test_no_width_is_padded_to_the_next_power_of_two(bits):
    layout = hh.choose_layout(f"int{bits} channel x bf16", 64, 512, "cpu")
    packed = hh.pack_weight(canonical(f"int{bits}", 64, 512))
    assert packed.qweight.numel() * 32 == 64 * 512 * bits and packed.layout == layout


def test_the_words_are_those_of_the_documentation():
    """word[(s // f) * 16 + r, n] bits [p * (s % f), p) = code[n, 16 s + r]."""
    weight = canonical("int4", 3, 256)
    words = hh.pack_weight(weight).qweight.long() & 0xFFFFFFFF
    for k in (0, 1, 15, 16, 127, 128, 255):
        s, r = k // 16, k % 16
        assert torch.equal((words[(s // 8) * 16 + r] >> (4 * (s % 8))) & 15, weight.codes[:, k].long())
    weight = canonical("int7", 3, 512)
    words = hh.pack_weight(weight).qweight.long() & 0xFFFFFFFF
    rows = portable.plane_rows(7, 512)
    assert rows == (64, 32, 16)
    for k in (0, 17, 300, 511):
        s, r, code = k // 16, k % 16, 0
        for first, width, shift in ((0, 4, 0), (64, 2, 4), (96, 1, 6)):
            f = 32 // width
            code = code | ((words[first + (s // f) * 16 + r] >> (width * (s % f))) & (2**width - 1)) << shift
        assert torch.equal(code, weight.codes[:, k].long())


def test_packed_bytes_of_another_version_are_refused():
    packed = hh.pack_weight(canonical("int4", 8, 64))
    import dataclasses

    other = packed.replace(layout=dataclasses.replace(packed.layout, version=9))
    with pytest.raises(LayoutError, match=r"portable version 9: this version of hybrid_humming reads version 1"):
        hh.unpack_weight(other)
    with pytest.raises(LayoutError, match=r"unknown layout family 'nothing'"):
        hh.unpack_weight(packed.replace(layout=dataclasses.replace(packed.layout, family="nothing")))


def test_a_layout_for_another_weight_is_refused():
    from hybrid_humming.pack import pack

    weight = canonical("int4", 8, 64)
    with pytest.raises(LayoutError, match=r"is for \[0, 16, 64\], but the weight is \[0, 8, 64\]"):
        pack(weight, hh.choose_layout("int4 channel x bf16", 16, 64, "cpu"))


class LargestResult(TorchDispatchMode):
    """Keeps the sizes of what each op returned, in bytes."""

    def __init__(self):
        super().__init__()
        self.sizes = []

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        result = func(*args, **(kwargs or {}))
        if isinstance(result, torch.Tensor) and result._base is None:
            self.sizes.append(result.numel() * result.element_size())
        return result


@pytest.mark.parametrize("bits", [3, 8])
def test_packing_copies_no_whole_weight(bits):
    """Of a weight larger than a chunk, only the result itself is as large; every step works on some rows."""
    weight = canonical(f"int{bits}", 1024, 2048)
    with LargestResult() as seen:
        packed = hh.pack_weight(weight, layout="portable")
    whole = packed.qweight.numel() * 4
    assert [size for size in seen.sizes if size > 4 * portable.CHUNK] in ([], [whole])
    with LargestResult() as seen:
        hh.unpack_weight(packed)
    assert [size for size in seen.sizes if size > 4 * portable.CHUNK] == [weight.codes.numel()]


@pytest.mark.parametrize("bits", [1, 4, 5])
def test_codes_may_lie_anywhere(bits):
    codes = canonical(f"int{bits}", 40, 512).codes
    odd = torch.zeros(40 * 512 + 3, dtype=torch.uint8)[3:].view(40, 512).copy_(codes)
    want = hh.pack_weight(canonical(f"int{bits}", 40, 512)).qweight
    for same in (odd, codes.T.contiguous().T, torch.stack([codes, codes])[1]):
        weight = canonical(f"int{bits}", 40, 512).replace(codes=same)
        assert torch.equal(hh.pack_weight(weight).qweight, want)
