import hybrid_humming
from hybrid_humming.cli import main


def test_without_a_gpu_it_says_what_was_skipped(monkeypatch, capfd):
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    assert main(["bench", "--specs", "int4 g128 x bf16", "--shapes", "8192x8192", "--ms", "1,16"]) == 0
    out = capfd.readouterr().out
    assert "no CUDA device: skipped" in out
    assert "2 points of 1 specs" in out


def test_a_wrong_option_is_wrong_usage(capfd):
    assert main(["bench", "--settings", "fast"]) == 2
    assert "fast" in capfd.readouterr().err


def test_outside_a_checkout_it_says_where_the_suite_is(monkeypatch, tmp_path, capfd):
    monkeypatch.setattr(hybrid_humming, "__file__", str(tmp_path / "site-packages" / "hybrid_humming" / "__init__.py"))
    assert main(["bench"]) == 2
    assert "clone the repository" in capfd.readouterr().err
