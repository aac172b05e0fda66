"""The libraries beside ours. Each is optional; one that is missing or does not cover a spec says why.

    humming   humming-kernels, the same formats as ours      deepgemm  sgl-deep-gemm, FP8 blocks 128x128 x 1x128
    cublas    torch.mm in bf16, for every spec               cublaslt  torch._scaled_mm, FP8 channel x token

Each adapter builds its weight from the same float weight [N, K] as ours, on copies enough for a cold L2, and quantizes x
outside the timed calls. In the plain setting no library launches dependently; in chain each does what it does by default.
Marlin is in no wheel: `marlin.json` holds published ratios to humming at the same point.
"""

from __future__ import annotations

import functools
import importlib.metadata
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Protocol

import torch

from bench.ours import Calls
from bench.timer import copies_for
from hybrid_humming.spec import Spec

Tensor = torch.Tensor
Job = Callable[[], Any]


class PeerWeight(Protocol):
    """One weight in a peer's format."""

    def jobs(self, ms: Sequence[int], settings: Sequence[str]) -> list[Job]:
        """Return what can be compiled ahead, each safe to run in a thread of its own."""

    def ready(self, m: int, setting: str) -> bool:
        """Return whether `calls` at this M would run at once, without compiling."""

    def calls(self, x: Tensor, setting: str) -> Calls:
        """Return calls of y = x @ W.T for bf16 x [M, K]."""


class Peer(Protocol):
    """A library beside ours."""

    name: str
    package: str

    def missing(self) -> str:
        """Return why the library can't run here, or an empty string."""

    def covers(self, spec: Spec, n: int, k: int) -> str:
        """Return why it has no such GEMM, or an empty string."""

    def build(self, spec: Spec, weight: Tensor) -> PeerWeight:
        """Return its form of the float weight [N, K]."""


class Cublas:
    """bf16 x bf16 (fp16 beside fp16 activations), the unquantized baseline of every spec."""

    name, package = "cublas", "torch"

    def missing(self) -> str:
        return ""

    def covers(self, spec: Spec, n: int, k: int) -> str:
        return ""

    def build(self, spec: Spec, weight: Tensor) -> PeerWeight:
        return _CublasWeight(weight.to(torch.float16 if spec.activation == "fp16" else torch.bfloat16))


class _CublasWeight:
    def __init__(self, weight: Tensor) -> None:
        self.copies = _rotate(weight)

    def jobs(self, ms: Sequence[int], settings: Sequence[str]) -> list[Job]:
        return []

    def ready(self, m: int, setting: str) -> bool:
        return True

    def calls(self, x: Tensor, setting: str) -> Calls:
        out = torch.empty(x.shape[0], self.copies[0].shape[0], dtype=x.dtype, device=x.device)
        return Calls(calls=[lambda w=w: torch.mm(x, w.T, out=out) for w in self.copies], out=out, x=x)


class CublasLt:
    """FP8 with a scale per row of x and of W, fast accumulation, through torch._scaled_mm."""

    name, package = "cublaslt", "torch"

    def missing(self) -> str:
        if not torch.cuda.is_available():
            return "needs a CUDA device"
        return "" if torch.cuda.get_device_capability() >= (8, 9) else "no FP8 below SM 89"

    def covers(self, spec: Spec, n: int, k: int) -> str:
        wanted = Spec.parse("e4m3 channel x e4m3 token")
        return "" if spec == wanted and n % 16 == 0 and k % 16 == 0 else f"only '{wanted}' with N and K multiples of 16"

    def build(self, spec: Spec, weight: Tensor) -> PeerWeight:
        return _CublasLtWeight(weight)


class _CublasLtWeight:
    def __init__(self, weight: Tensor) -> None:
        codes, scale = _fp8(weight, weight.shape[1])
        self.copies, self.scale = _rotate(codes), scale.T.contiguous()

    def jobs(self, ms: Sequence[int], settings: Sequence[str]) -> list[Job]:
        return []

    def ready(self, m: int, setting: str) -> bool:
        return True

    def calls(self, x: Tensor, setting: str) -> Calls:
        codes, scale = _fp8(x, x.shape[1])
        out = torch.empty(x.shape[0], self.copies[0].shape[0], dtype=x.dtype, device=x.device)

        def call(w: Tensor) -> None:
            torch._scaled_mm(codes, w.T, scale_a=scale, scale_b=self.scale, out_dtype=out.dtype, use_fast_accum=True, out=out)

        return Calls(calls=[functools.partial(call, w) for w in self.copies], out=out, x=codes)


class DeepGemm:
    """FP8 with 1x128 scales of x and 128x128 scales of W."""

    name, package = "deepgemm", "sgl-deep-gemm"

    def missing(self) -> str:
        return _import_error(self.package, _deep_gemm)

    def covers(self, spec: Spec, n: int, k: int) -> str:
        wanted = Spec.parse("e4m3 b128x128 x e4m3 g128")
        return "" if spec == wanted and n % 128 == 0 and k % 128 == 0 else f"only '{wanted}' with N and K multiples of 128"

    def build(self, spec: Spec, weight: Tensor) -> PeerWeight:
        return _DeepGemmWeight(weight)


