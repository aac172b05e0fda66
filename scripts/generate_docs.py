"""Write the generated parts of README and docs, each between `<!-- generated: NAME ... -->` and `<!-- end -->`.

python scripts/generate_docs.py            write
python scripts/generate_docs.py --check    exit 1 and name the files that are out of date
"""

import json
import re
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))

import checkpoint_tables  # noqa: E402
import matrix_tables  # noqa: E402

from hybrid_humming import api, dtypes, env, errors, spec  # noqa: E402
from hybrid_humming.device import DeviceInfo, device_names  # noqa: E402
from hybrid_humming.plan import fallback_table, registry  # noqa: E402

MARKED = re.compile(r"(<!-- generated: (\w+)[^\n]*-->\n).*?(<!-- end -->)", re.S)


def table(head: list[str], rows: list[list[str]]) -> str:
    """A Markdown table."""
    lines = [head, ["---"] * len(head), *rows]
    return "\n".join("| " + " | ".join(row) + " |" for row in lines)


def error_table() -> str:
    """Every exception with its stable code, in order of the code."""
    classes = [c for c in vars(errors).values() if isinstance(c, type) and issubclass(c, errors.HybridHummingError)]
    rows = []
    for cls in sorted(classes, key=lambda c: c.code):
        caught = [c.__name__ for c in cls.__mro__ if issubclass(c, Exception) and c.__module__ == "builtins"]
        caught = [name for name in caught if name not in ("Exception", "LookupError", "ArithmeticError")] or ["Exception"]
        rows.append([f"`{cls.code}`", f"`{cls.__name__}`", ", ".join(caught), str(cls.__doc__).splitlines()[0]])
    return table(["code", "class", "also caught as", "raised when"], rows)


def format_table() -> str:
    """Every element format with its bits, range, special codes and storage."""
    specials = {"none": "none", "fn": "NaN", "ieee": "NaN, infinity"}
    rows = []
    for name in dtypes.format_names():
        fmt = dtypes.parse_format(name)
        step = "1" if fmt.is_integer else f"{positive_step(fmt):.6g}"
        storage = str(fmt.torch_storage).removeprefix("torch.")
        rows.append(
            [f"`{name}`", str(fmt.bits), f"{fmt.smallest:.6g}", f"{fmt.largest:.6g}", step, specials[fmt.specials], storage]
        )
    return table(["format", "bits", "lowest", "largest", "least above 0", "special codes", "one code in torch"], rows)


def positive_step(fmt: dtypes.ElementFormat) -> float:
    """The least value above zero."""
    if fmt.bits > 16:
        return 2.0 ** (1 - fmt.bias - fmt.mantissa_bits)
    return min(v for v in fmt.values.tolist() if v > 0)


def shorthand_table() -> str:
    """The names that stand for a whole half of a spec line."""
    rows = []
    for name, (fmt, group, scale, secondary) in spec.SHORTHANDS.items():
        rows.append([f"`{name}`", f"`{fmt} g{group}:{scale}{'+' + secondary if secondary else ''}`"])
    return table(["name", "means"], rows)


def sm_number(label: str) -> int:
    """The number of a column's label; those of other vendors' devices come last."""
    return int(label[3:]) if label.startswith("sm_") else 1000


def device_table() -> str:
    """Every device with its numbers and where they are from."""
    rows = []
    for name, fields in json.loads((ROOT / "hybrid_humming" / "devices.json").read_text())["devices"].items():
        info = DeviceInfo.named(name)
        rates = ", ".join(f"{fmt} {rate:g}" for fmt, rate in sorted(info.tera_ops, key=lambda one: (one[1], one[0])))
        size = f"{info.shared_per_block_bytes / 1024:g}" if info.shared_per_block_bytes else ""
        rows.append(
            [f"`{name}`", str(info.sm), str(info.sm_count), f"{info.dram_gbps:g}", size, rates, "; ".join(fields["sources"])]
        )
    return table(["device", "SM", "SMs", "GB/s", "shared KiB a block", "10¹² op/s by operand", "sources"], rows)


def multiplies_table() -> str:
    """What each GPU multiplies in place of an activation format, one column for GPUs that agree."""
    devices = [DeviceInfo.named(name) for name in device_names() if name != "cpu"]
    columns: dict[tuple[str, ...], list[str]] = {}
    for i, device in enumerate(devices):
        column = tuple(formats[i] for _, formats in fallback_table(devices))
        columns.setdefault(column, []).append(f"`{device.name}`" if device.families else f"sm_{device.sm}")
    activations = [activation for activation, _ in fallback_table(devices)]
    order = sorted(columns.items(), key=lambda item: min(map(sm_number, item[1])))
    head = ["activation", *(", ".join(sorted(set(sms), key=sm_number)) for _, sms in order)]
    rows = [[f"`{activation}`", *(column[i] for column, _ in order)] for i, activation in enumerate(activations)]
    return table(head, rows)


