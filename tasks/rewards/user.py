"""Loading and calling the user's own reward functions."""

from __future__ import annotations

import asyncio
import importlib
import inspect
from collections.abc import Mapping
from typing import Any

from tasks.errors import ConfigError
from tasks.rewards.spec import RewardFn

SIGNATURE = "def f(prompts, completions, answer, **kwargs) -> list[float]"


def load(path: str) -> RewardFn:
    """Import `package.module:function`.

    Raises:
        ConfigError: not importable, no such attribute, not callable, or a signature that TRL cannot call.
    """
    module_name, _, attribute = path.partition(":")
    if not module_name or not attribute:
        raise ConfigError(f"{path!r} is not of the form package.module:function", where="rewards.functions")
    where = f"rewards.functions: {path}"
    try:
        target: Any = importlib.import_module(module_name)
    except ModuleNotFoundError as error:
        missing = error.name or module_name
        if module_name == missing or module_name.startswith(missing + "."):
            fix = "check the spelling, and start from the folder that holds the module (or install its package)"
        else:
            fix = f"install what {module_name} needs"
        raise ConfigError(f"no module named {missing!r}", where=where, fix=fix) from error
    except (Exception, SystemExit) as error:
        raise ConfigError(
            f"importing {module_name} raised {type(error).__name__}: {error}", where=where, fix="import it in a shell"
        ) from error
    for part in attribute.split("."):
        try:
            target = getattr(target, part)
        except AttributeError:
            names = [n for n, v in vars(target).items() if inspect.isfunction(v) and not n.startswith("_")]
            fix = f"functions in it: {', '.join(names[:10])}" if names else "it has no functions"
            raise ConfigError(f"{module_name} has no {attribute!r}", where=where, fix=fix) from None
    _check_signature(target, where)
    function: RewardFn = target
    return function


def _check_signature(target: Any, where: str) -> None:
    if inspect.isclass(target):
        raise ConfigError("is a class, not a function", where=where, fix="name an instance of it that can be called")
    if not callable(target):
        raise ConfigError(f"is a {type(target).__name__}, which cannot be called", where=where, fix=SIGNATURE)
    try:
        parameters = inspect.signature(target).parameters.values()
    except (TypeError, ValueError):
        return  # built without a signature (C code): it is called with everything
    only_by_place = [p.name for p in parameters if p.kind is p.POSITIONAL_ONLY and p.default is p.empty]
    if only_by_place:
        raise ConfigError(
            f"takes {', '.join(only_by_place)} by position only, and rewards are called by keyword",
            where=where,
            fix=SIGNATURE,
        )
    takes_all = any(p.kind is p.VAR_KEYWORD for p in parameters)
    if not takes_all and "completions" not in {p.name for p in parameters}:
        raise ConfigError("does not take `completions`", where=where, fix=SIGNATURE)


def arguments(function: RewardFn, offered: Mapping[str, Any]) -> dict[str, Any]:
    """Those of `offered` that the function takes, so that `**kwargs` is not required.

    Raises:
        ConfigError: it needs an argument that is neither offered nor has a default.
    """
    try:
        parameters = inspect.signature(function).parameters.values()
    except (TypeError, ValueError):
        return dict(offered)
    named = {p.name: p for p in parameters if p.kind in (p.POSITIONAL_OR_KEYWORD, p.KEYWORD_ONLY)}
    missing = [n for n, p in named.items() if p.default is p.empty and n not in offered]
    if missing:
        raise ConfigError(
            f"needs {', '.join(map(repr, missing))}, which no dataset column provides",
            where=f"reward function {getattr(function, '__name__', function)}",
            fix=f"it can have: {', '.join(sorted(offered))}; the gold is `answer`",
        )
    if any(p.kind is p.VAR_KEYWORD for p in parameters):
        return dict(offered)
    return {name: value for name, value in offered.items() if name in named}


def call(function: RewardFn, offered: Mapping[str, Any], runner: asyncio.Runner) -> Any:
    """Call a sync or async function; async ones run on `runner`, whose loop lives as long as its owner."""
    returned = function(**arguments(function, offered))
    if not inspect.isawaitable(returned):
        return returned

    async def wait() -> Any:
        return await returned

    return runner.run(wait())
