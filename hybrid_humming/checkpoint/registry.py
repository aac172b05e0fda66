"""Which importer reads which quantization method, and what an importer is.

An importer is built once a checkpoint from its config, then asked module by module. It decides from headers alone:

    stored = importer.describe("model.layers.0.mlp.down_proj", {"qweight": TensorInfo, "scales": TensorInfo, ...})
    weight = stored.convert({"qweight": Tensor, ...})        # CanonicalWeight, later, when the layer is asked for

To add a format: a file in this folder with a subclass of `Importer`, and its line in IMPORTERS.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from importlib import import_module
from typing import Any, ClassVar

from hybrid_humming.checkpoint.config import QuantConfig
from hybrid_humming.checkpoint.files import TensorInfo
from hybrid_humming.checkpoint.pieces import Pieces
from hybrid_humming.errors import CheckpointMismatch, MissingTensor, UnknownQuantMethod, did_you_mean
from hybrid_humming.lazy import Tensor, torch
from hybrid_humming.spec import Spec
from hybrid_humming.weight import CanonicalWeight, QWeight

# quant_method -> module:class in this package. A module is imported when a checkpoint asks for it.
IMPORTERS: dict[str, str] = {
    "auto-round": "autoround:AutoRound",
    "awq": "awq:AWQ",
    "bitnet": "bitnet:BitNet",
    "compressed-tensors": "compressed_tensors:CompressedTensors",
    "fp8": "fp8:FP8",
    "gptq": "gptq:GPTQ",
    "hybrid-humming": "ours:Ours",
    "hqq": "hqq:HQQ",
    "modelopt": "modelopt:ModelOpt",
    "mxfp4": "gpt_oss:GptOss",
    "quark": "quark:Quark",
    "torchao": "torchao:TorchAO",
}

# Formats that users ask for by name and that stay outside; the text says what to do.
OUTSIDE = {
    "bitsandbytes": "its nf4 blocks are no format of this library; requantize the original with hh.quantize",
    "gguf": "GGUF files are not read; use the model's safetensors release",
    "aqlm": "codebook formats are not read",
    "vptq": "codebook formats are not read",
    "higgs": "codebook formats are not read",
}

# Parts that only a quantized layer has. A module that holds one and that no importer claimed is reported as unread.
TELLTALES = frozenset(
    (
        *("qweight", "qzeros", "scales", "g_idx", "W_q"),
        *("weight_packed", "weight_scale", "weight_scale_inv", "weight_scale_2", "weight_global_scale"),
        *("weight_shape", "weight_zero_point", "weight_g_idx"),
        *("input_scale", "input_zero_point", "input_global_scale", "pre_quant_scale"),
    )
)

# A module that holds codes under other names: parameters of stacked experts, a weight whose scale is missing.
_CODES = ("I8", "U8", "I32", "F8_E4M3", "F8_E5M2")
_WEIGHTS = re.compile(r"(.*_)?(weight|qweight|packed|proj|blocks|codes)$")

# Parts of the KV cache that some exporters store beside a projection: no business of the product, left for the host to read.
KV_CACHE = frozenset(
    ("output_scale", "output_zero_point", "k_scale", "v_scale", "kv_scale", "q_scale", "prob_scale", "k_bias", "v_bias")
)

Parts = Mapping[str, TensorInfo]
Convert = Callable[[Mapping[str, Tensor]], CanonicalWeight]


@dataclass(frozen=True, kw_only=True)
class ReadOptions:
    """What a user can say that the files don't.

    gptq_zero_points  v1 (stored minus one) or v2 (stored as they are); None: as the files say, refused where they don't
    plain             decode layers that no spec can hold (HQQ's axis 0) to 16-bit weights; False: they are refused
    """

    gptq_zero_points: str | None = None
    plain: bool = False


@dataclass(frozen=True, kw_only=True)
class StoredLayer:
    """One quantized layer as it lies in the files, known from config and headers alone.

    n, k     logical sizes; experts: 0, or the length of a stacked expert axis
    parts    part -> header of each tensor that `convert` takes; a module's other parts are reported as unknown
    convert  part -> tensor in, CanonicalWeight out
    notes    what the model does with this layer and no spec says, such as gpt-oss's activation between the expert products
    arrange_bias  reorders a stored bias where `convert` reorders the rows
    packed   part -> tensor in, QWeight out: for files that hold packed bytes, which `convert` does not unpack
    verify   raises CorruptFile where the tensors don't have the hash that was stored with them
    pieces   how the codes are read some rows at a time; None: `convert` needs them all
    """

    name: str
    spec: Spec
    n: int
    k: int
    experts: int = 0
    parts: Parts
    convert: Convert
    notes: Mapping[str, Any] = field(default_factory=dict)
    arrange_bias: Callable[[Tensor], Tensor] | None = None
    packed: Callable[[Mapping[str, Tensor]], QWeight] | None = None
    verify: Callable[[Mapping[str, Tensor]], None] | None = None
    pieces: Pieces | None = None

    @property
    def stored_bytes(self) -> int:
        """Bytes of its tensors in the files."""
        return sum(info.nbytes for info in self.parts.values())

    @property
    def packed_bytes(self) -> int:
        """Bytes of codes, scales and zero points once packed."""
        return self.spec.weight_bytes(self.n, self.k) * max(self.experts, 1)

    @property
    def shape(self) -> tuple[int, ...]:
        """[N, K], or [E, N, K] with experts."""
        return (self.experts, self.n, self.k) if self.experts else (self.n, self.k)

    def read_bias(self) -> Tensor | None:
        """Return the bias [N] or [E, N] in the order of the weight's rows, or None."""
        if "bias" not in self.parts:
            return None
        bias = self.parts["bias"].read()
        return bias if self.arrange_bias is None else self.arrange_bias(bias)

    def read(self, *, validate: bool = True, device: torch.device | str | None = None) -> CanonicalWeight:
        """Read the tensors and return the weight, taken apart on `device`; `validate` checks a stored hash."""
        tensors = self._tensors(validate)
        return self.convert(tensors if device is None else {part: tensor.to(device) for part, tensor in tensors.items()})

    def read_frame(self, *, validate: bool = True) -> tuple[CanonicalWeight, Callable[[], Iterator[tuple[int, Tensor]]]]:
        """Return the weight with its codes on the meta device, and what yields (first row or expert, codes) of each piece.

        Only for layers with `pieces`. Every tensor but the codes is read, and those too where pieces can't be read from the file.
        """
        assert self.pieces is not None
        pieces, info = self.pieces, self.parts[self.pieces.part]
        tensors = self._tensors(validate, leave=pieces.part if pieces.dim == 0 else None)
        weight = self.convert({**tensors, pieces.part: torch.empty(info.shape, dtype=info.torch_dtype, device="meta")})
        order = weight.transform.permutation if pieces.unsorted and weight.transform is not None else None

        def codes() -> Iterator[tuple[int, Tensor]]:
            for begin, end in pieces.spans(self.shape):
                part = pieces.read(self.parts, tensors, begin, end)
                yield begin, part if order is None else part.gather(-1, order.long().expand_as(part))

        return weight, codes

    def read_packed(self, *, validate: bool = True) -> QWeight:
        """Read the tensors of a layer that is stored packed (`packed` is set) and return them as they are."""
        assert self.packed is not None
        return self.packed(self._tensors(validate))

    def _tensors(self, validate: bool, leave: str | None = None) -> dict[str, Tensor]:
        """The stored tensors by part, without `leave` unless a hash has to be made of it."""
        verify = self.verify if validate else None
        tensors = {part: info.read() for part, info in self.parts.items() if part != leave or verify is not None}
        if verify is not None:
            verify(tensors)
        return tensors


@dataclass(frozen=True, kw_only=True)
class PlainLayer:
    """One layer whose values no spec can hold: decoded to an ordinary weight, where that was asked for.

    dtype   fp16 or bf16
    parts   part -> header of each tensor that `decode` takes; a bias stays an ordinary tensor of the module
    decode  part -> tensor in, weight [N, K] out
    """

    name: str
    dtype: str
    n: int
    k: int
    parts: Parts
    decode: Callable[[Mapping[str, Tensor]], Tensor]

    @property
    def stored_bytes(self) -> int:
        """Bytes of its tensors in the files."""
        return sum(info.nbytes for info in self.parts.values())

    def read(self) -> Tensor:
        """Read the tensors and return the weight [N, K], each value rounded once to `dtype`."""
        return self.decode({part: info.read() for part, info in self.parts.items()})


class Importer:
    """Base of all importers. `describe` is what a format has to write; the rest has defaults.

    bias_parts  parts that go with any layer and are read along where present
    """

    bias_parts: ClassVar[tuple[str, ...]] = ("bias",)

    def __init__(self, config: QuantConfig, options: ReadOptions) -> None:
        """Read the config once; raises UnknownQuantMethod for a variant that is not read, by name."""
        self.config = config
        self.options = options

    def split(self, tensor: str) -> tuple[str, str]:
        """Return (module, part) of a tensor's name: `layers.0.qweight` is the part `qweight` of `layers.0`."""
        module, _, part = tensor.rpartition(".")
        return module, part

    def describe(self, name: str, parts: Parts) -> StoredLayer | PlainLayer | None:
        """Return the layer stored in module `name`, or None if the module is not quantized.

        Raises MissingTensor, CheckpointMismatch, SpecError or UnknownQuantMethod with what is wrong with this one.
        """
        raise NotImplementedError


def importer(config: QuantConfig, options: ReadOptions | None = None) -> Importer:
    """Return the importer of `config.method`; raises UnknownQuantMethod with the nearest name."""
    method = config.method.replace("_", "-")
    target = IMPORTERS.get(config.method) or IMPORTERS.get(method)
    if target is None:
        why = OUTSIDE.get(method)
        raise UnknownQuantMethod(
            f"{config.source}: quant_method {config.method!r} is not read"
            + (f": {why}." if why else f"; readable are {', '.join(sorted(IMPORTERS))}.")
            + did_you_mean(method, IMPORTERS)
        )
    module, _, name = target.partition(":")
    made: Importer = getattr(import_module(f"hybrid_humming.checkpoint.{module}"), name)(config, options or ReadOptions())
    return made


def quantized_parts(parts: Parts) -> list[str]:
    """Return those of an unclaimed module's parts that only a quantized layer has, by name or by dtype."""
    return sorted(
        part
        for part, info in parts.items()
        if part in TELLTALES or (info.dtype in _CODES and len(info.shape) > 1 and _WEIGHTS.fullmatch(part))
    )


# ---- what describe() functions share ----
def require(name: str, parts: Parts, needed: tuple[str, ...], what: str) -> None:
    """Raise MissingTensor listing each of `needed` that module `name` lacks."""
    missing = [part for part in needed if part not in parts]
    if missing:
        raise MissingTensor(
            f"{name}: {what} needs {', '.join(needed)}; missing are {', '.join(missing)} (present: {', '.join(sorted(parts))})"
        )


def expect(name: str, info: TensorInfo, dtypes: tuple[str, ...], shape: tuple[int, ...], why: str = "") -> None:
    """Raise CheckpointMismatch unless a stored tensor has one of `dtypes` (safetensors names) and exactly `shape`."""
    if info.dtype not in dtypes or info.shape != shape:
        part = info.name.rpartition(".")[2]
        raise CheckpointMismatch(
            f"{name}: {part} is {info}, expected {' or '.join(dtypes)} {list(shape)}" + (f" ({why})" if why else "")
        )


def pick(parts: Parts, *names: str) -> dict[str, TensorInfo]:
    """Return those of `names` that are present."""
    return {name: parts[name] for name in names if name in parts}
