"""Rules hit as their writers mean them."""

import pytest

from hybrid_humming.checkpoint.rules import best_target, dynamic_override, names
from hybrid_humming.errors import CheckpointMismatch


@pytest.mark.parametrize(
    "name,target,hit",
    [
        ("model.layers.1.mlp.gate", "model.layers.1.mlp.gate", True),
        ("model.layers.1.mlp.gate_up_proj", "model.layers.1.mlp.gate", False),
        ("model.layers.1.mlp.gate_up_proj", "mlp.gate", False),
        ("model.layers.1.mlp.gate", "re:.*mlp.gate$", True),
        ("model.layers.1.mlp.gate_up_proj", "re:.*mlp.gate$", False),
        ("model.layers.1.mlp.gate", "re:mlp.gate", False),
    ],
)
def test_a_target_names_whole_modules(name, target, hit):
    assert names(name, target) is hit


def test_the_most_specific_target_wins():
    targets = ["Linear", "re:.*q_proj", "a.q_proj"]
    assert best_target("a.q_proj", targets) == "a.q_proj"
    assert best_target("b.q_proj", targets) == "re:.*q_proj"
    assert best_target("b.k_proj", targets) == "Linear"
    assert best_target("b.k_proj", ["re:.*q_proj", "Embedding"]) is None


def test_the_first_dynamic_rule_that_hits_counts():
    rules = {r"-:.*\.0\.": {}, r"+:.*q_proj": {"bits": 8}, r".*": {"bits": 2}}
    assert dynamic_override(rules, "m.0.q_proj") is False
    assert dynamic_override(rules, "m.1.q_proj") == {"bits": 8}
    assert dynamic_override(rules, "m.1.k_proj") == {"bits": 2}
    assert dynamic_override(None, "m") is None
    assert dynamic_override({r"+:q_proj": {"bits": 8}}, "m.q_proj") is None, "a rule is anchored at the start of the name"


def test_a_broken_rule_is_named():
    with pytest.raises(CheckpointMismatch, match=r"rule '\+:\(' of the quantization config is no regular expression"):
        dynamic_override({"+:(": {}}, "m")
