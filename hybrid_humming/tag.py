"""Tag: what a stored weight's tensors don't say, as one line of text beside them.

    int4 g128 x bf16|portable.v1:int4:4096x4096:4096x4096|block_offset=0,64|sha256=5f70...
    int4 g128 x bf16|canonical|k=4096|hadamard=64
    mxfp4 x bf16|portable.v1:e2m1:5760x2880:5760x2880:e32|notes={"activation": "swiglu_oai"}

Stored as the uint8 tensor `quantization` of a module, in files that `hh.save` writes and in the state dict of `hh.Linear`, so
that both are read alike. Trailing spaces mean nothing. `sha256` is `digest` of the module's other tensors; optional.
"""

from __future__ import annotations

import dataclasses
import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from hybrid_humming.errors import LayoutError
from hybrid_humming.lazy import Tensor, torch
from hybrid_humming.spec import PackLayout, Spec
from hybrid_humming.weight import CanonicalWeight, QWeight

PART = "quantization"
CANONICAL = "canonical"


@dataclass(frozen=True, kw_only=True)
class Tag:
    """One weight's line.

    layout  None: the weight is canonical
    k       K of a canonical weight whose rows are stored as bit streams; None: one code a byte, or packed
    notes   JSON object: what the model does with the layer and no spec says, such as gpt-oss's activation
    """

    spec: Spec
    layout: PackLayout | None = None
    k: int | None = None
    hadamard: int | None = None
    block_offset: tuple[int, int] = (0, 0)
    notes: str = ""
    sha256: str | None = None

    @classmethod
    def of(cls, weight: QWeight | CanonicalWeight, notes: Mapping[str, Any] | None = None) -> Tag:
        """Return the tag of `weight`, without a hash."""
        return cls(
            spec=weight.spec,
            layout=weight.layout if isinstance(weight, QWeight) else None,
            hadamard=weight.transform.hadamard if weight.transform else None,
            block_offset=weight.block_offset,
            notes=json.dumps(dict(notes), sort_keys=True) if notes else "",
        )

    def __str__(self) -> str:
        words = [str(self.spec), CANONICAL if self.layout is None else str(self.layout)]
        if self.k is not None:
            words.append(f"k={self.k}")
        if self.hadamard:
            words.append(f"hadamard={self.hadamard}")
        if self.block_offset != (0, 0):
            words.append(f"block_offset={self.block_offset[0]},{self.block_offset[1]}")
        if self.notes:
            words.append(f"notes={self.notes}")
        if self.sha256:
            words.append(f"sha256={self.sha256}")
        return "|".join(words)

    @classmethod
    def parse(cls, text: str) -> Tag:
        """Return the tag that `str(tag)` printed; raises LayoutError or SpecError."""
        spec, _, rest = text.strip().partition("|")
        layout, *words = rest.split("|")
        found = dict(word.split("=", 1) for word in words if "=" in word)
        unknown = [word for word in words if word.partition("=")[0] not in ("k", "hadamard", "block_offset", "notes", "sha256")]
        if unknown or not layout:
            grammar = "spec|layout[|k=K][|hadamard=H][|block_offset=N,K][|notes=JSON][|sha256=...]"
            newer = f", not {unknown[0]!r}; written by a newer version?" if unknown else ""
            raise LayoutError(f"can't read the tag {text.strip()[:200]!r}: expected {grammar}{newer}")
        try:
            first, second = (int(number) for number in found.get("block_offset", "0,0").split(","))
            if not isinstance(json.loads(found.get("notes", "{}")), dict):
                raise ValueError("notes are no JSON object")
            k, hadamard = (int(found[name]) if name in found else None for name in ("k", "hadamard"))
        except ValueError as error:
            raise LayoutError(f"can't read the tag {text.strip()[:200]!r}: {error}") from None
        return cls(
            spec=Spec.parse(spec),
            layout=None if layout == CANONICAL else PackLayout.parse(layout),
            k=k,
            hadamard=hadamard,
            block_offset=(first, second),
            notes=found.get("notes", ""),
            sha256=found.get("sha256"),
        )

    def to_tensor(self) -> Tensor:
        """Return the line as a uint8 tensor."""
        return torch.frombuffer(bytearray(str(self).encode()), dtype=torch.uint8)

    @classmethod
    def from_tensor(cls, tensor: Tensor) -> Tag:
        """Return the tag that a stored tensor holds."""
        if tensor.dtype != torch.uint8 or tensor.dim() != 1:
            raise LayoutError(f"the tensor {PART!r} is {tensor.dtype} {list(tensor.shape)}; the tag of a weight is uint8 [length]")
        return cls.parse(bytes(tensor.cpu().numpy()).decode(errors="replace"))

    def digest(self, tensors: Mapping[str, Tensor]) -> str:
        """Return the SHA-256, in hex, of this line without its hash and of every tensor: name, dtype, shape and bytes."""
        found = hashlib.sha256(str(dataclasses.replace(self, sha256=None)).encode())
        for name in sorted(tensors):
            tensor = tensors[name]
            found.update(f"\n{name} {tensor.dtype} {list(tensor.shape)}\n".encode())
            found.update(raw_bytes(tensor))
        return found.hexdigest()


def raw_bytes(tensor: Tensor) -> memoryview:
    """Return the tensor's bytes in memory order of its shape; copies only where it is not contiguous on the CPU."""
    flat = tensor.detach().cpu().contiguous().reshape(-1)
    return flat.view(torch.uint8).numpy().data
