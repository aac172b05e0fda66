"""The tables of docs/compile-matrix.md, from the catalogs' representatives and the committed baselines."""

from collections.abc import Iterable

from hybrid_humming.device import DeviceInfo
from hybrid_humming.plan.registry import kernel, kernels
from hybrid_humming.spec import Spec
from tests.compile import matrix, rows
from tests.compile.matrix import Measured
from tests.compile.rows import Representative

Found = list[tuple[Representative, Measured]]


def baselines() -> dict[str, Found]:
    """Triton version, oldest first -> its representatives with what they came to."""
    listed = {one.key: one for one in rows.representatives()}
    versions = sorted((path.stem for path in matrix.FOLDER.glob("*.json")), key=lambda v: [int(part) for part in v.split(".")])
    return {v: [(listed[key], one) for key, one in matrix.baseline(v).items() if key in listed] for v in versions}


def span(values: Iterable[float], form: str = "g") -> str:
    """The least and the largest of the values that are not 0, or a dash."""
    known = sorted(value for value in values if value)
    if not known:
        return "–"
    low, high = f"{known[0]:{form}}", f"{known[-1]:{form}}"
    return low if low == high else f"{low} – {high}"


def kernel_rows() -> list[list[str]]:
    """One row for each kernel on each SM, over its formats and every Triton that compiled it."""
    rows.catalog_rows()  # registers the kernels
    out = []
    order = [entry.name for entry in kernels()]
    pairs = {(one.kernel, one.device) for one in rows.representatives()}
    for name, device in sorted(pairs, key=lambda pair: (order.index(pair[0]), DeviceInfo.named(pair[1]).sm)):
        info, entry = DeviceInfo.named(device), kernel(name)
        found = [(v, one, m) for v, all_ in baselines().items() for one, m in all_ if (one.kernel, one.device) == (name, device)]
        built = [(v, one, m) for v, one, m in found if not m.refused]
        formats = {str(Spec.parse(one.line).weight_format) for _, one, _ in built}
        out.append(
            [
                f"`{name}`",
                f"sm_{info.sm}",
                str(len(formats)),
                ", ".join(dict.fromkeys(v for v, *_ in built)),
                ", ".join(f"`{unit}`" for unit in sorted({m.mma for *_, m in built})),
                span(m.registers for *_, m in built),
                str(max((m.stack_bytes for *_, m in built), default=0)),
                f"{max(m.shared_bytes for *_, m in built) / 1024:.0f} of {info.shared_per_block_bytes / 1024:.0f}",
                span((m.per_weight for *_, m in built), ".1f"),
                entry.status,
            ]
        )
    return out


KERNEL_HEAD = [
    "kernel", "GPU", "weight formats", "Tritons", "multiplies with", "registers", "most spilled bytes", "most shared KiB",
    "instructions a weight", "status",
]  # fmt: skip


def triton_rows() -> list[list[str]]:
    """One row for each Triton."""
    out = []
    for version, found in baselines().items():
        refused = sorted({m.refused.split()[-1] for _, m in found if m.refused})
        spilling = [one.key.replace(" | ", ", ") for one, m in found if m.stack_bytes]
        out.append([version, str(len(found)), ", ".join(refused) or "none", "<br>".join(f"`{key}`" for key in spilling) or "none"])
    return out


TRITON_HEAD = ["Triton", "kernels", "GPUs it does not know", "that spill (16 bytes at most)"]


def format_rows() -> tuple[list[str], list[list[str]]]:
    """Head and rows: instructions for one weight of each format, for the kernels that have several formats on an SM."""
    best: dict[tuple[str, str], dict[str, float]] = {}
    for found in baselines().values():
        for one, m in found:
            if m.per_weight:
                column = best.setdefault((one.kernel, one.device), {})
                column.setdefault(str(Spec.parse(one.line).weight_format), m.per_weight)
    shown = {key: column for key, column in best.items() if len(column) > 5 and DeviceInfo.named(key[1]).sm in (75, 80, 90, 120)}
    columns = sorted(shown, key=lambda key: (key[0], DeviceInfo.named(key[1]).sm))
    head = ["weight", *(f"`{name}` sm_{DeviceInfo.named(device).sm}" for name, device in columns)]
    body = [
        [f"`{fmt}`", *(f"{shown[column][fmt]:.1f}" if fmt in shown[column] else "" for column in columns)]
        for fmt in rows.weight_formats()
    ]
    return head, body
