"""Run each kernel once on ragged shapes, for a memory checker to watch; prints one line a kernel.

compute-sanitizer --tool memcheck --error-exitcode 1 python tests/gpu/sanitize.py
compute-sanitizer --tool racecheck --error-exitcode 1 python tests/gpu/sanitize.py
"""

import sys
from pathlib import Path

import torch

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))
import hybrid_humming as hh
from hybrid_humming.device import DeviceInfo
from hybrid_humming.plan.choose import make_plan, survey

LINES = [
    "int4 g128 x bf16",
    "uint3 g32 zp x fp16",
    "nvfp4 x bf16",
    "e4m3 b128x128 x bf16",
    "mxfp4 x mxfp8",
    "int8 channel x int8 token",
]


def main() -> None:
    device = DeviceInfo.of("cuda")
    for line in LINES:
        spec = hh.Spec.parse(line)
        for layout in ("portable", None):
            qweight = hh.quantize(torch.randn(200, 384, device="cuda"), spec, layout=layout)
            for m in (1, 3, 70):
                x = torch.randn(m, 384, device="cuda").to(torch.float16 if spec.activation == "fp16" else torch.bfloat16)
                out = torch.full((m, 200), float("nan"), device="cuda")
                problem = hh.Problem(spec=spec, m=m, n=200, k=384)
                choice = survey(problem.replace(spec=spec.replace(out_dtype="fp32")), qweight.layout, device)
                seen = set()
                for candidate in choice.candidates:
                    if candidate.entry.name in seen:
                        continue
                    seen.add(candidate.entry.name)
                    plan = make_plan(candidate, choice.problem, qweight.layout, device)
                    out.fill_(float("nan"))
                    hh.gemm(x, qweight, out=out, plan=plan)
                    torch.cuda.synchronize()
                    print(f"{line} M={m} {plan}: {'ok' if out.isfinite().all() else 'NOT WRITTEN'}", flush=True)


if __name__ == "__main__":
    main()
