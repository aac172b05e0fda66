"""Edge values and shapes that public fault reports name, through hh.gemm on any device: run on the CPU and on a GPU alike."""

import torch

import hybrid_humming as hh

from .cases import Case

Tensor = torch.Tensor
MANY_MS = (1, 2, 3, 5, 7, 8, 9, 15, 16, 17, 31, 33, 63, 64, 65, 127, 129, 257)


def poisoned(x: Tensor, qweight: hh.QWeight, dtype: torch.dtype = torch.bfloat16, **kwargs) -> Tensor:
    """y of a call whose output was NaN before."""
    out = torch.full((x.shape[0], qweight.n), float("nan"), dtype=dtype, device=x.device)
    return hh.gemm(x, qweight, out=out, **kwargs)


def scale_bytes_of_e8m0(device: str, m: int) -> None:
    """Codes 0, 1, 2, 126 .. 128, 253, 254 and 255 are 2**(code - 127) and NaN, in their own group alone."""
    codes = (0, 1, 2, 126, 127, 128, 253, 254, 255)
    weight = hh.unpack_weight(hh.quantize(torch.ones(16, 128), "mxfp4 x bf16 -> fp32"))
    scale = torch.full((16, 4), 127, dtype=torch.uint8)
    scale[: len(codes), 1] = torch.tensor(codes, dtype=torch.uint8)
    weight = weight.replace(codes=torch.full_like(weight.codes, 2), scale=scale.view(torch.float8_e8m0fnu))  # 1.0 everywhere
    qweight = hh.pack_weight(weight.to(device))
    x = torch.zeros(m, 128, dtype=torch.bfloat16, device=device)
    x[:, 32] = 2.0**-4  # of the second group alone
    y = poisoned(x, qweight, torch.float32)
    want = torch.tensor([2.0 ** (code - 127 - 4) for code in codes[:-1]], dtype=torch.float64)
    # 2**-131 and 2**-130 are below fp32's normal range; a multiplication may flush them, as torch's does on some devices.
    normal = want >= 2.0**-126
    got = y[:, : len(codes) - 1].double().cpu()
    assert torch.equal(got[:, normal], want[normal].expand(m, -1)) and (got[:, ~normal] <= 2.0**-126).all(), got[0]
    assert y[:, 8].isnan().all() and torch.equal(y[:, 9:], torch.full_like(y[:, 9:], 2.0**-4))


def smallest_e8m0_scale_times_large_values(device: str, m: int) -> None:
    """128 products of 2**112, 256 and 2**-127 sum to 1, not to 0."""
    weight = hh.CanonicalWeight(
        spec=hh.Spec.parse("mxfp8 x bf16 -> fp32"), codes=torch.full((16, 128), 0x78, dtype=torch.uint8),
        scale=torch.zeros(16, 4, dtype=torch.uint8).view(torch.float8_e8m0fnu),
    )  # fmt: skip
    x = torch.full((m, 128), 2.0**112, dtype=torch.bfloat16, device=device)
    assert torch.equal(poisoned(x, hh.pack_weight(weight.to(device)), torch.float32).cpu(), torch.ones(m, 16))


def fp16_sums_beyond_the_fp16_range(device: str, m: int) -> None:
    """Partial sums of 8 * 7 over 4096 columns pass 65504 by far; the whole sum is 0."""
    weight = torch.full((16, 8192), 7.0)
    weight[:, 4096:] = -7.0
    for line in ("int4 channel x fp16", "int4 g128 x fp16", "uint4 g64 zp x fp16"):
        qweight = hh.quantize(weight.to(device), line)
        scaled = hh.dequantize(qweight, torch.float64)
        x = torch.full((m, 8192), 8.0, dtype=torch.float16, device=device)
        y = poisoned(x, qweight, torch.float16)
        assert torch.allclose(y.double(), x.double() @ scaled.T, atol=0.5), line


def every_group_size_counts(device: str, m: int) -> None:
    """The same codes with scales of another group size give another result, each right."""
    seen = []
    for group in (16, 32, 64, 128, 256, 512):
        case = Case(f"int4 g{group} x bf16", m, 72, 512, device=device)
        y = poisoned(case.x, case.qweight)
        assert case.holds(y), f"group {group}: {case.error(y):.3e}, torch {case.torch_err:.3e}"
        seen.append(y)
    assert all(not torch.equal(a, b) for i, a in enumerate(seen) for b in seen[:i])


def every_m_with_one_warm_cache(device: str, line: str) -> None:
    """M up and down again, with one weight: a plan or a kernel of one M is never used where it does not fit."""
    case = Case(line, max(MANY_MS), 200, 384, device=device)
    x, exact = case.x, case.exact
    first = {}
    for m in (*MANY_MS, *reversed(MANY_MS)):
        y = poisoned(x[:m], case.qweight, torch.float16 if "fp16" in line else torch.bfloat16)
        error, norm = (y.double() - exact[:m]).norm(), exact[:m].norm()
        assert error <= 0.01 * norm, f"M={m}: {error / norm:.3e}"
        assert torch.equal(y, first.setdefault(m, y)), f"M={m}: another result the second time"


def columns_beside_a_tiles_edge(device: str, ms: tuple[int, ...] = (31, 32, 33, 48, 64)) -> None:
    """More than 32 rows, N of 128 to 384: the columns 120 to 136 by themselves."""
    for n in (128, 256, 384):
        for m in ms:
            case = Case("uint4 g128 zp x bf16", m, n, 384, device=device)
            y, edge = poisoned(case.x, case.qweight), slice(120, 136)
            error = (y[:, edge].double() - case.exact[:, edge]).norm()
            assert error <= 0.006 * case.exact[:, edge].norm(), f"N={n} M={m}"
