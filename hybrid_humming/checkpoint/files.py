"""Safetensors files of a checkpoint, read lazily: headers first, a tensor's bytes only when it is asked for.

    [8 bytes: header length H, little endian] [H bytes: JSON {name: {dtype, shape, data_offsets}}] [data]

One file (`model.safetensors`), several, or shards with an index (`*.safetensors.index.json`). Every header is checked
against its file's length, so a truncated or mixed-up download is named with its numbers before anything is loaded.
The bytes are read, not mapped: a mapped file's pages would count as this process's memory until the last tensor is gone.
"""

from __future__ import annotations

import json
import math
import struct
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from io import FileIO
from pathlib import Path
from typing import Any

from hybrid_humming.errors import CheckpointError, CheckpointMismatch, CorruptFile, DtypeError, MissingTensor, did_you_mean
from hybrid_humming.lazy import torch

# Safetensors dtype name -> torch dtype name.
DTYPES = {
    "BOOL": "bool",
    "U8": "uint8",
    "I8": "int8",
    "I16": "int16",
    "I32": "int32",
    "I64": "int64",
    "U16": "uint16",
    "U32": "uint32",
    "U64": "uint64",
    "F16": "float16",
    "BF16": "bfloat16",
    "F32": "float32",
    "F64": "float64",
    "F8_E4M3": "float8_e4m3fn",
    "F8_E5M2": "float8_e5m2",
    "F8_E8M0": "float8_e8m0fnu",
}
INTEGERS = {"I8": "b", "U8": "B", "I16": "h", "U16": "H", "I32": "i", "U32": "I", "I64": "q", "U64": "Q"}  # codes of `struct`
MAX_HEADER_BYTES = 100_000_000  # the limit of the safetensors library
INDEX = "model.safetensors.index.json"


@dataclass(frozen=True, kw_only=True)
class TensorInfo:
    """One stored tensor, as its file's header describes it. `start` counts from the beginning of the file."""

    name: str
    dtype: str
    shape: tuple[int, ...]
    file: Path
    start: int
    nbytes: int

    def __str__(self) -> str:
        return f"{self.dtype} {list(self.shape)}"

    @property
    def numel(self) -> int:
        """Number of elements."""
        return math.prod(self.shape)

    @property
    def torch_name(self) -> str:
        """The torch dtype's name; raises DtypeError for one that torch lacks."""
        if self.dtype not in DTYPES:
            raise DtypeError(f"{self.name} in {self.file.name} is {self.dtype}; readable are {', '.join(DTYPES)}")
        return DTYPES[self.dtype]

    @property
    def torch_dtype(self) -> torch.dtype:
        """The torch dtype; raises DtypeError for one that torch lacks."""
        dtype: torch.dtype = getattr(torch, self.torch_name)
        return dtype

    def read_bytes(self) -> bytes:
        """Return the stored bytes; for small tensors that describe others."""
        raw = bytearray(self.nbytes)
        if raw:
            with opened(self.file) as stream:
                stream.seek(self.start)
                _fill(stream, memoryview(raw), self)
        return bytes(raw)

    def integers(self) -> list[int]:
        """Return the elements of a small integer tensor, in order."""
        if self.dtype not in INTEGERS:
            raise CheckpointMismatch(f"{self.name} is {self}; integers are expected")
        return list(struct.unpack(f"<{self.numel}{INTEGERS[self.dtype]}", self.read_bytes()))

    def read(self, rows: tuple[int, int] | None = None) -> torch.Tensor:
        """Return the tensor, or `rows` (begin, end) of it, freshly allocated; raises CorruptFile if the file has become shorter."""
        dtype, (begin, end) = self.torch_dtype, rows or (0, self.shape[0] if self.shape else 1)
        shape = self.shape if rows is None else (end - begin, *self.shape[1:])
        row_bytes = self.nbytes // max(1, self.shape[0]) if rows else 0
        raw = torch.empty(row_bytes * (end - begin) if rows else self.nbytes, dtype=torch.uint8)
        if raw.numel():
            with opened(self.file) as stream:
                stream.seek(self.start + row_bytes * begin)
                _fill(stream, raw.numpy().data, self)
        return raw.view(dtype).reshape(shape)


