"""Answer verification: ours, math-verify and TRL's accuracy_reward on the same corpus, and how fast ours is.

    python benchmarks/answers.py [--corpus PATH] [--out benchmarks/answers.json]

Takes about two minutes on one core. The corpus is `answers.jsonl` (see `docs/answers.md`); rows marked as policy are left out of
right and wrong. Each grader runs in a process of its own that is killed when one case takes longer than `STALL_LIMIT_S`.
Times are CPU time of that process, so that a busy machine does not change them.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import os
import platform
import random
import sys
import time
from collections.abc import Callable
from functools import partial
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))

from pipeline_config.contract import ContractConfig  # noqa: E402
from tasks.contract.answers import same_answer  # noqa: E402
from tasks.contract.extraction import extract  # noqa: E402
from tasks.contract.grading import grade  # noqa: E402

CONTRACT = ContractConfig()
STALL_S = 1.0
"""A case that takes longer than this is counted as a stall."""
STALL_LIMIT_S = 45.0
"""A case that takes longer than this is killed."""
Grader = Callable[[str, str], bool]


def ours() -> Grader:
    return lambda response, gold: grade(response, gold, CONTRACT).right


def math_verify_span() -> Grader:
    from math_verify import parse, verify

    def judge(response: str, gold: str) -> bool:
        span = extract(response, CONTRACT).span
        return span is not None and bool(verify(parse(f"${gold}$"), parse(f"${span}$")))

    return judge


def trl_whole() -> Grader:
    from trl.rewards import accuracy_reward

    return lambda response, gold: accuracy_reward([[{"content": response}]], [gold])[0] == 1.0


def trl_boxed_span() -> Grader:
    from trl.rewards import accuracy_reward

    def judge(response: str, gold: str) -> bool:
        span = extract(response, CONTRACT).span
        return span is not None and accuracy_reward([[{"content": f"\\boxed{{{span}}}"}]], [f"${gold}$"])[0] == 1.0

    return judge


GRADERS: dict[str, Callable[[], Grader]] = {
    "ours": ours,
    "math-verify, our span in $": math_verify_span,
    "TRL accuracy_reward, our span in \\boxed, gold in $": trl_boxed_span,
    "TRL accuracy_reward, whole completion": trl_whole,
}


def serve(name: str, pipe: Connection) -> None:
    """Answer (response, gold) with ("ok", verdict, CPU seconds) or ("crash", message, CPU seconds)."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), 2)  # math-verify prints the texts that it gives up on
    judge = GRADERS[name]()
    judge("<end_working_out><SOLUTION>x+1</SOLUTION>", "1+x")  # imports and warm-up stay out of the times
    pipe.send("ready")
    while True:
        response, gold = pipe.recv()
        start = time.process_time()
        outcome: tuple[str, bool | str]
        try:
            outcome = ("ok", bool(judge(response, gold)))
        except Exception as error:
            outcome = ("crash", f"{type(error).__name__}: {error}"[:200])
        pipe.send((*outcome, time.process_time() - start))


