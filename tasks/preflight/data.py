"""The problems as GRPO will see them: golds that can be matched, answers that vary, prompts that fit. No torch."""

from __future__ import annotations

import re
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from types import SimpleNamespace
from typing import Any

from pipeline_config.contract import ContractConfig
from tasks.contract.golds import read_gold
from tasks.contract.kinds import Kind
from tasks.contract.prompts import completion_text, messages
from tasks.dataset.problem import content_digest, gold_in_question
from tasks.findings import Finding, Status
from tasks.rewards.build import Rewards
from tasks.rewards.spec import GOLD_COLUMN

Row = Mapping[str, Any]
Tables = Mapping[str, Sequence[Row]]

Scored = tuple[Row, Mapping[str, float | None], Mapping[str, str]]
"""A row, and by function what its gold got and what went wrong."""

FEW = 0.01
"""Up to this share of rows a fault costs a few dead groups: a warning."""

SAME_ANSWER_WARN, SAME_ANSWER_FAIL = 0.5, 0.95
COPIED_WARN, COPIED_FAIL = 0.2, 0.95
BATCH = 256
SAME = 1e-6
LONG = 10**4000
_CHOICE = re.compile(r"\(?[A-Za-z]\)?")


def check_golds(rows: Sequence[Row]) -> Finding:
    """Every gold can be read: as a number, an expression or a word."""
    name = "data.golds_parse"
    bad = [row for row in rows if read_gold(str(row["answer"])).kind is Kind.BAD_GOLD]
    if not bad:
        return Finding(name, "ok", f"all {len(rows)} golds can be read")
    evidence = (
        f"{len(bad)} of {len(rows)} golds cannot be read, for example {_cut(bad[0]['answer'])!r} (id {bad[0]['id']})"
    )
    fix = (
        "correct the gold column: a number, an expression or one word; `columns.answer` of the source names the column"
    )
    return Finding(name, _few(len(bad), len(rows)), evidence, fix)


def check_answers(rows: Sequence[Row]) -> list[Finding]:
    """The answers vary: a model that always says the commonest one must not get the reward."""
    keys = [answer_key(str(row["answer"])) for row in rows]
    if not keys:
        return [Finding("data.constant_answer", "not_measured", "there are no problems")]
    commonest, count = Counter(keys).most_common(1)[0]
    share = count / len(keys)
    evidence = f"{share:.0%} of {len(keys)} golds are {commonest[:40]!r}, the commonest of {len(set(keys))}"
    status: Status = "fail" if share >= SAME_ANSWER_FAIL else "warn" if share > SAME_ANSWER_WARN else "ok"
    if len(keys) < 4:
        status = "ok"
    fix = "check the gold column, or mix in problems with other answers" if status != "ok" else ""
    findings = [Finding("data.constant_answer", status, evidence, fix)]
    zeros = sum(key == "0" for key in keys) / len(keys)
    if zeros >= SAME_ANSWER_FAIL and len(keys) >= 4:
        evidence = (
            f"{zeros:.0%} of {len(keys)} golds are zero: a column that was empty or failed to convert looks like this"
        )
        fix = "name the column that holds the golds (`columns.answer` of the source)"
        return [Finding("data.zero_golds", "fail", evidence, fix), *findings]
    return [*findings, Finding("data.zero_golds", "ok", f"{zeros:.0%} of the golds are zero")]


def answer_key(gold: str) -> str:
    """Golds with equal keys are the same answer: 1,234 and 1234.0 are."""
    read = read_gold(gold)
    if read.value is not None and (value := read.value.fraction) is not None:
        # In base 16 where it is long: Python refuses to write more than 4,300 decimal digits.
        return (
            str(value)
            if abs(value) < LONG and value.denominator < LONG
            else f"{value.numerator:#x}/{value.denominator:#x}"
        )
    return " ".join(read.text.casefold().split())


def check_copied_golds(rows: Sequence[Row]) -> Finding:
    """Golds that stand in their questions can be copied without any working."""
    name = "data.gold_in_prompt"
    golds = [(str(row["answer"]), str(row["question"])) for row in rows]
    # The letter of a multiple-choice answer always stands in the question.
    open_golds = [(gold, question) for gold, question in golds if not _CHOICE.fullmatch(gold.strip())]
    if not open_golds:
        return Finding(name, "ok", "all golds are letters of choices")
    copied = [question for gold, question in open_golds if gold_in_question(gold, question)]
    share = len(copied) / len(open_golds)
    evidence = f"in {len(copied)} of {len(open_golds)} problems the gold stands in the question ({share:.0%})"
    if share <= COPIED_WARN:
        return Finding(name, "ok", evidence)
    evidence += f", for example {_cut(copied[0])!r}"
    fix = "look for a column that gives the answer away; small numbers occur by chance"
    status: Status = "fail" if share >= COPIED_FAIL and len(open_golds) >= 20 else "warn"
    return Finding(name, status, evidence, fix)