# The README's matrix: spec lines as users meet them, on one GPU of each generation.
SPEC_LINES = (
    "int4 g128 x bf16",
    "uint4 g64 zp x fp16",
    "int3 channel x bf16",
    "int8 channel x bf16",
    "e3m2 g32 x bf16",
    "e4m3 b128x128 x bf16",
    "mxfp4 x bf16",
    "nvfp4 x bf16",
    "int4 g128 x e4m3 token",
    "int8 channel x int8 token",
    "e4m3 channel x e4m3 token",
    "mxfp4 x mxfp8",
    "nvfp4 x nvfp4",
)
GPUS = {
    "T4": "t4",
    "A100": "a100",
    "L40S": "l40s",
    "H100, H200": "h200",
    "B200": "b200",
    "RTX PRO 6000": "rtx-pro-6000",
    "CPU": "cpu",
}
ROWS_OF_X = (1, 16, 1024)
SIZE = 4096


def support_table() -> str:
    """Which kernels run each spec on each GPU, asked of the planner."""
    rows = [[f"`{line}`", *(support(line, name) for name in GPUS.values())] for line in SPEC_LINES]
    return table(["spec", *GPUS], rows)


def support(line: str, device: str) -> str:
    """The kernel families that the planner picks for few and many rows, and what they multiply."""
    parsed = spec.Spec.parse(line)
    found: dict[str, None] = {}  # in order, each once
    for m in ROWS_OF_X:
        problem = spec.Problem(spec=parsed, m=m, n=SIZE, k=SIZE)
        try:
            plan = api.choose_plan(problem, device=device)
        except errors.HybridHummingError:
            return "no"
        operand = "" if plan.multiplies == parsed.activation or device == "cpu" else f" as {plan.multiplies}"
        entry = registry.kernel(plan.kernel)
        mark = {"stable": "", "trial": "ᵗ", "compiled, not run": "ᶜ"}[entry.status]
        family = "torch" if device == "cpu" else entry.launcher.split(":")[0].split(".")[-2]
        found[family + operand + mark] = None
    return ", ".join(found)


MEASURED = {"spec": "int4 g128 x bf16", "n": 8192, "k": 8192, "setting": "chain"}


def measured_table() -> str:
    """The newest measurement of one layer, ours and the peers, with what it was measured on."""
    results = [json.loads(file.read_text()) | {"file": file.name} for file in (ROOT / "bench" / "results").glob("*.json")]
    for result in sorted(results, key=lambda r: str(r["meta"]["date"]), reverse=True):
        rows = [r for r in result["rows"] if all(r.get(name) == value for name, value in MEASURED.items())]
        if rows:
            break
    else:
        return "Nothing yet."
    peers = sorted({name for row in rows for name in row["peers"]})
    head = ["M", "hybrid_humming", *peers, "kernel"]
    body = [
        [
            str(r["m"]),
            f"{r['us']:.1f}",
            *(f"{r['peers'][p]:.1f}" if p in r["peers"] else "" for p in peers),
            f"`{r['plan'].split()[0]}`",
        ]
        for r in sorted(rows, key=lambda r: int(r["m"]))
    ]
    meta, file = result["meta"], result["file"]
    what = f"Microseconds of `{MEASURED['spec']}`, N = {MEASURED['n']}, K = {MEASURED['k']}"
    how = "each call after a small kernel that writes x (cuBLAS: the bf16 weight)"
    where = f"{meta['device']}, torch {meta['torch']}, Triton {meta['triton']}, commit {meta['commit']}"
    return f"{what}, {how}. {where}, [{file}](bench/results/{file}).\n\n{table(head, body)}"


def variants_read() -> str:
    """Every variant that a fixture shows to be read."""
    return table(["`quant_method`", "spec", "fixtures in tests/golden"], checkpoint_tables.read_table())


def variants_experts() -> str:
    """How experts lie, by method: which fixtures have them stacked, and what shows those stored one by one."""
    return table(["`quant_method`", "one by one", "stacked in one tensor"], checkpoint_tables.experts_table())


def variants_refused() -> str:
    """Every variant that a test shows to be refused."""
    return table(["`quant_method`", "refused", "test"], checkpoint_tables.refused_table())


PARTS = {
    "matrix_kernels": lambda: table(matrix_tables.KERNEL_HEAD, matrix_tables.kernel_rows()),
    "matrix_tritons": lambda: table(matrix_tables.TRITON_HEAD, matrix_tables.triton_rows()),
    "matrix_formats": lambda: table(*matrix_tables.format_rows()),
    "variants_read": variants_read,
    "variants_refused": variants_refused,
    "variants_experts": variants_experts,
    "measured": measured_table,
    "support": support_table,
    "devices": device_table,
    "env": env.table,
    "errors": error_table,
    "formats": format_table,
    "shorthands": shorthand_table,
    "multiplies": multiplies_table,
}


def updated(text: str) -> str:
    """The text of a file with its generated parts made anew."""
    return MARKED.sub(lambda found: f"{found[1]}\n{PARTS[found[2]]()}\n\n{found[3]}", text)


def main() -> int:
    files = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]
    stale = [file for file in files if updated(file.read_text()) != file.read_text()]
    for file in stale:
        name = file.relative_to(ROOT)
        if "--check" in sys.argv[1:]:
            print(f"{name} is out of date: run python scripts/generate_docs.py")
        else:
            file.write_text(updated(file.read_text()))
            print(f"wrote {name}")
    return bool(stale) and "--check" in sys.argv[1:]


if __name__ == "__main__":
    sys.exit(main())
