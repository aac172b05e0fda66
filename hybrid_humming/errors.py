"""Every exception that hybrid_humming raises.

A message says, in this order: what was asked (with the numbers), what is allowed, what to do.
Each class has a stable `code` that `docs/errors.md` explains. Classes also derive from the closest
built-in exception, so that `except ValueError` keeps working in a host that knows nothing of us.
"""

from __future__ import annotations

import difflib
from collections.abc import Iterable


class HybridHummingError(Exception):
    """Base of every exception raised by this library."""

    code = "HH000"

    def __str__(self) -> str:
        return f"[{self.code}] {super().__str__()}"


class FormatError(HybridHummingError, ValueError):
    """An element format's name is unknown, or a code lies outside it."""

    code = "HH001"


class SpecError(HybridHummingError, ValueError):
    """A spec line can't be read, or its parts can't go together."""

    code = "HH002"


class LayoutError(HybridHummingError, ValueError):
    """Packed bytes and their layout don't match, or no layout holds this weight."""

    code = "HH003"


class ShapeError(HybridHummingError, ValueError):
    """Two shapes that have to agree don't."""

    code = "HH004"


class DtypeError(HybridHummingError, TypeError):
    """A tensor has a dtype that this argument can't take."""

    code = "HH005"


class DeviceError(HybridHummingError, RuntimeError):
    """Tensors lie on different devices, or the device is unknown or missing."""

    code = "HH006"


class ValueRangeError(HybridHummingError, ValueError):
    """A tensor holds NaN, infinity or a code where none may be."""

    code = "HH007"


class UnsupportedProblem(HybridHummingError, NotImplementedError):
    """No kernel runs this problem on this device; the message lists each one's reason."""

    code = "HH010"


class PlanError(HybridHummingError, ValueError):
    """A plan or a tile that its kernel can't run; the message has the number that breaks it."""

    code = "HH011"


class FallbackRefused(HybridHummingError, RuntimeError):
    """The GPU can't multiply the activation format and `Options(fallback="error")` was asked for."""

    code = "HH012"


class CompileError(HybridHummingError, RuntimeError):
    """A kernel did not compile, or may not be compiled now (graph capture)."""

    code = "HH020"


class SettingError(HybridHummingError, ValueError):
    """An environment variable holds a value that it can't take."""

    code = "HH021"


class MissingDependency(HybridHummingError, ImportError):
    """An optional package is not installed; the message names the extra that brings it."""

    code = "HH022"


class PatchError(HybridHummingError, RuntimeError):
    """Machine code can't be given a hidden type: wrong SM or target, cut off, another count than promised, or turned off."""

    code = "HH023"


class CacheError(HybridHummingError, RuntimeError):
    """The folder of compiled kernels can't be read, written or cleared, or holds what this library did not write."""

    code = "HH024"


class CheckpointError(HybridHummingError, ValueError):
    """A checkpoint can't be read; subclasses say why."""

    code = "HH030"


class UnknownQuantMethod(CheckpointError):
    """The checkpoint's quantization method, or a variant of it, is not one that we read."""

    code = "HH031"


class MissingTensor(CheckpointError, KeyError):
    """A quantized layer lacks a tensor that its format requires."""

    code = "HH032"

    def __str__(self) -> str:  # KeyError would print the repr
        return f"[{self.code}] {self.args[0] if self.args else ''}"


class UnreadTensor(CheckpointError):
    """Tensors beside a quantized layer were not understood (strict loading)."""

    code = "HH033"


class CorruptFile(CheckpointError):
    """A file is truncated, or its header contradicts its contents."""

    code = "HH034"


class CheckpointMismatch(CheckpointError):
    """The config and the tensors of a checkpoint contradict each other."""

    code = "HH035"


class AmbiguousCheckpoint(CheckpointError):
    """The files can be read in two ways; the message names the flag that decides."""

    code = "HH036"


def did_you_mean(name: str, allowed: Iterable[str]) -> str:
    """Return ` Did you mean 'x'?` for the nearest allowed name, or an empty string."""
    near = difflib.get_close_matches(str(name), list(allowed), n=1, cutoff=0.6)
    return f" Did you mean {near[0]!r}?" if near else ""
