from pathlib import Path

import pytest

from hybrid_humming import env
from hybrid_humming.errors import SettingError

ROOT = Path(__file__).resolve().parents[1]


def test_cache_folder_follows_the_variables(monkeypatch):
    monkeypatch.delenv("HYBRID_HUMMING_CACHE_DIR", raising=False)
    monkeypatch.delenv("XDG_CACHE_HOME", raising=False)
    assert env.cache_dir() == Path.home() / ".cache" / "hybrid_humming"
    monkeypatch.setenv("XDG_CACHE_HOME", "/x")
    assert env.cache_dir() == Path("/x/hybrid_humming")
    monkeypatch.setenv("HYBRID_HUMMING_CACHE_DIR", "~/y")
    assert env.cache_dir() == Path.home() / "y"


def test_log_topics_are_split_and_checked(monkeypatch):
    monkeypatch.setenv("HYBRID_HUMMING_LOG", " plan , stats,")
    assert env.log_topics() == {"plan", "stats"}
    monkeypatch.setenv("HYBRID_HUMMING_LOG", "plans")
    with pytest.raises(SettingError, match=r"'plans'.*plan, calls, stats.*Did you mean 'plan'"):
        env.log_topics()


def test_every_variable_of_ours_is_in_the_table_and_there_are_under_ten(monkeypatch):
    source = Path(env.__file__).read_text()
    for variable in env.VARIABLES:
        assert variable.name.startswith(env.PREFIX)
        assert source.count(f'"{variable.name}"') >= 2, f"{variable.name} is in the table, but nothing reads it"
    assert len(env.VARIABLES) < 10


def test_an_unknown_name_with_our_prefix_is_found(monkeypatch):
    monkeypatch.setenv("HYBRID_HUMMING_LOGS", "plan")
    assert env.unknown_variables() == ["HYBRID_HUMMING_LOGS"]
