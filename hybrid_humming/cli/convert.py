"""`hybrid-humming convert PATH OUT`: a checkpoint of any format in our own, packed for a GPU or in the clear."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer


def convert(
    path: Annotated[Path, typer.Argument(help="A folder with config.json and safetensors, or one such file.")],
    out: Annotated[Path, typer.Argument(help="The folder to write, or one file if it ends in .safetensors.")],
    arch: Annotated[
        str | None,
        typer.Option("--arch", "--device", help="Pack for this GPU: a name (h200, b300 ...) or sm90 ...; default: that of --on."),
    ] = None,
    canonical: Annotated[
        bool, typer.Option("--canonical", help="Write weights in no kernel's order; every version reads them.")
    ] = False,
    on: Annotated[str, typer.Option("--on", help="Where to take apart and pack: cpu, or cuda for the GPU here.")] = "cpu",
    activation: Annotated[str | None, typer.Option(help="The activation half to serve with: mxfp8, 'e4m3 token' ...")] = None,
    gptq_zero_points: Annotated[str | None, typer.Option(help="v1 or v2, for GPTQ files that don't say which.")] = None,
    plain: Annotated[bool, typer.Option("--plain", help="Write layers that no spec holds (HQQ axis 0) as 16-bit weights.")] = False,
    readers: Annotated[int, typer.Option(help="Threads that read and pack ahead; each holds a layer.")] = 2,
    shard_gb: Annotated[float, typer.Option(help="Begin a new file where one would grow beyond this.")] = 5.0,
    overwrite: Annotated[bool, typer.Option("--overwrite", help="Replace what OUT holds.")] = False,
) -> None:
    """Write a checkpoint in this library's own files, which load without unpacking or scanning anything.

    Biases, unquantized tensors, config.json and the files beside it (tokenizer) come along.

    Example: hybrid-humming convert ./Qwen3-8B-GPTQ-Int4 ./Qwen3-8B-h200 --arch h200
    """
    import hybrid_humming as hh
    from hybrid_humming.cli.inspect import named_device, size_text
    from hybrid_humming.saving import convert as convert_loaded

    device = hh.DeviceInfo.named(named_device(arch)) if arch else None
    loaded = hh.load(path, device=device, activation=activation, gptq_zero_points=gptq_zero_points, plain=plain)
    shard_bytes = int(shard_gb * 1e9)
    convert_loaded(loaded, out, canonical=canonical, on=on, readers=readers, max_shard_bytes=shard_bytes, overwrite=overwrite)
    stored = sum(file.stat().st_size for file in ([out] if out.is_file() else out.glob("*.safetensors")))
    print(f"{len(loaded)} layer{'' if len(loaded) == 1 else 's'} written to {out}, {size_text(stored)}")
