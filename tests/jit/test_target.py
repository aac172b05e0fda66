"""A Triton that is too old for a GPU is refused in our words, before its compiler ends the process."""

import pytest
import triton

from hybrid_humming.errors import CompileError
from hybrid_humming.jit.compile import check_target


@pytest.mark.parametrize(("version", "sm"), [("3.6.0", 110), ("3.7.0", 110), ("3.6.0", 107), ("3.7.1", 107)])
def test_a_triton_too_old_for_the_sm_is_refused_with_the_first_that_does(version, sm, monkeypatch):
    monkeypatch.setattr(triton, "__version__", version)
    with pytest.raises(CompileError, match=rf"Triton {version} does not know sm_{sm}a; 3\.\d\.\d is the first that does"):
        check_target(sm)


@pytest.mark.parametrize(("version", "sm"), [("3.6.0", 75), ("3.6.0", 121), ("3.7.1", 110), ("3.9.0", 107), ("3.10.0+git1", 107)])
def test_newer_tritons_and_older_gpus_pass(version, sm, monkeypatch):
    monkeypatch.setattr(triton, "__version__", version)
    check_target(sm)
