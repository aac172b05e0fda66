"""One compilation of gemm.cu as a value: what multiplies, the tile, and which factors the epilogue has.

The numbers that the source works out for itself (shared memory, threads) are repeated here for the launch; a test holds the two
together. Weights are the operand with 128 rows, so `a` of the descriptor is the weight and its n is `block_m`.
"""

from __future__ import annotations

from dataclasses import dataclass

from hybrid_humming.cuda_kernels.patch import InstructionDescriptor
from hybrid_humming.errors import UnsupportedProblem

ROWS = 128  # weight rows of a CTA
STEP_BYTES = 128  # of K in a stage, in shared memory
REALS = {"": 0, "fp32": 1, "bf16": 2, "fp16": 3}
# kind -> (as PTX spells it, scales of a row an instruction, format of the scales)
KINDS: dict[str, tuple[str, int, str]] = {
    "f16": ("f16", 0, ""),
    "f8f6f4": ("f8f6f4", 0, ""),
    "mxf8f6f4": ("mxf8f6f4.block_scale.block32", 1, "e8m0"),
    "mxf4": ("mxf4nvf4.block_scale.block32", 2, "e8m0"),
    "nvf4": ("mxf4nvf4.block_scale.block16", 4, "e4m3"),
}
CODE_BITS = {"e2m1": 4, "e0m3": 4, "e2m3": 6, "e3m2": 6, "fp16": 16, "bf16": 16}
WGMMA_TYPES = {"bf16": "bf16", "fp16": "f16", "e4m3": "e4m3", "e5m2": "e5m2"}


def code_bits(fmt: str) -> int:
    """Return the bits of one code in global memory."""
    return CODE_BITS.get(fmt, 8)


def slot_bits(kind: str, fmt: str) -> int:
    """Return the bits of shared memory that one code takes: kinds with 8-bit types spread narrower ones over bytes."""
    return 8 if kind in ("f8f6f4", "mxf8f6f4") else code_bits(fmt)


@dataclass(frozen=True, kw_only=True)
class GemmConfig:
    """What gemm.cu is compiled for.

    kind      key of KINDS
    w, x      element formats of the operands
    out       format of y
    block_m   rows of x a tile: 16, 32, 64, 128 or 256;  ctas  CTAs that work on one tile: 1 or 2
    scale, secondary, x_scale, bias   types of the epilogue's factors, "" where absent;  x_global  whether there is that factor
    """

    sm: int
    kind: str
    w: str
    x: str
    out: str
    block_m: int
    ctas: int = 1
    stages: int = 4
    scale: str = ""
    secondary: str = ""
    x_scale: str = ""
    bias: str = ""
    x_global: bool = False

    def __post_init__(self) -> None:
        if self.kind not in KINDS:
            raise UnsupportedProblem(f"gemm.cu has no kind {self.kind!r}; it has {', '.join(KINDS)}")
        least = max(16 * self.ctas, 32 if self.vector else 16)
        if self.block_m not in (16, 32, 64, 128, 256) or self.block_m < least or (self.sm < 100 and self.block_m > 128):
            raise UnsupportedProblem(
                f"block_m={self.block_m}: kind {self.kind} with {self.ctas} CTAs on sm_{self.sm} takes a power of two from {least} "
                f"to {256 if self.sm >= 100 else 128}"
            )
        if self.ctas not in (1, 2) or (self.ctas == 2 and self.sm < 100):
            raise UnsupportedProblem(
                f"ctas={self.ctas} on sm_{self.sm}: pairs of CTAs multiply on sm_100 and later, alone on sm_90"
            )
        if self.sm < 100 and (
            self.vector or (self.w != self.x and "bf16" in (self.w, self.x)) or not {self.w, self.x} <= set(WGMMA_TYPES)
        ):
            raise UnsupportedProblem(f"sm_{self.sm} multiplies no {self.w} by {self.x} of kind {self.kind}")

    @property
    def vector(self) -> int:
        """Scales of one row that an instruction reads."""
        return KINDS[self.kind][1]

    @property
    def block(self) -> int:
        """Codes that share a scale; 0 without block scales."""
        return {0: 0, 1: 32, 2: 32, 4: 16}[self.vector]

    @property
    def step(self) -> int:
        """Codes of K in a stage."""
        return STEP_BYTES * 8 // slot_bits(self.kind, self.x)

    @property
    def step_columns(self) -> int:
        """Columns of an operand's tensor map that a stage advances by: its units are bytes, or 16-bit numbers."""
        return STEP_BYTES // 2 if self.kind == "f16" else STEP_BYTES

    @property
    def descriptor(self) -> InstructionDescriptor:
        """The instruction descriptor that the kernel multiplies with."""
        kind = KINDS[self.kind][0].split(".")[0]
        return InstructionDescriptor(
            kind=kind, a=self.w, b=self.x, m=ROWS * self.ctas, n=self.block_m, scale=KINDS[self.kind][2]
        )  # fmt: skip

    @property
    def stage_bytes(self) -> int:
        """Shared memory of one stage: operand tiles, then tiles of 128 x 4 scales, to a multiple of 1024."""
        tiles = self.vector * (1 + (2 if self.block_m > 128 else 1))
        return -(-(ROWS * STEP_BYTES + self.block_m // self.ctas * STEP_BYTES + 512 * tiles) // 1024) * 1024

    @property
    def shared_bytes(self) -> int:
        """Dynamic shared memory of a launch, with the slack that aligns the first stage."""
        return self.stages * self.stage_bytes + 1024

    @property
    def threads(self) -> int:
        """Threads of a CTA: producer, issuer and four storing warps; on SM90 a producer and two multiplying warpgroups."""
        return 192 if self.sm >= 100 else 384

    def defines(self) -> dict[str, int | str]:
        """Return the macros of this compilation."""
        factors = {"SCALE": self.scale, "SECONDARY": self.secondary, "X_SCALE": self.x_scale, "BIAS": self.bias, "OUT": self.out}
        made: dict[str, int | str] = {name: REALS[fmt] for name, fmt in factors.items()}
        made |= {
            "VECTOR": self.vector, "CTAS": self.ctas, "BLOCK_M": self.block_m, "STAGES": self.stages,
            "STEP_COLUMNS": self.step_columns, "X_GLOBAL": int(self.x_global),
        }  # fmt: skip
        if self.sm >= 100:
            return made | {"KIND": f'"{KINDS[self.kind][0]}"', "DESCRIPTOR": f"{self.descriptor.encode():#x}u"}
        depth = 256 // slot_bits(self.kind, self.x)
        types = f".f32.{WGMMA_TYPES[self.w]}.{WGMMA_TYPES[self.x]}"
        transpose = ", 0, 0" if self.kind == "f16" else ""
        return made | {"SHAPE": f'"m64n{self.block_m}k{depth}"', "TYPES": f'"{types}"', "TRANSPOSE": f'"{transpose}"'}