def as_path(path: object) -> Path:
    """Return `path` as a Path; raises CheckpointError for anything but text and paths."""
    if not isinstance(path, str | Path):
        raise CheckpointError(f"path is {type(path).__name__}; pass a folder with config.json and safetensors, or one such file")
    return Path(path)


class Files(Mapping[str, TensorInfo]):
    """Name -> TensorInfo of every tensor of a checkpoint; nothing but headers is in memory."""

    def __init__(self, path: str | Path) -> None:
        self.path = as_path(path)
        self._infos = _collect(self.path)

    def __getitem__(self, name: str) -> TensorInfo:
        if name not in self._infos:
            raise MissingTensor(f"{self.path} has no tensor {name!r}.{did_you_mean(name, self._infos)}")
        return self._infos[name]

    def __contains__(self, name: object) -> bool:
        return name in self._infos

    def __iter__(self) -> Iterator[str]:
        return iter(self._infos)

    def __len__(self) -> int:
        return len(self._infos)

    def read(self, name: str) -> torch.Tensor:
        """Return one tensor."""
        return self[name].read()


def opened(file: Path) -> FileIO:
    """Return the file open for unbuffered reading; raises CorruptFile where the system refuses."""
    try:
        return file.open("rb", buffering=0)
    except OSError as error:
        where = f" (it links to {file.readlink()})" if file.is_symlink() else ""
        raise CorruptFile(f"{file}{where} can't be read: {error.strerror}; download it again, or mend its permissions") from error


def read_header(file: Path) -> dict[str, TensorInfo]:
    """Return the tensors that the header of one safetensors file lists, checked against its length; raises CorruptFile."""
    with opened(file) as stream:
        size = file.stat().st_size
        head = stream.read(8)
        length = int.from_bytes(head, "little")
        if head.startswith(b"version "):
            raise CorruptFile(f"{file} is a Git LFS pointer of {size} bytes, not the tensors: run `git lfs pull` there")
        if size < 8 or length > min(size - 8, MAX_HEADER_BYTES):
            raise CorruptFile(
                f"{file} has {size} bytes, but its header alone should take {8 + length}: truncated, or no safetensors file; "
                "download it again"
            )
        raw = stream.read(length)
    try:
        header = json.loads(raw)
        entries = {name: entry for name, entry in header.items() if name != "__metadata__"}
        return {name: _entry(name, entry, file, 8 + length, size) for name, entry in entries.items()}
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        if isinstance(error, CheckpointError):
            raise
        raise CorruptFile(f"{file}: the header of {length} bytes is not what safetensors writes ({error!r})") from error


def read_json(file: Path) -> dict[str, Any]:
    """Return the JSON object in `file`; raises CorruptFile naming the line that can't be read."""
    try:
        value = json.loads(file.read_text(encoding="utf-8"))
    except OSError as error:
        raise CorruptFile(f"{file} can't be read: {error.strerror}; download it again, or mend its permissions") from error
    except ValueError as error:
        raise CorruptFile(f"{file} is not valid JSON: {error}") from error
    if not isinstance(value, dict):
        raise CorruptFile(f"{file} holds a JSON {type(value).__name__}; an object is expected")
    return value


def _entry(name: str, entry: dict[str, Any], file: Path, data_start: int, size: int) -> TensorInfo:
    dtype, shape = str(entry["dtype"]), tuple(int(s) for s in entry["shape"])
    start, end = (int(offset) for offset in entry["data_offsets"])
    if end < start or min(shape, default=1) < 0:
        raise CorruptFile(f"{file}: {name} has shape {list(shape)} and bytes {start}..{end}; the header is damaged")
    if dtype in DTYPES:
        want = math.prod(shape) * _item_bytes(dtype)
        if want != end - start:
            raise CorruptFile(f"{file}: {name} {dtype} {list(shape)} takes {want} bytes, but the header gives it {end - start}")
    if data_start + end > size:
        raise CorruptFile(
            f"{file} has {size} bytes, but {name} ends at byte {data_start + end}: "
            f"truncated by at least {data_start + end - size} bytes; download it again"
        )
    return TensorInfo(name=name, dtype=dtype, shape=shape, file=file, start=data_start + start, nbytes=end - start)


