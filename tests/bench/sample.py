"""A results file as a run would write it, with made-up but plausible times."""

from bench import shapes


def sample_results():
    rows = []
    for spec in ("int4 g128 x bf16", "mxfp4 x bf16"):
        for m in shapes.MS:
            weight, other = shapes.io_bytes(spec, 8192, 8192, m)
            roof = max((weight + other) / 4.0e6 + 1, shapes.flops(8192, 8192, m) / 700e6)
            ours, humming, cublas = roof * 1.12 + 1.5, roof * 1.25 + 2.5, max(33.5, roof * 1.1)
            row = {"problem": "dense", "spec": spec, "n": 8192, "k": 8192, "m": m, "setting": "plain", "plan": "p", "err_l2": 2e-3}
            row |= {"us": ours, "us_p10": ours * 0.99, "us_p90": ours * 1.01, "roof_us": roof}
            row |= {"peers": {"humming": humming, "cublas": cublas}, "published": {"marlin": humming * (1.05 if m < 32 else 1.8)}}
            rows.append(row)
    meta = {"device": "NVIDIA H200", "driver": "580.1", "torch": "2.11.0", "triton": "3.6.0", "commit": "0123abc", "dirty": True}
    return {"meta": meta | {"date": "2026-12-01T00:00:00", "peers": {"humming": "0.1.20", "cublas": "2.11.0"}}, "rows": rows}
