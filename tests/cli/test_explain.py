import json

from hybrid_humming.cli import main

ASKED = ["explain", "int4 g128 x bf16", "-n", "8192", "-k", "8192"]


def test_names_the_kernel_for_a_gpu_that_is_not_here(capsys):
    assert main([*ASKED, "-m", "16", "--device", "h200"]) == 0
    out = capsys.readouterr().out
    assert out.startswith("int4 g128 x bf16 [M=16 N=8192 K=8192] on h200 (sm_90")
    assert "\nkernel " in out
    assert "\nrejected\n" in out


def test_every_missing_size_is_named_at_once(capsys):
    assert main(["explain", "int4 g128 x bf16", "-n", "8192"]) == 2
    assert "the sizes are missing: -m, -k. Example: hybrid-humming explain" in " ".join(capsys.readouterr().err.split())


def test_json_has_one_object_a_line(capsys):
    assert main([*ASKED, "-m", "1", "-m", "512", "--json"]) == 0
    first, second = (json.loads(line) for line in capsys.readouterr().out.splitlines())
    assert "M=1 " in first["problem"]
    assert "M=512 " in second["problem"]
    assert first["plan"]["kernel"]


def test_it_says_what_the_library_says(capsys):
    import hybrid_humming as hh

    assert main([*ASKED, "-m", "16"]) == 0
    assert capsys.readouterr().out == f"{hh.explain('int4 g128 x bf16', m=16, n=8192, k=8192, device='h200')}\n"


def test_a_wrong_spec_is_one_line_and_exit_code_1(capsys):
    assert main(["explain", "int9 g128 x bf16", "-m", "1", "-n", "128", "-k", "128"]) == 1
    assert capsys.readouterr().err.startswith("error: [HH00")


def test_an_unknown_gpu_is_named_with_the_nearest(capsys):
    assert main([*ASKED, "-m", "1", "--device", "h20o"]) == 1
    assert "Did you mean" in capsys.readouterr().err