def check_repeats(tables: Tables, may_repeat: bool = False) -> list[Finding]:
    """Repeated questions in the training problems, and questions of the evaluation that training sees.

    Args:
        may_repeat: `data.deduplicate` is off, so that repeats are what was asked for.
    """
    contents = {role: [content_digest(str(row["question"])) for row in rows] for role, rows in tables.items()}
    train = contents.get("train", [])
    repeated = len(train) - len(set(train))
    evidence = f"{repeated} of {len(train)} training questions repeat another"
    if repeated and not may_repeat:
        findings = [Finding("data.duplicates", "warn", evidence, "set data.deduplicate=true")]
    else:
        asked = " (data.deduplicate is off)" if repeated else ""
        findings = [Finding("data.duplicates", "ok", evidence + asked)]
    seen = {role: len(set(found) & set(contents.get("eval", []))) for role, found in contents.items() if role != "eval"}
    shared = {role: count for role, count in seen.items() if count}
    if shared:
        shown = ", ".join(f"{count} in {role}" for role, count in shared.items())
        fix = "evaluate on other problems; the dataset stage keeps tables of its own making apart"
        findings.append(Finding("data.overlap", "fail", f"questions of the evaluation are in training: {shown}", fix))
    else:
        findings.append(
            Finding(
                "data.overlap", "ok", f"none of {len(contents.get('eval', []))} evaluation questions is in training"
            )
        )
    return findings


def check_lengths(longest: Mapping[str, int], limits: Mapping[str, int], context: int) -> Finding:
    """Longest prompt plus longest completion fit into the context, per table.

    Args:
        longest: table -> tokens of its longest prompt.
        limits: table -> longest completion that is sampled for it.
        context: `model.max_context`.
    """
    sums = {role: (tokens, limits[role], tokens + limits[role]) for role, tokens in longest.items() if tokens}
    over = {role: parts for role, parts in sums.items() if parts[2] > context}
    shown = ", ".join(f"{role} {a} + {b} = {c}" for role, (a, b, c) in (over or sums).items())
    if over:
        fix = (
            "lower grpo.max_completion_length (or evaluation.max_new_tokens), raise model.max_context, or leave long "
            "prompts out with data.max_prompt_tokens"
        )
        return Finding("data.context", "fail", f"longest prompt + completion > {context} tokens: {shown}", fix)
    return Finding("data.context", "ok", f"longest prompt + completion <= {context} tokens: {shown}")


def check_examples(lengths: Sequence[int], limit: int) -> Finding:
    """SFT rows with their closing tag and end-of-turn token fit into `sft.max_length`; longer ones are left out."""
    name = "data.sft_length"
    if not lengths:
        return Finding(name, "not_measured", "there are no worked solutions")
    over = sum(length > limit for length in lengths)
    evidence = (
        f"{over} of the {len(lengths)} longest SFT rows have more than {limit} tokens, the longest {max(lengths)}"
    )
    if not over:
        return Finding(name, "ok", evidence)
    fix = f"raise sft.max_length to {max(lengths)}, or use shorter solutions"
    return Finding(name, "fail" if over == len(lengths) else "warn", evidence, fix)


def check_completions(lengths: Sequence[int], limit: int) -> Finding:
    """The worked solutions that SFT teaches, as long as the model will then write, fit into GRPO's limit.

    A completion that is cut off cannot be right: truncation is the commonest cause of a reward that stays at zero.
    """
    name = "data.completion_length"
    if not lengths:
        return Finding(name, "not_measured", "there are no worked solutions")
    over = sum(length > limit for length in lengths)
    share = over / len(lengths)
    evidence = f"{over} of {len(lengths)} worked solutions ({share:.0%}) are longer than {limit} tokens, the longest {max(lengths)}"
    # A solution of exactly the limit still ends with its end-of-turn token.
    if share <= FEW:
        return Finding(name, "ok", evidence)
    fix = f"raise grpo.max_completion_length to {max(lengths)}, or use shorter solutions"
    return Finding(name, "fail" if share > 0.5 else "warn", evidence, fix)


