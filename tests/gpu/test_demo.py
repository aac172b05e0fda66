"""The demo's own measurements on a GPU, on a model of the same shape with random weights."""

import sys
from pathlib import Path

import pytest
import torch

import hybrid_humming as hh

CONFIG = {
    "hidden_size": 384, "intermediate_size": 1536, "num_attention_heads": 12, "num_hidden_layers": 2, "layer_norm_eps": 1e-12,
    "vocab_size": 1000, "max_position_embeddings": 64, "type_vocab_size": 2,
}  # fmt: skip


@pytest.fixture(scope="module")
def demo():
    pytest.importorskip("rich")
    sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "examples"))
    try:
        import demo

        yield demo
    finally:
        sys.path.pop(0)


@pytest.mark.parametrize(("spec", "most"), [("int8 channel x bf16", 0.03), ("int4 g128 x bf16", 0.2), ("nvfp4 x bf16", 0.2)])
def test_every_layer_runs_a_gpu_kernel_and_is_as_exact_as_its_format(demo, spec, most):
    torch.manual_seed(0)
    model = demo.minilm.MiniLM(CONFIG).eval().requires_grad_(False).cuda()
    ids = torch.randint(0, 1000, (4, 17), device="cuda")
    mask = torch.ones_like(ids)
    reference, seen = demo.capture(model, ids, mask)
    hh.replace_linear(model, spec)
    rows = list(demo.quantized_rows(model, seen, "cuda"))
    assert len(rows) == 13
    assert all(row.kernel != "torch.gemm_dequant" for row in rows)
    assert max(row.error for row in rows) < most
    assert sum(row.after_bytes for row in rows) < 0.3 * sum(row.before_bytes for row in rows)
    with torch.no_grad():
        embeddings, _ = model(ids, mask)
    assert ((embeddings * reference).sum(-1) > 0.8).all()
