"""How much of GSM8K's test split the overlap check finds in its train split, and in copies that are planted there.

    python benchmarks/evaluation_overlap.py [--gsm8k FOLDER]     # writes benchmarks/evaluation_overlap.json

Planted are 200 test questions in each of several disguises. `other numbers` (the same text about other numbers) is a template that
was seen and no copy: what the check calls it depends on how far apart the numbers stand.
"""

from __future__ import annotations

import argparse
import json
import random
import re
import sys
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))

from pipeline_config.evaluation import OverlapConfig  # noqa: E402
from pipeline_config.sources import FileSource  # noqa: E402
from tasks.dataset.problem import Problem, content_digest  # noqa: E402
from tasks.dataset.sources import problems  # noqa: E402
from tasks.evaluate.scores import rate  # noqa: E402
from tasks.evaluation_sets.overlap import Overlap, overlaps, scan_tables, words_of  # noqa: E402

GSM8K = ROOT.parent / "shared" / "data" / "gsm8k"
PLANTED = 200


def other_numbers(text: str) -> str:
    return re.sub(r"\d+", lambda found: str(int(found.group()) + 7), text)


def half(text: str) -> str:
    words = text.split()
    return " ".join(words[: len(words) // 2])


def dropped_words(text: str) -> str:
    """Every fifteenth word is missing."""
    return " ".join(word for i, word in enumerate(text.split()) if i % 15 != 7)


DISGUISES: dict[str, Callable[[str], str]] = {
    "as it is": lambda text: text,
    "other case and punctuation": lambda text: re.sub(r"[,.?!]", " ", text).upper(),
    "inside a longer text": lambda text: f"Here is an old problem that I like. {text} Try to solve it before you look.",
    "every fifteenth word missing": dropped_words,
    "first half only": half,
    "other numbers": other_numbers,
}


def rows_of(folder: Path, name: str) -> list[Problem]:
    path = folder / name
    if not path.is_file():
        sys.exit(f"GSM8K is not at hand: there is no {path}; name its folder with --gsm8k")
    return list(problems(FileSource(url=str(path), layout="gsm8k"), Counter()))


def check(test: list[dict[str, str]], tables: dict[str, list[dict[str, str]]], settings: OverlapConfig) -> Any:
    index = Overlap(settings.ngram)
    for row in test:
        index.add(row["question"])
    scan_tables(index, tables)
    return overlaps(test, index, settings.share)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--gsm8k", type=Path, default=GSM8K, metavar="FOLDER")
    folder = parser.parse_args().gsm8k
    settings = OverlapConfig()
    test = [{"id": content_digest(p.question), "question": p.question} for p in rows_of(folder, "test.jsonl")]
    train = [
        {"id": content_digest(p.question), "question": p.question, "working": p.working}
        for p in rows_of(folder, "train.jsonl.gz")
    ]
    words = sum(len(words_of(row["question"])) + len(words_of(row["working"])) for row in train)
    began = time.perf_counter()
    found = check(test, {"sft": train}, settings)
    seconds = time.perf_counter() - began
    result: dict[str, Any] = {
        "ngram": settings.ngram,
        "share": settings.share,
        "test in train": {
            "contaminated": rate(sum(row["contaminated"] for row in found), len(found)),
            "any n-gram": rate(sum(row["overlap"] > 0 for row in found), len(found)),
            "largest overlaps": sorted((row["overlap"] for row in found), reverse=True)[:10],
        },
        "speed": {"training words": words, "seconds": round(seconds, 2), "words a second": round(words / seconds)},
        "planted": {},
    }
    chosen = random.Random(0).sample(test, PLANTED)
    for name, disguise in DISGUISES.items():
        planted = [{"id": row["id"], "question": disguise(row["question"]), "working": ""} for row in chosen]
        seen = check(chosen, {"train": planted}, settings)
        result["planted"][name] = rate(sum(row["contaminated"] for row in seen), PLANTED)
    (ROOT / "benchmarks" / "evaluation_overlap.json").write_text(json.dumps(result, indent=1) + "\n", encoding="utf-8")
    print(json.dumps({**result, "planted": {k: v["rate"] for k, v in result["planted"].items()}}, indent=1))


if __name__ == "__main__":
    main()
