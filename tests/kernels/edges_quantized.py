"""Edge values and shapes that public fault reports name, with activations of 8 bits and fewer: on the CPU and on a GPU."""

import torch

import hybrid_humming as hh
from hybrid_humming.reference import QuantizedInput, dequantize_input

from .edges import poisoned

Tensor = torch.Tensor
EVERY = (
    "e4m3 channel x e4m3 token", "int8 channel x int8 token", "e4m3 b128x128 x e4m3 g128", "e4m3 tensor x e4m3 tensor",
    "mxfp8 x mxfp8", "mxfp4 x mxfp4", "nvfp4 x nvfp4", "int4 channel x int4 token",
)  # fmt: skip
PER_ROW = tuple(line for line in EVERY if "tensor" not in line and line != "nvfp4 x nvfp4")


def sample(*shape: int, device: str = "cpu", dtype: torch.dtype = torch.bfloat16) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(sum(shape))).to(device, dtype)


def weight_of(line: str, device: str, n: int = 72, k: int = 384) -> hh.QWeight:
    return hh.quantize(sample(n, k, dtype=torch.float32).to(device), line)


def on_cpu(made: QuantizedInput) -> QuantizedInput:
    return QuantizedInput(*(t if t is None else t.cpu() for t in made))


def bits(tensor: Tensor) -> Tensor:
    return tensor.cpu().contiguous().view(torch.uint8)


def holds(y: Tensor, x: Tensor, qweight: hh.QWeight) -> bool:
    """y is the product of the quantized x, within twice the rounding of 16 bits."""
    made = on_cpu(hh.quantize_input(x, qweight))
    truth = dequantize_input(made, qweight.spec, torch.float64) @ hh.dequantize(qweight, torch.float64).cpu().T
    return bool((y.double().cpu() - truth).norm() <= 6e-3 * truth.norm())


def every_group_size_counts(device: str, m: int) -> None:
    """The same codes with scales of another group size give another result, each right: of W and of x."""
    for lines in (
        [f"int4 g{g} x {a} token" for a in ("e4m3", "int8") for g in (16, 32, 64, 128, 256, 512)],
        [f"e4m3 channel x e4m3 g{g}" for g in (32, 64, 128, 256, 512)], [f"int4 channel x int8 g{g}" for g in (32, 64, 128)],
    ):  # fmt: skip
        x, seen = sample(m, 512, device=device) * torch.linspace(0.1, 9, 512, device=device), []
        x = x.bfloat16()
        for line in lines:
            qweight = weight_of(line, device, k=512)
            y = poisoned(x, qweight)
            assert holds(y, x, qweight), line
            seen.append(y)
        assert all(not torch.equal(a, b) for i, a in enumerate(seen) for b in seen[:i])


def batches_that_no_block_of_rows_divides(device: str, m: int) -> None:
    """Scales of x [3, M, K] lie as those of x [3 M, K] in each layout; K / G is no multiple of 4."""
    x = sample(3, m, 352, device=device)
    for line, layouts in (
        ("nvfp4 x nvfp4", ("row_major", "m_major")), ("mxfp8 x mxfp8", ("row_major", "m_major", "packed")),
        ("mxfp4 x mxfp4", ("packed",)),
    ):  # fmt: skip
        qweight, want = weight_of(line, device, k=352), None
        for layout in layouts:
            made, flat = (hh.quantize_input(t, qweight, scale_layout=layout) for t in (x, x.reshape(-1, 352)))
            assert torch.equal(bits(made.scale), bits(flat.scale))
            assert torch.equal(bits(made.values).flatten(), bits(flat.values).flatten())
            y = poisoned(flat.values, qweight, x_scale=flat.scale, x_global_scale=flat.global_scale)
            batched = hh.gemm(made.values, qweight, x_scale=made.scale, x_global_scale=made.global_scale)
            assert torch.equal(batched.reshape(y.shape), y) and holds(y, x.reshape(-1, 352), qweight), (line, layout)
            want = y if want is None else want
            assert torch.equal(y, want), (line, layout)