def check_gold_rewards(
    rows: Sequence[Row],
    rewards: Rewards,
    contract: ContractConfig,
    encode: Callable[[str], list[int]],
    budget_s: float = 15.0,
) -> Finding:
    """The gold of every row, in a perfect completion, gets the maximum from the run's own rewards.

    Args:
        encode: token ids of a completion with its end-of-turn token.
        budget_s: no further batch is begun after this many seconds; how many rows were scored is said.
    """
    name = "data.gold_scores_maximum"
    began = time.monotonic()
    totals: list[Scored] = []
    for start in range(0, len(rows), BATCH):
        if totals and time.monotonic() - began > budget_s:
            break
        totals += _score(rows[start : start + BATCH], rewards, contract, encode)
    weighted = [spec for spec in rewards.specs if spec.weight]
    best = {
        spec.name: max((v for _, found, _ in totals if (v := found[spec.name]) is not None), default=0.0)
        if spec.maximum is None
        else spec.maximum
        for spec in weighted
    }
    faults = [(row, said) for row, found, errors in totals if (said := _faults(best, found, errors))]
    of = f"{len(totals)} rows" if len(totals) == len(rows) else f"the first {len(totals)} of {len(rows)} rows"
    maxima = ", ".join(f"{spec} {value:g}" for spec, value in best.items())
    if not faults:
        return Finding(name, "ok", f"the golds of {of} get the maximum ({maxima})")
    row, said = faults[0]
    evidence = f"{len(faults)} golds of {of} get less than the maximum ({maxima}), for example {_cut(row['answer'])!r} (id {row['id']}): {said}"
    fix = (
        "the gold in a perfect completion must get the most: correct the golds, or use a reward that reads them (sound)"
    )
    # Without a declared maximum a reward may well be different for different problems.
    declared = all(spec.maximum is not None for spec in weighted) or any(errors for _, _, errors in totals)
    return Finding(name, _few(len(faults), len(totals)) if declared else "warn", evidence, fix)


def _faults(best: Mapping[str, float], found: Mapping[str, float | None], errors: Mapping[str, str]) -> str:
    """What is wrong with the rewards of one gold; a None beside a value means that a function does not apply."""
    nothing = all(found[name] is None for name in best)
    said = []
    for name, maximum in best.items():
        value = found[name]
        if name in errors:
            said.append(f"{name} {errors[name]}")
        elif value is None:
            said += [f"{name} gives None"] if nothing and not errors else []
        elif abs(value - maximum) > SAME:
            said.append(f"{name} gives {value:g}")
    return ", ".join(said)


def offered(
    rows: Sequence[Row], contract: ContractConfig, texts: Sequence[str], ids: Sequence[Sequence[int]]
) -> dict[str, Any]:
    """What the trainer hands to a reward function: exactly the columns of `tasks.grpo.entry.prompts_of`."""
    return {
        "prompts": [messages(contract, str(row["question"])) for row in rows],
        "completions": [[{"role": "assistant", "content": text}] for text in texts],
        "completion_ids": [list(row) for row in ids],
        GOLD_COLUMN: [row["answer"] for row in rows],
        "id": [row["id"] for row in rows],
        "trainer_state": SimpleNamespace(global_step=0, max_steps=1, epoch=0.0),
        "log_metric": lambda *_: None,
        "log_extra": lambda *_: None,
    }


def _score(
    rows: Sequence[Row], rewards: Rewards, contract: ContractConfig, encode: Callable[[str], list[int]]
) -> list[Scored]:
    """Per row: value and error of every function on the gold in a perfect completion."""
    texts = [completion_text(contract, "Step by step.", str(row["answer"])) for row in rows]
    everything = rewards.evaluate(offered(rows, contract, texts, [encode(text) for text in texts]))
    named = list(zip(rewards.specs, everything, strict=True))
    return [
        (
            row,
            {spec.name: scores.values[at] for spec, scores in named},
            {spec.name: scores.errors[at] for spec, scores in named if at in scores.errors},
        )
        for at, row in enumerate(rows)
    ]


def _few(count: int, total: int) -> Status:
    return "warn" if count <= FEW * total else "fail"


def _cut(value: Any) -> str:
    text = str(value)
    return text if len(text) <= 80 else f"{text[:60]} ... {text[-16:]}"
