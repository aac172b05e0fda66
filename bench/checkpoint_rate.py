"""How fast a checkpoint's layers are taken apart and packed: GB/s of stored bytes, on the CPU and on a GPU.

    python -m bench.checkpoint_rate [--n 8192] [--k 8192] [--device cuda] [--pack-for h200]

Random words of each format, [N, K]. `taken apart` and `packed` take a whole layer, whose tensors lie on the device before the clock
starts, so no disk and no bus is measured; `loaded` is what hh.load does on a CPU: a piece at a time, read from the page cache.
A row is written only after the packed bytes were found equal to those that the CPU makes of a whole layer.
"""

from __future__ import annotations

import argparse
import json
import tempfile
import time
from pathlib import Path

import torch
from safetensors.torch import save_file

import hybrid_humming as hh
from hybrid_humming.checkpoint.opened import Checkpoint
from hybrid_humming.checkpoint.registry import StoredLayer

NAME = "layer"
INT4 = {"bits": 4, "group_size": 128, "sym": True}
LINEAR = {"targets": ["Linear"]}
NVFP4 = {"num_bits": 4, "type": "float", "strategy": "tensor_group", "group_size": 16, "symmetric": True}
CONFIGS = {
    "gptq": {"quant_method": "gptq", "checkpoint_format": "gptq", "desc_act": False, **INT4},
    "gptq act-order": {"quant_method": "gptq", "checkpoint_format": "gptq", "desc_act": True, **INT4},
    "awq": {"quant_method": "awq", "version": "gemm", "zero_point": True, "bits": 4, "group_size": 128},
    "compressed-tensors nvfp4": {
        "quant_method": "compressed-tensors",
        "format": "nvfp4-pack-quantized",
        "config_groups": {"group_0": {**LINEAR, "weights": NVFP4}},
    },
    "fp8 block": {"quant_method": "fp8", "weight_block_size": [128, 128]},
    "modelopt awq": {"quant_method": "modelopt", "quant_algo": "W4A16_AWQ"},
}


def words(*shape: int, dtype: torch.dtype = torch.int32) -> torch.Tensor:
    """Random bits."""
    return torch.randint(0, 256, (*shape, dtype.itemsize), dtype=torch.uint8).view(dtype).reshape(shape)


def tensors(kind: str, n: int, k: int) -> dict[str, torch.Tensor]:
    """The stored tensors of one layer."""
    scale = torch.full((k // 128, n), 0.01, dtype=torch.float16)
    if kind.startswith("gptq"):
        found = {"qweight": words(k // 8, n), "scales": scale, "qzeros": torch.full((k // 128, n // 8), 0x77777777)}
        found["qzeros"] = found["qzeros"].to(torch.int32)
        g_idx = (torch.arange(k) // 128).to(torch.int32)
        return found | {"g_idx": g_idx[torch.randperm(k)] if "act" in kind else g_idx}
    if kind == "awq":
        return {"qweight": words(k, n // 8), "scales": scale, "qzeros": words(k // 128, n // 8)}
    if kind == "fp8 block":
        weight = (torch.randn(n, k) / 4).to(torch.float8_e4m3fn)
        return {"weight": weight, "weight_scale_inv": torch.rand(-(-n // 128), -(-k // 128)) + 0.5}
    if kind == "modelopt awq":
        return {"weight": words(n // 2, k, dtype=torch.uint8), "weight_scale": torch.rand(n, k // 128) + 0.5}
    packed, blocks = words(n, k // 2, dtype=torch.uint8), torch.ones(n, k // 16).to(torch.float8_e4m3fn)
    return {"weight_packed": packed, "weight_scale": blocks, "weight_global_scale": torch.ones(1)}


def opened(kind: str, folder: Path, n: int, k: int) -> StoredLayer:
    """The layer in a checkpoint on disk."""
    written(kind, folder, n, k)
    return Checkpoint(folder).layer(NAME)


def written(kind: str, folder: Path, n: int, k: int) -> None:
    """Write a checkpoint of one layer."""
    config = {"dtype": "bfloat16" if "fp" in kind else "float16", "quantization_config": CONFIGS[kind]}
    (folder / "config.json").write_text(json.dumps(config))
    save_file({f"{NAME}.{part}": tensor for part, tensor in tensors(kind, n, k).items()}, folder / "model.safetensors")


def timed(call, device: str, repeats: int = 5) -> float:
    """Median seconds of `call`."""
    found = []
    for _ in range(repeats + 1):
        start = time.perf_counter()
        call()
        if device == "cuda":
            torch.cuda.synchronize()
        found.append(time.perf_counter() - start)
    return sorted(found[1:])[repeats // 2]


def rate(kind: str, n: int, k: int, device: str, pack_for: hh.DeviceInfo) -> dict[str, float | str | None]:
    """Convert and pack one layer on `device`, checked against the CPU's bytes, and time both halves."""
    with tempfile.TemporaryDirectory() as scratch:
        layer = opened(kind, Path(scratch), n, k)
        stored = {part: info.read() for part, info in layer.parts.items()}
        loaded = hh.load(scratch, device=pack_for)
        in_pieces = loaded[NAME][0]
        load = timed(lambda: loaded[NAME], "cpu") if device == "cpu" else None
    there = {part: tensor.to(device) for part, tensor in stored.items()}
    weight = layer.convert(there)
    packed, want = hh.pack_weight(weight, device=pack_for), hh.pack_weight(layer.convert(stored), device=pack_for)
    for part, tensor in want.tensors().items():
        mine = packed.tensors()[part].cpu().contiguous()
        loaded_bytes = in_pieces.tensors()[part].contiguous().view(torch.uint8)
        if not all(torch.equal(found, tensor.contiguous().view(torch.uint8)) for found in (mine.view(torch.uint8), loaded_bytes)):
            raise SystemExit(f"{kind}: {part} packed on {device} differs from the CPU's")
    convert = timed(lambda: layer.convert(there), device)
    pack = timed(lambda: hh.pack_weight(weight, device=pack_for), device)
    gb = layer.stored_bytes / 1e9
    return {
        "format": kind,
        "device": device,
        "convert_gbps": gb / convert,
        "pack_gbps": gb / pack,
        "both_gbps": gb / (convert + pack),
        "load_gbps": None if load is None else gb / load,
    }


def main() -> None:
    """Print one line a format and device."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--n", type=int, default=8192)
    parser.add_argument("--k", type=int, default=8192)
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--pack-for", default="h200", help="name of the GPU whose layouts to pack")
    parser.add_argument("--json", type=Path, help="also write the rows here")
    asked = parser.parse_args()
    info, rows = hh.DeviceInfo.of(asked.pack_for), []
    for device in dict.fromkeys(("cpu", asked.device)):
        for kind in CONFIGS:
            rows.append(rate(kind, asked.n, asked.k, device, info))
            row = rows[-1]
            print(
                f"{row['format']:26} {device:5} convert {row['convert_gbps']:8.2f} GB/s  pack {row['pack_gbps']:8.2f} GB/s  "
                f"both {row['both_gbps']:8.2f} GB/s" + (f"  loaded {row['load_gbps']:8.2f} GB/s" if row["load_gbps"] else "")
            )
    if asked.json:
        asked.json.write_text(json.dumps(rows, indent=1) + "\n")


if __name__ == "__main__":
    main()