def zero_points_count_beside_every_activation(device: str, m: int) -> None:
    """W with zero point 3 everywhere is not what it is with none, whatever x is quantized to."""
    for activation in ("bf16", "e4m3 token", "int8 token", "int8 g128", "e4m3 g128", "mxfp8", "int4 token", "nvfp4"):
        spec = hh.Spec.parse(f"uint4 g128 zp x {activation}")
        codes = torch.randint(0, 16, (72, 384), generator=torch.Generator().manual_seed(1), dtype=torch.uint8)
        scale = torch.full((72, 3), 0.125).to(spec.scale_format.torch_storage)
        zeros = (torch.full((72, 3), zero, dtype=torch.uint8) for zero in (3, 0))
        weights = (hh.CanonicalWeight(spec=spec, codes=codes, scale=scale, zero_point=zero) for zero in zeros)
        made = [hh.pack_weight(weight.to(device)) for weight in weights]
        x = sample(m, 384, device=device) + 1
        x = x.bfloat16()
        with_zero, without = (poisoned(x, qweight) for qweight in made)
        shift = with_zero.double() - without.double()
        if activation == "bf16":
            real = x.double()
        else:
            real = dequantize_input(on_cpu(hh.quantize_input(x, spec)), spec, torch.float64).to(device)
        want = -3 * 0.125 * real.sum(1, keepdim=True)
        assert (shift - want).norm() <= 0.02 * want.norm() * 72**0.5, activation


def scale_bytes_of_e8m0(device: str, m: int) -> None:
    """Scales of x of 2**-127 to 2**127 are those, 255 is NaN in its own row alone; 128 products sum to 1, not to 0."""
    codes = torch.tensor([0, 1, 2, 126, 127, 128, 253, 254, 255], dtype=torch.uint8)
    canonical = hh.unpack_weight(hh.quantize(torch.ones(16, 128), "mxfp8 x mxfp8 -> fp32"))
    one = torch.full((16, 128), 0x38, dtype=torch.uint8)  # 1.0
    for weight_exponent, x_code, columns in ((127, 0x38, slice(32, 33)), (112 + 127, 0x78, slice(0, 128))):
        scale = torch.full((16, 4), weight_exponent, dtype=torch.uint8).view(torch.float8_e8m0fnu)
        qweight = hh.pack_weight(canonical.replace(codes=one, scale=scale).to(device))
        values = torch.zeros(len(codes), 128, dtype=torch.uint8)
        values[:, columns] = x_code
        x_scale = torch.full((len(codes), 4), 127, dtype=torch.uint8)
        x_scale[:, :] = codes[:, None] if columns.stop == 128 else 127
        x_scale[:, 1] = codes
        made = values.view(torch.float8_e4m3fn).to(device), x_scale.view(torch.float8_e8m0fnu).to(device)
        y = poisoned(made[0], qweight, torch.float32, x_scale=made[1]).double().cpu()
        if columns.stop == 128:
            assert torch.equal(y[0], torch.ones(16, dtype=torch.float64)), y[0]
        else:
            want = 2.0 ** (codes[:8].double() - 127)
            normal = want >= 2.0**-126
            assert torch.equal(y[:8][normal], want[normal][:, None].expand(-1, 16)) and (y[:8][~normal] <= 2.0**-126).all()
        assert y[8].isnan().all() and not y[:7].isnan().any()


def every_e4m3_scale_of_nvfp4_inputs(device: str, m: int) -> None:
    """All 256 bytes as group scales of x: subnormals and signs decoded, 0x7f and 0xff NaN in their own row alone."""
    codes = torch.arange(256, dtype=torch.uint8)
    real = codes.view(torch.float8_e4m3fn).double()
    qweight = hh.quantize(torch.ones(16, 32, device=device), "nvfp4 x nvfp4 -> fp32")
    weight = hh.dequantize(qweight, torch.float64)[0, 0].item()
    values = torch.zeros(256, 16, dtype=torch.uint8)
    values[:, 0] = 2  # 1.0 in the first channel
    scale = torch.zeros(256, 2, dtype=torch.uint8)
    scale[:, 0] = codes
    scale = scale.view(torch.float8_e4m3fn).to(device)
    y = (
        poisoned(values.to(device), qweight, torch.float32, x_scale=scale, x_global_scale=torch.ones(1, device=device))
        .double()
        .cpu()
    )
    want = real * weight
    assert torch.equal(y[:, 0].isnan(), want.isnan()) and torch.allclose(y[~want.isnan(), 3], want[~want.isnan()], rtol=1e-6)


def small_scales_of_nvfp4_inputs(device: str, m: int) -> None:
    """Groups whose scales are e4m3's subnormals come back with the error of their own size."""
    x = torch.cat([torch.full((m, 16), 448.0), sample(m, 16, dtype=torch.float32) * 5e-3], 1).to(device)
    made = hh.quantize_input(x, "nvfp4 x nvfp4")
    assert (bits(made.scale)[:, 1] < 8).any()
    back = dequantize_input(on_cpu(made), hh.Spec.parse("nvfp4 x nvfp4"))[:, 16:]
    step = made.scale[:, 1:].float().cpu() * made.global_scale.cpu()
    assert ((back - x[:, 16:].cpu()).abs() <= step * 1.001 + 1e-6).all()


