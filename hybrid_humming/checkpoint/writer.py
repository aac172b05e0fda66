"""Safetensors files written tensor by tensor, so that a checkpoint of any size passes through a layer's memory.

The header's place is kept free at the start of each file and filled in at the end, padded with spaces as the format allows. A
file is `NAME.part` until everything is written; a shard is begun anew where the next module would make it too large. Every
tensor starts at a multiple of its element size: a module's tag comes last and is padded to 8 bytes.
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from pathlib import Path
from types import TracebackType
from typing import BinaryIO

import torch

from hybrid_humming.checkpoint.files import DTYPES, INDEX
from hybrid_humming.errors import CheckpointError, DtypeError
from hybrid_humming.tag import raw_bytes

Tensor = torch.Tensor
NAMES = {getattr(torch, torch_name): name for name, torch_name in DTYPES.items()}
ENTRY_BYTES = 200  # of JSON that one tensor takes at most beside its name: dtype, up to 8 sizes, two offsets


class Writer:
    """Writes one file (`path` ends in .safetensors) or a folder of shards with an index; use it in a `with` block.

    names         every tensor's name that may come: their number and length bound the header
    shard_bytes   size at which the next shard is begun (folders only)
    overwrite     replace what is there; without it existing files are refused
    """

    def __init__(
        self, path: Path, names: Iterable[str], *, metadata: dict[str, str], shard_bytes: int, overwrite: bool = False
    ) -> None:
        self.path, self.single = path, path.suffix == ".safetensors"
        self.folder = path.parent if self.single else path
        self._metadata, self._shard_bytes = metadata, shard_bytes
        # json.dumps writes a character outside ASCII as up to 12.
        bound = len(json.dumps({"__metadata__": metadata})) + sum(len(json.dumps(name)) + ENTRY_BYTES for name in names)
        self._header_bytes = -(-bound // 8) * 8
        self._shards: list[tuple[Path, dict[str, dict[str, object]], int]] = []
        self._file: BinaryIO | None = None
        self._entries: dict[str, dict[str, object]] = {}
        self._offset = 0
        self._old = self._existing()
        if self._old and not overwrite:
            raise CheckpointError(
                f"{path} already holds {self._old[0].name}" + (f" and {len(self._old) - 1} more" if self._old[1:] else "")
                + "; choose another place, or pass overwrite=True (--overwrite) to replace it"
            )  # fmt: skip

    def __enter__(self) -> Writer:
        self.folder.mkdir(parents=True, exist_ok=True)
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        if self._file is not None:
            self._close()
        if kind is None:
            self._finish()
        else:
            for part, _, _ in self._shards:
                part.unlink(missing_ok=True)

    def add(self, tensors: dict[str, Tensor], tag: tuple[str, str] | None = None) -> None:
        """Write tensors into one file; `tag` (name, text) is written after them and padded to a multiple of 8 bytes."""
        size = sum(tensor.numel() * tensor.element_size() for tensor in tensors.values())
        if self._file is None or (not self.single and self._offset and self._offset + size > self._shard_bytes):
            self._begin()
        for name, tensor in sorted(tensors.items(), key=lambda item: (-item[1].element_size(), item[0])):
            if tensor.dtype not in NAMES:
                raise DtypeError(f"{name} is {tensor.dtype}, which safetensors can't hold")
            self._put(name, NAMES[tensor.dtype], list(tensor.shape), raw_bytes(tensor))
        if tag is not None:
            text = tag[1].encode()
            text += b" " * (-(self._offset + len(text)) % 8)
            self._put(tag[0], "U8", [len(text)], memoryview(text))

    def _begin(self) -> None:
        if self._file is not None:
            self._close()
        name = self.path.name if self.single else f"model-{len(self._shards) + 1:05}.safetensors"
        part = self.folder / f"{name}.part"
        self._file = part.open("wb")
        self._entries, self._offset = {}, 0
        self._shards.append((part, self._entries, 0))
        self._file.seek(8 + self._header_bytes)

    def _put(self, name: str, dtype: str, shape: list[int], raw: memoryview) -> None:
        if any(name in entries for _, entries, _ in self._shards):
            raise CheckpointError(f"two tensors are named {name!r}; a weight's own tensors are named after its layer")
        assert self._file is not None
        self._file.write(raw)
        self._entries[name] = {"dtype": dtype, "shape": shape, "data_offsets": [self._offset, self._offset + len(raw)]}
        self._offset += len(raw)

    def _close(self) -> None:
        assert self._file is not None
        header = json.dumps({"__metadata__": self._metadata, **self._entries}).encode()
        assert len(header) <= self._header_bytes, "a tensor came that was not announced"
        self._file.seek(0)
        self._file.write(self._header_bytes.to_bytes(8, "little") + header.ljust(self._header_bytes))
        self._file.close()
        self._file = None
        part, entries, _ = self._shards[-1]
        self._shards[-1] = part, entries, self._offset

    def _finish(self) -> None:
        for old in self._old:
            old.unlink()
        count = len(self._shards)
        weight_map: dict[str, str] = {}
        for i, (part, entries, _) in enumerate(self._shards, start=1):
            name = (
                self.path.name if self.single else "model.safetensors" if count == 1 else f"model-{i:05}-of-{count:05}.safetensors"
            )
            part.rename(self.folder / name)
            weight_map |= dict.fromkeys(entries, name)
        if count > 1:
            index = {"metadata": {"total_size": sum(size for _, _, size in self._shards)}, "weight_map": weight_map}
            (self.folder / INDEX).write_text(json.dumps(index, indent=1))

    def _existing(self) -> list[Path]:
        if self.single:
            return [self.path] if self.path.exists() else []
        return sorted([*self.path.glob("*.safetensors"), *self.path.glob("*.safetensors.index.json")])
