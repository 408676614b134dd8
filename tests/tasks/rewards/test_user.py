from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest

from tasks.errors import ConfigError
from tasks.rewards.user import arguments, call, load


def test_functions_and_callable_instances_are_loaded(user_module: str) -> None:
    assert load(f"{user_module}:length")(completions=["abc"]) == [3.0]
    assert load(f"{user_module}:instance")(completions=["abc"]) == [4.0]


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("lenght", "has no 'lenght'"),
        ("value", "is a int, which cannot be called"),
        ("Reward", "is a class"),
        ("no_completions", "does not take `completions`"),
        ("by_position", "takes completions by position only"),
    ],
)
def test_what_cannot_be_called_is_named(user_module: str, name: str, message: str) -> None:
    with pytest.raises(ConfigError, match=message) as caught:
        load(f"{user_module}:{name}")
    assert f"{user_module}:{name}" in str(caught.value) and caught.value.fix


def test_modules_that_cannot_be_imported(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(tmp_path))
    (tmp_path / "needs_more.py").write_text("import not_installed_at_all")
    (tmp_path / "is_broken.py").write_text("1 / 0")
    (tmp_path / "leaves.py").write_text("raise SystemExit(3)")
    with pytest.raises(ConfigError, match=r"no module named 'not_there'.*\n.*spelling"):
        load("not_there:f")
    with pytest.raises(ConfigError, match=r"no module named 'not_installed_at_all'.*\n.*what needs_more needs"):
        load("needs_more:f")
    with pytest.raises(ConfigError, match="raised ZeroDivisionError"):
        load("is_broken:f")
    with pytest.raises(ConfigError, match="raised SystemExit"):
        load("leaves:f")
    with pytest.raises(ConfigError, match=r"form package\.module:function"):
        load("no_colon")


def test_a_function_gets_only_what_it_takes() -> None:
    def few(completions: Any, answer: Any = None) -> None: ...
    def all_of_it(completions: Any, **kwargs: Any) -> None: ...

    offered = {"completions": [], "answer": [], "extra": []}
    assert set(arguments(few, offered)) == {"completions", "answer"}
    assert set(arguments(all_of_it, offered)) == {"completions", "answer", "extra"}


def test_a_missing_column_is_named_with_those_that_are_there() -> None:
    def wants(completions: Any, solution: Any) -> None: ...

    with pytest.raises(ConfigError, match=r"needs 'solution'.*\n.*answer, completions"):
        arguments(wants, {"completions": [], "answer": []})


def test_async_functions_share_one_loop() -> None:
    loops = []

    async def waits(completions: Any) -> list[float]:
        loops.append(asyncio.get_running_loop())
        return [1.0 for _ in completions]

    with asyncio.Runner() as runner:
        assert call(waits, {"completions": ["a", "b"]}, runner) == [1.0, 1.0]
        call(waits, {"completions": []}, runner)
    assert loops[0] is loops[1]
