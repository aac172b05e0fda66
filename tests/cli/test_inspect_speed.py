"""`hybrid-humming inspect` answers from headers alone: without torch, and fast for a thousand layers."""

import subprocess
import sys
import time
from pathlib import Path

import pytest

from tests.checkpoint.build import GOLDEN, golden, stack, write

FOLDERS = sorted(folder for folder in [*GOLDEN.iterdir(), *(GOLDEN / "refused").iterdir()] if (folder / "config.json").exists())


def test_no_format_needs_torch_to_be_listed():
    code = (
        "import sys\n"
        "from hybrid_humming.checkpoint import inspect\n"
        "from hybrid_humming.errors import HybridHummingError\n"
        "for path in sys.argv[1:]:\n"
        "    try: inspect(path)\n"
        "    except HybridHummingError: pass\n"
        "    if 'torch' in sys.modules: sys.exit(f'{path} imported torch')\n"
    )
    done = subprocess.run([sys.executable, "-c", code, *map(str, FOLDERS)], capture_output=True, text=True, cwd=Path.cwd())
    assert done.returncode == 0, done.stderr
    assert len(FOLDERS) > 100


@pytest.mark.parametrize("fmt", ["gptqmodel-w4-g16-sym-v1", "hqq-4bit"])
def test_a_thousand_layers_in_under_two_seconds(tmp_path, fmt):
    """Processor time of the whole process, start-up included: it runs on one core, and a busy machine doesn't count."""
    config, tensors = golden(fmt)
    layer = next(name for name in tensors if name.endswith(("qweight", "W_q"))).rpartition(".")[0]
    path = write(tmp_path, config, stack({n: t for n, t in tensors.items() if n.startswith(layer)}, 1000), shards=8)
    code = (
        "import sys, time\n"
        "from hybrid_humming.cli import main\n"
        "code = main(['inspect', sys.argv[1]])\n"
        "print(time.process_time(), file=sys.stderr)\n"
        "sys.exit(code)"
    )
    subprocess.run([sys.executable, "-c", "import hybrid_humming.cli"], check=True)  # byte code is written once
    started = time.perf_counter()
    done = subprocess.run([sys.executable, "-c", code, str(path)], capture_output=True, text=True, cwd=Path.cwd())
    assert done.returncode == 0, done.stderr
    assert "1000 quantized layers, 0 can't be read" in done.stdout
    assert float(done.stderr.split()[-1]) < 2, f"{time.perf_counter() - started:.2f} s by the clock"
