"""What `import hybrid_humming` may do: nothing but define names."""

import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]


def run_python(code: str) -> subprocess.CompletedProcess:
    return subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, timeout=120)


def check(code: str) -> None:
    done = run_python(code)
    assert done.returncode == 0, done.stderr


def test_import_loads_no_kernel_compiler_and_touches_no_gpu():
    check("""
import sys
import hybrid_humming
for name in ("triton", "cutlass", "cuda", "pynvml", "typer", "rich", "transformers", "vllm"):
    assert name not in sys.modules, f"import hybrid_humming imported {name}"
if "torch" in sys.modules:
    assert not sys.modules["torch"].cuda.is_initialized()
""")


def test_import_opens_no_nvml():
    """A library that counts GPUs at import breaks processes that set CUDA_VISIBLE_DEVICES or fork afterwards."""
    done = run_python("""
import ctypes, sys
opened = []
sys.addaudithook(lambda event, args: opened.append(str(args[0])) if event == "ctypes.dlopen" else None)
import hybrid_humming
bad = [name for name in opened if "nvidia-ml" in name or "libcuda" in name]
assert not bad, bad
""")
    assert done.returncode == 0, done.stderr


def test_import_starts_no_process_and_writes_no_file():
    check("""
import os, sys
seen = []
def hook(event, args):
    if event in ("subprocess.Popen", "os.system", "os.posix_spawn", "os.fork", "os.mkdir"):
        seen.append((event, str(args)[:80]))
    if event == "open" and isinstance(args[1], str) and any(c in args[1] for c in "wax+"):
        seen.append((event, str(args)[:80]))
sys.dont_write_bytecode = True
sys.addaudithook(hook)
import hybrid_humming
assert not seen, seen
""")


def test_import_twice_and_find_spec():
    check("""
import importlib, importlib.util
import hybrid_humming
first = dict(vars(hybrid_humming))
importlib.reload(hybrid_humming)
assert importlib.util.find_spec("hybrid_humming.triton_kernels") is not None
assert importlib.util.find_spec("hybrid_humming.cuda_kernels") is not None
""")


def test_every_public_name_resolves():
    """The table in __init__ points only at what exists."""
    check("""
import hybrid_humming as hh
for name in hh.__all__:
    assert getattr(hh, name) is not None, name
    assert name in dir(hh)
try:
    hh.no_such_name
except AttributeError as error:
    assert "no_such_name" in str(error)
else:
    raise AssertionError("an unknown name must raise")
""")


def test_no_public_name_is_a_module_of_ours():
    """Importing hybrid_humming.x binds the module to the package's attribute x, over a function of that name."""
    check("""
import importlib.util
import hybrid_humming as hh
for name in hh.__all__:
    assert name == "__version__" or importlib.util.find_spec(f"hybrid_humming.{name}") is None, name
""")


@pytest.mark.parametrize("bare", ["triton_kernels", "cuda_kernels"])
def test_bare_kernel_package_refuses_to_be_imported(bare):
    """From the repository root the folder is importable by its bare name, another project's: it must refuse."""
    check(f"""
import sys
try:
    import {bare}
except ImportError as error:
    assert "hybrid_humming.{bare}" in str(error), error
else:
    raise AssertionError("the bare name was imported")
assert "{bare}" not in sys.modules
import hybrid_humming.{bare}
assert "{bare}" not in sys.modules
""")
