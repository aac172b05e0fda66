"""Whatever is wrong with a checkpoint, the user meets a typed error: config fields and tensors damaged at random."""

import contextlib
import copy
import random
import zlib
from typing import Any

import pytest
import torch

from hybrid_humming.checkpoint import inspect, load_canonical
from hybrid_humming.errors import HybridHummingError
from hybrid_humming.reference import dequantize
from tests.checkpoint.build import golden, write
from tests.checkpoint.test_golden import FOLDERS

ROUNDS = 12
ODD = [None, "x", -1, 0, 7, 1.5, [], {}, [1], True, False, {"a": 1}, 10**9, "re:(", ["re:("], [None]]


def places(value: Any, path: tuple = ()) -> list[tuple]:
    """The path of every field inside a JSON value."""
    items = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    return [place for key, inner in items for place in ((*path, key), *places(inner, (*path, key)))]


def damage_config(config: dict, rng: random.Random) -> None:
    *path, last = rng.choice(places(config))
    owner: Any = config
    for key in path:
        owner = owner[key]
    if isinstance(owner, dict) and rng.random() < 0.3:
        del owner[last]
    else:
        owner[last] = copy.deepcopy(rng.choice(ODD))


def damage_tensors(tensors: dict[str, torch.Tensor], rng: random.Random) -> None:
    name = rng.choice(sorted(tensors))
    tensor = tensors[name]
    ways = [lambda t: t.flatten()[: rng.randrange(t.numel() + 1)], lambda t: t[None], lambda t: t.to(torch.int16)]
    ways += [lambda t: t.float() if t.dtype != torch.float32 else t.half()]
    if tensor.dim() == 2:
        ways += [lambda t: t[:, : rng.randrange(t.shape[1] + 1)], lambda t: t.T, lambda t: t[: rng.randrange(t.shape[0])]]
    if len(tensors) > 1 and rng.random() < 0.2:
        del tensors[name]
    else:
        tensors[name] = rng.choice(ways)(tensor)


@pytest.mark.parametrize("folder", FOLDERS)
def test_damage_is_met_with_a_typed_error(folder, tmp_path):
    rng = random.Random(zlib.crc32(folder.encode()))
    config, tensors = golden(folder)
    for i in range(ROUNDS):
        table, parts = copy.deepcopy(config), dict(tensors)
        if rng.random() < 0.5:
            damage_config(table, rng)
        else:
            damage_tensors(parts, rng)
        path = write(tmp_path / str(i), table, parts)
        try:
            checkpoint = load_canonical(path)
            for weight in checkpoint.values():
                dequantize(weight)
        except HybridHummingError as error:
            assert len(str(error)) > 30, "an error says what was asked, what is allowed, what to do"
        with contextlib.suppress(HybridHummingError):
            inspect(path)