class _DeepGemmWeight:
    def __init__(self, weight: Tensor) -> None:
        n, k = weight.shape
        blocks = weight.float().view(n // 128, 128, k // 128, 128)
        scale = blocks.abs().amax((1, 3)).clamp_min(1e-12) / 448.0
        codes = (blocks / scale[:, None, :, None]).to(torch.float8_e4m3fn).view(n, k)
        self.copies, self.scale = _rotate(codes), scale
        self.compiled: set[int] = set()

    def jobs(self, ms: Sequence[int], settings: Sequence[str]) -> list[Job]:
        """Compile in processes that share the cache: the library compiles one kernel at a time in each."""
        parts = [list(ms)[i::3] for i in range(3)]
        return [functools.partial(self._compile, part) for part in parts if part]

    def ready(self, m: int, setting: str) -> bool:
        return m in self.compiled

    def _compile(self, ms: list[int]) -> None:
        n, k = self.copies[0].shape
        _warm_deep_gemm(n, k, ms)
        self.compiled.update(ms)

    def calls(self, x: Tensor, setting: str) -> Calls:
        library = _deep_gemm()
        if hasattr(library, "set_pdl"):
            library.set_pdl(setting == "chain")
        codes, scale = _fp8(x, 128)
        aligned = library.get_mn_major_tma_aligned_tensor(scale.contiguous())
        aligned = aligned if isinstance(aligned, Tensor) else torch.from_dlpack(aligned)
        out = torch.empty(x.shape[0], self.copies[0].shape[0], dtype=torch.bfloat16, device=x.device)
        calls = [lambda w=w: library.fp8_gemm_nt((codes, aligned), (w, self.scale), out) for w in self.copies]
        return Calls(calls=calls, out=out, x=codes)


@functools.cache
def _deep_gemm() -> Any:
    """The module, after the CUDA libraries that its extension expects to find loaded."""
    import ctypes

    os.environ.setdefault("DG_JIT_CACHE_DIR", os.path.join(tempfile.gettempdir(), "deep_gemm_cache"))
    if "CUDA_HOME" not in os.environ and os.path.exists("/usr/local/cuda/bin/nvcc"):
        os.environ["CUDA_HOME"] = "/usr/local/cuda"
    major = str(torch.version.cuda).split(".")[0]
    wheels = Path(torch.__file__).parents[1] / "nvidia" / f"cu{major}" / "lib"
    for stem in ("libnvrtc", "libcublasLt", "libcublas", "libcudart"):
        for folder in (wheels, Path("/usr/local/cuda/lib64"), Path("/usr/local/cuda/targets/x86_64-linux/lib")):
            if (library := folder / f"{stem}.so.{major}").exists():
                ctypes.CDLL(str(library), mode=ctypes.RTLD_GLOBAL)
                break
    import deep_gemm

    return deep_gemm


def _warm_deep_gemm(n: int, k: int, ms: list[int]) -> None:
    code = (
        "import torch; from bench.peers import _DeepGemmWeight as W;"
        f"w = W(torch.ones({n}, {k}, device='cuda', dtype=torch.bfloat16));"
        f"x = [torch.ones(m, {k}, device='cuda', dtype=torch.bfloat16) for m in {ms}];"
        "[w.calls(v, s).calls[0]() for v in x for s in ('plain', 'chain')];"
        "torch.cuda.synchronize()"
    )
    root = Path(__file__).resolve().parents[1]
    done = subprocess.run([sys.executable, "-c", code], cwd=root, capture_output=True, text=True, timeout=180)
    if done.returncode:
        raise RuntimeError(f"deepgemm {n}x{k}: {(done.stderr.strip() or 'no message').splitlines()[-1]}")


class Marlin:
    """Published times of a build of vLLM's Marlin, as ratios to humming at the same point."""

    @staticmethod
    @functools.cache
    def table() -> dict[str, dict[str, dict[str, float]]]:
        """Return spec -> "NxK" -> M -> marlin's time over humming's."""
        found: dict[str, dict[str, dict[str, float]]] = json.loads(Path(__file__).with_name("marlin.json").read_text())["ratios"]
        return found

    @classmethod
    def ratio(cls, spec: str, n: int, k: int, m: int) -> float | None:
        """Return marlin's published time over humming's, or None where nothing was published."""
        return cls.table().get(spec, {}).get(f"{n}x{k}", {}).get(str(m))


def all_peers() -> list[Peer]:
    """Return every adapter, whether it can run here or not."""
    from bench.peer_humming import Humming

    return [Humming(), Cublas(), CublasLt(), DeepGemm()]


def version(peer: Peer) -> str:
    """Return the version of the peer's package, or an empty string."""
    try:
        return importlib.metadata.version(peer.package)
    except importlib.metadata.PackageNotFoundError:
        return ""


def _import_error(package: str, load: Callable[[], Any]) -> str:
    try:
        load()
    except Exception as error:  # a broken peer must not stop ours
        return f"{package}: {type(error).__name__}: {str(error).splitlines()[0] if str(error) else ''}"[:200]
    return ""


def _rotate(weight: Tensor) -> list[Tensor]:
    return [weight, *(weight.clone() for _ in range(copies_for(weight.numel() * weight.element_size()) - 1))]


def _fp8(t: Tensor, group: int) -> tuple[Tensor, Tensor]:
    """Return e4m3 codes of t [R, K] and the scale [R, K / group] that multiplies them."""
    rows, k = t.shape
    work = t.float().view(rows, k // group, group)
    scale = work.abs().amax(-1).clamp_min(1e-12) / 448.0
    return (work / scale[..., None]).to(torch.float8_e4m3fn).view(rows, k), scale