def _item_bytes(dtype: str) -> int:
    """Bytes of one element: its name begins with its bits."""
    return 1 if dtype == "BOOL" else int(dtype.partition("_")[0].lstrip("BFIU")) // 8


def _collect(path: Path) -> dict[str, TensorInfo]:
    if path.is_file() and path.suffix == ".safetensors":
        return read_header(path)
    if not path.is_dir():
        raise CheckpointError(f"{path}: no such checkpoint; pass a folder with config.json and safetensors, or one such file")
    indexes = sorted(path.glob("*.safetensors.index.json"))
    index = next((i for i in indexes if i.name == INDEX), indexes[0] if len(indexes) == 1 else None)
    if index is not None:
        return _from_index(index)
    if len(indexes) > 1:
        raise CheckpointError(f"{path} holds {len(indexes)} indexes ({_names(indexes)}); pass a folder with one")
    files = sorted(path.glob("*.safetensors"))
    if (path / "model.safetensors") in files:
        files = [path / "model.safetensors"]
    if not files:
        other = sorted([*path.glob("*.bin"), *path.glob("*.pt"), *path.glob("*.gguf")])
        have = f"; it holds {_names(other)}, which is not read: convert to safetensors first" if other else ""
        raise CheckpointError(f"{path} holds no .safetensors file{have}")
    return _merge({file: read_header(file) for file in files})


def _merge(headers: dict[Path, dict[str, TensorInfo]]) -> dict[str, TensorInfo]:
    merged: dict[str, TensorInfo] = {}
    for file, infos in headers.items():
        for name, info in infos.items():
            if name in merged:
                raise CheckpointMismatch(
                    f"{name} is in both {merged[name].file.name} and {file.name}, and no {INDEX} says which one counts"
                )
            merged[name] = info
    return merged


def _from_index(index: Path) -> dict[str, TensorInfo]:
    weight_map = read_json(index).get("weight_map")
    if not isinstance(weight_map, dict):
        raise CorruptFile(f"{index} has no 'weight_map'; a sharded checkpoint's index maps tensor names to files")
    odd = [f"{name} (in {shard!r})" for name, shard in weight_map.items() if not _is_name(shard)]
    if odd:
        raise CorruptFile(f"{index.name} maps {len(odd)} tensors to what is no name of a file beside it: {_names(odd)}")
    shards = sorted(set(weight_map.values()))
    absent = [shard for shard in shards if not (index.parent / shard).is_file()]
    if absent:
        raise CorruptFile(f"{index.name} names {len(shards)} shards, {len(absent)} of them are missing: {_names(absent)}")
    headers = {shard: read_header(index.parent / shard) for shard in shards}
    lost = [name for name, shard in weight_map.items() if name not in headers[shard]]
    if lost:
        where = _names(f"{name} (in {weight_map[name]})" for name in lost)
        raise CorruptFile(f"{index.name} names {len(lost)} tensors that their shards don't hold: {where}")
    unlisted = {n: i for infos in headers.values() for n, i in infos.items() if n not in weight_map}
    return {name: headers[shard][name] for name, shard in weight_map.items()} | unlisted


def _is_name(shard: object) -> bool:
    """Whether an index's entry names a file in its own folder; a path could lead anywhere."""
    return isinstance(shard, str) and shard not in ("", ".", "..") and "/" not in shard and "\\" not in shard


def _fill(stream: Any, view: memoryview, info: TensorInfo) -> None:
    done = 0
    while done < len(view):
        got = stream.readinto(view[done:])
        if not got:
            raise CorruptFile(f"{info.file}: {info.name} needs {len(view)} bytes at {info.start}, the file gave {done}")
        done += got


def _names(items: Iterable[object], limit: int = 20) -> str:
    names = [item.name if isinstance(item, Path) else str(item) for item in items]
    more = f" and {len(names) - limit} more" if len(names) > limit else ""
    return ", ".join(names[:limit]) + more
