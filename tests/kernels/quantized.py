"""Input quantizations through the Triton kernels, beside the reference: outputs poisoned before, padding included."""

import torch

from hybrid_humming.inputs import empty_input, run_input
from hybrid_humming.jit.args import InputArgs
from hybrid_humming.triton_kernels.quantize.launch import quantize


def storage_bytes(tensor):
    """Every byte of a tensor's memory, what lies outside the view included."""
    return torch.empty(0, dtype=torch.uint8, device=tensor.device).set_(tensor.untyped_storage())


def by_kernel(
    x, spec, *, input_scale=None, rows=None, transform=None, activation="", limit=0.0, scale_layout="row_major", tile=None,
    stored="",
):  # fmt: skip
    """(values, scale, global scale) as the kernel writes them into memory full of 0x5a."""
    lead = x.shape[:-1] if rows is None else rows.shape
    k = x.shape[-1] // 2 if activation else x.shape[-1]
    made = empty_input(tuple(lead), k, spec, scale_layout, x.device, stored)
    for tensor in made:
        if tensor is not None:
            storage_bytes(tensor).fill_(0x5A)
    values, scale, second = made
    transform_of = {"pre_quant_scale": None, "permutation": None, "hadamard": 0}
    if transform is not None:
        transform_of = {name: getattr(transform, name) for name in transform_of} | {"hadamard": transform.hadamard or 0}
    quantize(
        InputArgs(
            x=x, values=values, scale=scale, global_scale=second, input_scale=input_scale, rows=rows, activation=activation,
            limit=limit, packed=scale_layout == "packed", spec=spec, stored=stored or spec.activation,
            **transform_of,
        ),
        tile,
    )  # fmt: skip
    return made


def by_reference(
    x, spec, *, input_scale=None, rows=None, transform=None, activation="", limit=0.0, scale_layout="row_major", stored=""
):
    """The same on the CPU through the library's CPU path."""
    pre, perm, hadamard = (None, None, 0)
    if transform is not None:
        pre, perm, hadamard = transform.pre_quant_scale, transform.permutation, transform.hadamard or 0
    return run_input(x, input_scale, rows, perm, pre, str(spec), activation, limit, hadamard, scale_layout, stored)


def differences(got, want):
    """Names of the outputs whose memory differs, with the number of differing bytes."""
    found = {}
    for name, g, w in zip(("values", "scale", "global_scale"), got, want, strict=True):
        assert (g is None) == (w is None), name
        if g is not None:
            assert (g.shape, g.dtype, g.stride()) == (w.shape, w.dtype, w.stride()), name
            apart = int((storage_bytes(g) != storage_bytes(w)).sum())
            if apart:
                found[name] = apart
    return found
