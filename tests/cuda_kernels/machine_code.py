"""PTX to cubin to text with the tools of Triton's wheel: what the tests of the patch editor stand on."""

import functools
import re
import subprocess
import tempfile
from pathlib import Path

from hybrid_humming.jit.compile import toolchain

MMA_TYPES = ("e4m3", "e5m2", "e3m2", "e2m3", "e2m1")


@functools.cache
def assemble(ptx: str, target: str) -> bytes:
    with tempfile.TemporaryDirectory() as folder:
        text, cubin = Path(folder, "k.ptx"), Path(folder, "k.cubin")
        text.write_text(f".version 8.8\n.target {target}\n.address_size 64\n{ptx}")
        done = subprocess.run(
            [toolchain() / "ptxas-blackwell", "-arch", target, text, "-o", cubin], capture_output=True, text=True
        )  # fmt: skip
        assert done.returncode == 0, done.stdout + done.stderr
        return cubin.read_bytes()


@functools.cache
def disassemble(cubin: bytes) -> dict[int, str]:
    """Offset inside the code -> instruction; what the disassembler skips is missing. One kernel only."""
    with tempfile.NamedTemporaryFile(suffix=".cubin") as file:
        file.write(cubin)
        file.flush()
        done = subprocess.run([toolchain() / "nvdisasm", "-c", file.name], capture_output=True, text=True, check=True)
    return {int(offset, 16): text for offset, text in re.findall(r"/\*([0-9a-f]{4,5})\*/\s+(.*?)\s*;", done.stdout)}


def disassembler() -> str:
    """Release of nvdisasm: "13.1"."""
    done = subprocess.run([toolchain() / "nvdisasm", "--version"], capture_output=True, text=True, check=True)
    found = re.search(r"release (\d+\.\d+)", done.stdout)
    return found[1] if found else done.stdout


def kernel(body: str) -> str:
    """A kernel whose body finds fp32 in %f0 to %f3, words in %r0 to %r7, a 16-bit word in %h0, and its pointer in %rd1."""
    loads = "".join(f"ld.global.f32 %f{i}, [%rd1+{4 * i}];\n" for i in range(4))
    loads += "".join(f"ld.global.u32 %r{i}, [%rd1+{64 + 4 * i}];\n" for i in range(8))
    return (
        ".visible .entry k(.param .u64 p) {\n.reg .b64 %rd<4>; .reg .b32 %r<24>; .reg .f32 %f<24>; .reg .b16 %h<8>;\n"
        f"ld.param.u64 %rd0, [p]; cvta.to.global.u64 %rd1, %rd0; ld.global.u16 %h0, [%rd1+128];\n{loads}{body}\nret;\n}}\n"
    )


def mma(a: str, b: str, *, times: int = 1, kind: str = "f8f6f4") -> str:
    """`times` multiplications of a warp; kind f8f6f4, mxf8f6f4, or nvfp4 and mxfp4 for the 4-bit instruction."""
    shape, modifiers, scales = {
        "f8f6f4": ("m16n8k32", "kind::f8f6f4.f32.{}.{}.f32", False),
        "mxf8f6f4": ("m16n8k32", "kind::mxf8f6f4.block_scale.scale_vec::1X.f32.{}.{}.f32.ue8m0", True),
        "nvfp4": ("m16n8k64", "kind::mxf4nvf4.block_scale.scale_vec::4X.f32.{}.{}.f32.ue4m3", True),
        "mxfp4": ("m16n8k64", "kind::mxf4nvf4.block_scale.scale_vec::2X.f32.{}.{}.f32.ue8m0", True),
    }[kind]
    tail = ", %r6, {0, 0}, %r7, {0, 0}" if scales else ""
    one = (
        f"mma.sync.aligned.{shape}.row.col.{modifiers.format(a, b)} "
        "{%f4,%f5,%f6,%f7}, {%r0,%r1,%r2,%r3}, {%r4,%r5}, {%f0,%f1,%f2,%f3}" + tail + ";\n"
    )
    store = "".join(f"st.global.f32 [%rd1+{256 + 4 * i}], %f{4 + i};\n" for i in range(4))
    return (
        one
        + store
        + "".join(
            (one + store).replace(f"+{256}", f"+{512 + 64 * t}").replace("{%r0,", f"{{%r{1 + t % 3},") for t in range(times - 1)
        )
    )


CVT = {
    "down_e5m2": "cvt.rn.satfinite.e5m2x2.f32 %h1, %f0, %f1; st.global.u16 [%rd1+512], %h1;\n",
    "down_e4m3": "cvt.rn.satfinite.e4m3x2.f32 %h2, %f0, %f2; st.global.u16 [%rd1+516], %h2;\n",
    "down_e2m1": "{.reg .b8 t; cvt.rn.satfinite.e2m1x2.f32 t, %f0, %f3; cvt.u16.u8 %h3, t;} st.global.u16 [%rd1+520], %h3;\n",
    "up_e5m2": "cvt.rn.f16x2.e5m2x2 %r10, %h0; st.global.u32 [%rd1+524], %r10;\n",
    "up_e4m3": "cvt.rn.f16x2.e4m3x2 %r11, %h0; st.global.u32 [%rd1+528], %r11;\n",
    "up_e2m1": "{.reg .b8 t; cvt.u8.u16 t, %h0; cvt.rn.f16x2.e2m1x2 %r12, t;} st.global.u32 [%rd1+532], %r12;\n",
}
LDSM = (
    ".shared .align 16 .b8 tile[1024]; .reg .b32 %s;\nmov.u32 %s, tile; st.shared.u32 [%s], %r0; bar.sync 0;\n"
    "ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%r16,%r17,%r18,%r19}, [%s];\n"
    "st.global.v4.u32 [%rd1+512], {%r16,%r17,%r18,%r19};\n"
)