class Guarded:
    """A grader in a process of its own, restarted after a stall."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.start()

    def start(self) -> None:
        context = multiprocessing.get_context("spawn")
        self.pipe, theirs = context.Pipe()
        self.process = context.Process(target=serve, args=(self.name, theirs), daemon=False)
        self.process.start()
        theirs.close()
        assert self.pipe.recv() == "ready"

    def stop(self) -> None:
        self.process.kill()
        self.process.join()

    def __call__(self, response: str, gold: str) -> tuple[str, Any, float]:
        self.pipe.send((response, gold))
        if not self.pipe.poll(STALL_LIMIT_S):
            self.stop()
            self.start()
            return "killed", None, STALL_LIMIT_S
        answer: tuple[str, Any, float] = self.pipe.recv()
        return answer


def run(name: str, rows: list[dict[str, Any]]) -> dict[str, Any]:
    """One line of the table."""
    grader = Guarded(name)
    line: dict[str, Any] = {
        "grader": name,
        "uncontested_right": 0,
        "false_accept": [],
        "false_reject": [],
        "crash_or_stall": [],
    }
    spent: list[float] = []
    for row in rows:
        outcome, verdict, seconds = grader(row["response_text"], row["gold"])
        spent.append(seconds)
        if outcome != "ok" or seconds > STALL_S:
            line["crash_or_stall"].append(row["id"])
        if row["policy"]:
            continue
        if outcome == "ok" and verdict == row["should_match"]:
            line["uncontested_right"] += 1
        elif outcome == "ok":
            line["false_accept" if verdict else "false_reject"].append(row["id"])
    grader.stop()
    line["ms_per_case_mean"] = round(1000 * sum(spent) / len(spent), 3)
    line["ms_per_case_median"] = round(1000 * sorted(spent)[len(spent) // 2], 3)
    line["ms_slowest"] = round(1000 * max(spent), 1)
    return line


FORMS: dict[str, Callable[[int], str]] = {
    "1234": str,
    "1,234": lambda n: f"{n:,}",
    "$1,234.00": lambda n: f"${n:,}.00",
    "1234 apples": lambda n: f"{n} apples",
    "1234/7": lambda n: f"{n}/7",
    "\\boxed{1234}": lambda n: f"\\boxed{{{n}}}",
    "\\frac{1234}{7}": lambda n: f"\\frac{{{n}}}{{7}}",
    "1234%": lambda n: f"{n}%",
    "x = 1234": lambda n: f"x = {n}",
    "1234.5": lambda n: f"{n}.5",
    "1234 or 1235": lambda n: f"{n} or {n + 1}",
    "1234 + 1": lambda n: f"{n} + 1",
}


def throughput(count: int = 24_000) -> dict[str, Any]:
    """Answers and completions a second of one core; all texts differ, so nothing is remembered from one to the next."""
    numbers = random.Random(0).sample(range(10**6, 10**7), count)
    forms = list(FORMS.values())
    mixed = [(forms[i % len(forms)](n), str(n)) for i, n in enumerate(numbers)]
    completions = [(f"\nWe add them up.\n<end_working_out>\n<SOLUTION>{a}</SOLUTION>", g) for a, g in mixed]
    by_form = {}
    for name, form in FORMS.items():
        some = [(form(n), str(n)) for n in numbers[:3000]]
        by_form[name] = rate(partial(answer_all, some), len(some))
    return {
        "same_answer_mixed_per_s": rate(partial(answer_all, mixed), count),
        "grade_mixed_per_s": rate(lambda: [grade(c, g, CONTRACT) for c, g in completions], count),
        "same_answer_per_s_by_form": by_form,
    }


def answer_all(pairs: list[tuple[str, str]]) -> None:
    for answer, gold in pairs:
        same_answer(answer, gold)


def rate(work: Callable[[], object], count: int) -> int:
    """Items a second of CPU time, the best of three."""
    best = float("inf")
    for _ in range(3):
        start = time.process_time()
        work()
        best = min(best, time.process_time() - start)
    return int(count / best)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--corpus", type=Path, default=ROOT.parent / "shared" / "corpora" / "answers.jsonl")
    parser.add_argument("--out", type=Path, default=ROOT / "benchmarks" / "answers.json")
    options = parser.parse_args()
    if not options.corpus.is_file():
        sys.exit(f"skipped: the corpus {options.corpus} is absent; give its path with --corpus")
    rows = [json.loads(line) for line in options.corpus.read_text(encoding="utf-8").splitlines() if line]
    uncontested = [row for row in rows if not row["policy"]]
    report = {
        "command": "python benchmarks/answers.py",
        "python": platform.python_version(),
        "cores": os.cpu_count(),
        "cases": len(rows),
        "uncontested": len(uncontested),
        "should_match": sum(row["should_match"] for row in uncontested),
        "stall_seconds": STALL_S,
        "table": [run(name, rows) for name in GRADERS],
        "throughput": throughput(),
    }
    options.out.write_text(json.dumps(report, indent=2, ensure_ascii=False) + "\n", encoding="utf-8")
    print(
        "| grader | uncontested right | false accept | false reject | crash or stall | ms a case (median) | ms slowest |"
    )
    print("|---|---|---|---|---|---|---|")
    for line in report["table"]:
        cells = [line["grader"], f"{line['uncontested_right']} of {len(uncontested)}"]
        cells += [str(len(line[key])) for key in ("false_accept", "false_reject", "crash_or_stall")]
        print("| " + " | ".join([*cells, str(line["ms_per_case_median"]), str(line["ms_slowest"])]) + " |")
    print(json.dumps(report["throughput"], indent=2, ensure_ascii=False))


if __name__ == "__main__":
    main()
