"""Commands that look at files and functions without running the chain: `grade`, `reward audit`."""

from __future__ import annotations

import json
from collections import Counter, defaultdict
from pathlib import Path
from typing import Annotated, Any

import typer

from flows.console import AsJson, Files, Profile, Sets, configured, out, user_errors

reward_app = typer.Typer(no_args_is_help=True, help="Audit reward functions.")
NOT_SOUND = 24


def grade(
    file: Annotated[Path, typer.Argument(help="JSONL or Parquet with one completion a row.")],
    profile: Profile = "smollm2-135m",
    sets: Sets = None,
    files: Files = None,
    response_column: Annotated[str, typer.Option(help="Column with the completion.")] = "response_text",
    gold_column: Annotated[str, typer.Option(help="Column with the gold answer.")] = "gold",
    as_json: AsJson = False,
) -> None:
    """Grade a file of completions: extracted span, verdict, kind and rewards per row (--json), or a summary.

    The tags and rewards are the configuration's: change them with --set contract.answer_start=... and so on.
    """
    with user_errors():
        config = configured(profile, files, sets)
        from tasks.contract.grade_file import grade_rows
        from tasks.rewards.build import build_rewards

        with build_rewards(config.grpo.rewards, config.contract) as rewards:

            def score(completion: str, gold: str, row: Any) -> dict[str, float | None]:
                # As the trainer calls them: lists of one, every column of the row beside.
                columns = {
                    k: [v] for k, v in row.items() if k not in (response_column, gold_column, "prompts", "completions")
                }
                offered = {
                    **columns,
                    "prompts": [""],
                    "completions": [completion],
                    "completion_ids": [[]],
                    "answer": [gold],
                }
                return {f.__name__: f(**offered)[0] for f in rewards.functions}

            rows = grade_rows(
                file, contract=config.contract, response_column=response_column, gold_column=gold_column, rewards=score
            )
            kinds: Counter[str] = Counter()
            scored: dict[str, list[float]] = defaultdict(list)
            for row in rows:
                kinds[row["kind"]] += 1
                for name, value in row["rewards"].items():
                    # A row that a function did not score does not count in its mean, as in training.
                    scored[name] += [] if value is None else [value]
                if as_json:
                    # Half a surrogate pair has no UTF-8; its escape is JSON, too.
                    print(json.dumps(row, ensure_ascii=False).encode("utf-8", "backslashreplace").decode())
        if not as_json:
            _print_grades(kinds, scored)


def _print_grades(kinds: Counter[str], scored: dict[str, list[float]]) -> None:
    from statistics import fmean

    from rich.table import Table

    from tasks.statistics import wilson

    n = sum(kinds.values())
    table = Table("verdict", "rows", "share", title=f"{n} completions")
    for kind, count in kinds.most_common():
        table.add_row(kind, str(count), f"{count / n:.1%}")
    out.print(table)
    if n:
        low, high = wilson(kinds["right"], n)
        out.print(f"right: {kinds['right']} of {n} = {kinds['right'] / n:.1%} (95 % interval {low:.1%} to {high:.1%})")
        for name, values in scored.items():
            left = f" ({n - len(values)} of {n} rows not scored)" if len(values) < n else ""
            out.print(
                f"mean reward {name}: {fmean(values):.4g}{left}" if values else f"mean reward {name}: no row scored"
            )


@reward_app.command("audit")
def reward_audit(
    functions: Annotated[
        list[str] | None, typer.Argument(help="`module:function`, repeatable; nothing audits the configured rewards.")
    ] = None,
    profile: Profile = "smollm2-135m",
    sets: Sets = None,
    files: Files = None,
    preset: Annotated[str | None, typer.Option(help="`sound` or `self_llm`.")] = None,
    as_json: AsJson = False,
) -> None:
    """Does the reward order completions rightly? Exit code 24 if not."""
    with user_errors():
        config = configured(profile, files, sets)
        from pydantic import ValidationError

        from pipeline_config.rewards import RewardConfig
        from tasks.errors import ConfigError
        from tasks.rewards.audit import audit_rewards
        from tasks.rewards.build import build_rewards
        from tasks.rewards.report import render, render_cases

        chosen = config.grpo.rewards
        if preset or functions:
            try:
                chosen = RewardConfig.model_validate(
                    {"preset": preset, "functions": [{"path": path} for path in functions or []]}
                )
            except ValidationError as error:
                reasons = "; ".join(fault["msg"] for fault in error.errors())
                raise ConfigError(reasons, where="reward audit", fix="give module:function, or --preset") from error
        with build_rewards(chosen, config.contract) as rewards:
            report = audit_rewards(rewards, config.contract)
        if as_json:
            print(json.dumps(report.to_json(), ensure_ascii=False))
        else:
            out.print(render(report))
            out.print(render_cases(report))
        if not report.passed:
            raise typer.Exit(NOT_SOUND)