def zeros_and_one_infinity(device: str, m: int) -> None:
    """A tensor of zeros, a row and a group of zeros give zeros; one infinity or NaN makes NaN of its own row, or group, alone."""
    for line in EVERY:
        qweight = weight_of(line, device)
        spec = qweight.spec
        zeros = torch.zeros(m, 384, dtype=torch.bfloat16, device=device)
        made = on_cpu(hh.quantize_input(zeros, qweight))
        assert torch.isfinite(made.scale.float()).all() and not dequantize_input(made, spec).any(), line
        assert not poisoned(zeros, qweight).any(), line
        x = sample(m + 2, 384, device=device)
        x[0] = 0
        x[1, :128] = 0
        back = dequantize_input(on_cpu(hh.quantize_input(x, qweight)), spec)
        assert not back[0].any() and not back[1, :128].any() and torch.isfinite(back).all(), line
        for bad in (float("inf"), float("nan")):
            x[1, 200] = bad
            back = dequantize_input(on_cpu(hh.quantize_input(x, qweight)), spec)
            y = poisoned(x, qweight)
            if spec.activation_granularity == "tensor":
                assert back.isnan().all() and y.isnan().all(), line
                continue
            group = spec.activation_group_size or 384
            inside = slice(200 // group * group, (200 // group + 1) * group)
            assert back[1, inside].isnan().all() and int(back.isnan().sum()) == inside.stop - inside.start, line
            assert y[1].isnan().all() and torch.isfinite(y[2:]).all() and not y[0].any(), line


def nan_scales_stay_in_their_row(device: str, m: int) -> None:
    """A NaN scale of one row, handed in with the codes, makes that row NaN and no other."""
    for line in PER_ROW:
        qweight, x = weight_of(line, device), sample(m + 2, 384, device=device)
        made = hh.quantize_input(x, qweight)
        clean = hh.gemm(made.values, qweight, x_scale=made.scale)
        scale = made.scale.clone()
        if scale.element_size() == 1:
            scale.view(torch.uint8)[1, 0] = 255
        else:
            scale[1, 0] = float("nan")
        y = poisoned(made.values, qweight, x_scale=scale)
        assert y[1].isnan().all() and torch.equal(y[[0, *range(2, m + 2)]], clean[[0, *range(2, m + 2)]]), line


def strides_of_every_kind(device: str, m: int) -> None:
    """Slices of wider tensors, transposed, stepped, expanded and 3-D ones give what their contiguous copies give."""
    big = sample(2 * m, 768, device=device)
    cube = sample(4, m + 3, 384, device=device)
    views = {
        "columns": big[:, :384], "odd columns": big[:, 1:385], "transposed": sample(384, m, device=device).t(),
        "every second": big[::2, :384],
        "3-D slice": cube[:, 2 : m + 2], "heads": big.view(2, m, 2, 384).transpose(1, 2), "expanded": big[:1, :384].expand(m, 384),
        "every second column": big[:, ::2],
    }  # fmt: skip
    for line in EVERY:
        qweight = weight_of(line, device)
        for name, x in views.items():
            plain, made = hh.quantize_input(x.contiguous(), qweight), hh.quantize_input(x, qweight)
            assert torch.equal(bits(made.values), bits(plain.values)), (line, name)
            assert torch.equal(bits(made.scale), bits(plain.scale)), (line, name)
            assert torch.equal(hh.gemm(x, qweight), hh.gemm(x.contiguous(), qweight)), (line, name)
        made = hh.quantize_input(big[:, :384], qweight)
        wide = torch.zeros(2 * m, made.values.shape[1] + 64, dtype=torch.uint8, device=device).view(made.values.dtype)
        inside = wide[:, : made.values.shape[1]]
        inside.copy_(made.values)
        scales = {"x_scale": made.scale, "x_global_scale": made.global_scale}
        assert torch.equal(hh.gemm(inside, qweight, **scales), hh.gemm(made.values, qweight, **scales)), line


ALL = [
    every_group_size_counts, batches_that_no_block_of_rows_divides, zero_points_count_beside_every_activation, scale_bytes_of_e8m0,
    every_e4m3_scale_of_nvfp4_inputs, small_scales_of_nvfp4_inputs, zeros_and_one_infinity, nan_scales_stay_in_their_row,
    strides_of_every_kind,
]  # fmt: skip
