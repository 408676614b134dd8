"""Do our scores agree with lm-evaluation-harness's GSM8K filters on the same completions? Row by row, every difference named.

    pip install lm_eval==0.4.13                                  # in an environment that also has this project's dependencies
    python benchmarks/lm_eval_agreement.py                       # writes benchmarks/lm_eval_agreement.json; needs GSM8K
    python benchmarks/lm_eval_agreement.py --generate FOLDER     # makes benchmarks/lm_eval_completions.jsonl anew

The harness's own classes run: the filters `strict-match` and `flexible-extract` and the metric `exact_match`, read from its
gsm8k.yaml. Completions: real ones of SmolLM2-135M-Instruct (few-shot in the harness's format, and as a chat), and the data set's
worked solutions with right or wrong answers written in the ways models write them.

`flexible-extract` is held against our lenient score on the same text. `strict-match` wants `#### 18`, our strict score the tags of the
contract, so it is held against our strict score on the same completion with that one mark exchanged: the last line `#### 18`
becomes `<end_working_out><SOLUTION>18</SOLUTION>`.
"""

from __future__ import annotations

import argparse
import json
import random
import re
import sys
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))

from pipeline_config.contract import ContractConfig  # noqa: E402
from pipeline_config.sources import FileSource  # noqa: E402
from tasks.contract.answers import parse_answer  # noqa: E402
from tasks.contract.grading import grade, lenient  # noqa: E402
from tasks.contract.kinds import Kind  # noqa: E402
from tasks.dataset.sources import problems  # noqa: E402

GSM8K = ROOT.parent / "shared" / "data" / "gsm8k"
COMPLETIONS = ROOT / "benchmarks" / "lm_eval_completions.jsonl"
RESULT = ROOT / "benchmarks" / "lm_eval_agreement.json"
CONTRACT = ContractConfig()
SEED, SHOWN = 0, 3

Row = dict[str, Any]
"""id, style, completion, gold, answer (the data set's whole answer) and, for a written one, meant (whether it is right)."""


def gsm8k(folder: Path, name: str = "test.jsonl") -> list[Any]:
    """A split of the data set; stops with a reason where it is not at hand."""
    if not (folder / name).is_file():
        sys.exit(f"GSM8K is not at hand: there is no {folder / name}; name its folder with --gsm8k")
    return list(problems(FileSource(url=str(folder / name), layout="gsm8k"), Counter()))


# -- completions --------------------------------------------------------------------------------------------------

WAYS: dict[str, Callable[[str], str]] = {
    "hashes": lambda a: f"\n#### {a}",
    "hashes, full stop": lambda a: f"\n#### {a}.",
    "hashes, dollar": lambda a: f"\n#### ${a}",
    "hashes, cents": lambda a: f"\n#### {a}.00",
    "hashes, unit": lambda a: f"\n#### {a} apples",
    "hashes, sentence": lambda a: f"\n#### The answer is {a}",
    "hashes, no blank": lambda a: f"\n####{a}",
    "hashes, bold": lambda a: f"\n#### **{a}**",
    "hashes, goes on": lambda a: f"\n#### {a}\n\nI checked this in 2 ways.",
    "hashes, next question": lambda a: f"\n#### {a}\n\nQuestion: Tom has 7 cats. How many has he?\nAnswer: 7\n#### 7",
    "hashes, hedge": lambda a: f"\n#### {a} or {int(a.replace(',', '')) + 1}",
    "hashes, sum": lambda a: f"\n#### {int(a.replace(',', '')) - 1} + 1 = {a}",
    "hashes, empty": lambda a: "\n#### ",
    "sentence": lambda a: f"\nThe answer is {a}.",
    "sentence, dollar": lambda a: f"\nThe answer is ${a}.",
    "sentence, cents": lambda a: f"\nSo she pays ${a}.00.",
    "sentence, unit": lambda a: f"\nSo there are {a} apples in 3 baskets.",
    "sentence, percent": lambda a: f"\nThat is {a}%.",
    "sentence, dots": lambda a: f"\nThe answer is {a}...",
    "bold": lambda a: f"\n**{a}**",
    "boxed": lambda a: f"\nThe answer is $\\boxed{{{a}}}$.",
    "boxed, then a number": lambda a: f"\nThe answer is $\\boxed{{{a}}}$. (See line 2.)",
    "equation": lambda a: f"\nx = {a}",
    "equals": lambda a: f"\n12 + 5 = {a}",
    "no commas": lambda a: f"\nThe answer is {a.replace(',', '')}.",
    "with commas": lambda a: f"\nThe answer is {int(a.replace(',', '')):,}.",
    "hashes, no commas": lambda a: f"\n#### {a.replace(',', '')}",
    "hashes, with commas": lambda a: f"\n#### {int(a.replace(',', '')):,}",
    "Chinese": lambda a: f"\n所以答案是{a}。",
    "unicode minus": lambda a: f"\nThe answer is {a.replace('-', chr(0x2212))}.",
    "nothing": lambda a: "\nI do not know.",
}  # fmt: skip
"""How an answer is written after the working."""
UNANSWERED = ("hashes, empty", "nothing")


def written(rows: list[Any]) -> Iterator[Row]:
    """For each problem four ways, half of them with a wrong answer; the ways in turn, so that each occurs equally often."""
    generator = random.Random(SEED)
    ways = list(WAYS)
    for i, problem in enumerate(rows):
        for j in range(4):
            way = ways[(4 * i + j) % len(ways)]
            meant = generator.random() < 0.5
            gold = int(problem.gold.replace(",", ""))
            answer = problem.gold if meant else f"{gold + generator.choice((-10, -1, 1, 2, 10, gold or 3)):,}"
            row: Row = {
                "id": f"{i}",
                "style": f"written: {way}",
                "completion": f" {problem.working}{WAYS[way](answer)}",
                "gold": problem.gold,
                "answer": f"{problem.working}\n#### {problem.gold}",
            }
            # Two answers are none; with no answer at all it is open what the working counts for.
            yield row if way in UNANSWERED else {**row, "meant": meant and way != "hashes, hedge"}


def generated(rows: list[Any]) -> Iterator[Row]:
    """The stored completions of the model."""
    for line in COMPLETIONS.read_text(encoding="utf-8").splitlines():
        stored = json.loads(line)
        problem = rows[stored["index"]]
        yield {
            "id": str(stored["index"]),
            "style": f"model: {stored['prompt']}",
            "completion": stored["completion"],
            "gold": problem.gold,
            "answer": f"{problem.working}\n#### {problem.gold}",
        }


def generate(folder: Path, data: Path, count: int, longest: int = 160) -> None:
    """Greedy completions of a model folder for the first problems, few-shot as the harness asks, and as a chat."""
    import torch
    from transformers import AutoModelForCausalLM, AutoTokenizer

    tokenizer = AutoTokenizer.from_pretrained(folder, padding_side="left")
    tokenizer.pad_token = tokenizer.pad_token or tokenizer.eos_token
    model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32).eval()
    shots = gsm8k(data, "train.jsonl.gz")[:2]
    shown = "".join(f"Question: {p.question}\nAnswer: {p.working}\n#### {p.gold}\n\n" for p in shots)
    rows = gsm8k(data)[:count]

    def chat(question: str) -> str:
        content = f"{question}\nThink step by step, and end with the sentence: The answer is <number>."
        turn = [{"role": "user", "content": content}]
        return str(tokenizer.apply_chat_template(turn, tokenize=False, add_generation_prompt=True))

    prompts = {
        "few-shot": [f"{shown}Question: {p.question}\nAnswer:" for p in rows],
        "chat": [chat(p.question) for p in rows],
    }
    with COMPLETIONS.open("w", encoding="utf-8") as file:
        for name, texts in prompts.items():
            for start in range(0, len(texts), 10):
                batch = tokenizer(texts[start : start + 10], return_tensors="pt", padding=True)
                with torch.inference_mode():
                    out = model.generate(**batch, max_new_tokens=longest, do_sample=False)
                for j, row in enumerate(out[:, batch["input_ids"].shape[1] :]):
                    text = str(tokenizer.decode(row, skip_special_tokens=True))
                    # As the harness stops a generation.
                    text = re.split(r"Question:|</s>|<\|im_end\|>", text)[0]
                    file.write(json.dumps({"index": start + j, "prompt": name, "completion": text}) + "\n")
                file.flush()
                print(f"{name}: {start + len(out)} of {count}", flush=True)


# -- both rulers --------------------------------------------------------------------------------------------------


def harness(rows: list[Row], texts: list[str]) -> dict[str, list[tuple[str, bool]]]:
    """(extracted text, right) by filter, from the harness's own classes and its gsm8k.yaml."""
    try:
        import lm_eval
        from lm_eval.api.instance import Instance
        from lm_eval.api.metrics import exact_match_fn
        from lm_eval.filters import build_filter_ensemble
    except ImportError as error:
        sys.exit(f"lm-evaluation-harness is not installed ({error}): pip install lm_eval==0.4.13")
    import yaml

    task = yaml.safe_load((Path(lm_eval.__file__).parent / "tasks" / "gsm8k" / "gsm8k.yaml").read_text())
    (metric,) = task["metric_list"]
    options = {key: metric[key] for key in ("regexes_to_ignore", "ignore_case", "ignore_punctuation")}
    instances = [
        Instance(request_type="generate_until", doc={"answer": row["answer"]}, arguments=("",), idx=i)
        for i, row in enumerate(rows)
    ]
    for instance, text in zip(instances, texts, strict=True):
        instance.resps = [text]
    found: dict[str, list[tuple[str, bool]]] = {}
    for one in task["filter_list"]:
        parts = [(part["function"], {k: v for k, v in part.items() if k != "function"}) for part in one["filter"]]
        build_filter_ensemble(one["name"], parts).apply(instances)
        results = [str(instance.filtered_resps[one["name"]]) for instance in instances]
        found[one["name"]] = [
            (text, bool(exact_match_fn(predictions=[text], references=[row["answer"]], **options)["exact_match"]))
            for text, row in zip(results, rows, strict=True)
        ]
    return found


def in_tags(text: str) -> str | None:
    """The completion with the tags of the contract where it has its one `####` line; None without one."""
    if text.count("####") != 1:
        return None
    working, _, rest = text.partition("####")
    line, _, after = rest.partition("\n")
    return f"{working}{CONTRACT.reasoning_end}{CONTRACT.answer_start}{line}{CONTRACT.answer_end}" + (
        after and f"\n{after}"
    )


# -- differences --------------------------------------------------------------------------------------------------

REASONS = {
    "other form of the number": "We compare values: 18.00 is 18. The harness compares texts after taking out commas, dollar signs and one final full stop.",
    "another number later": "The harness takes the last number of the text. We take the stated answer: what follows `####`, `\\boxed{}` or \"the answer is\", and only without these the last number.",
    "signs taken for a number": "`[$0-9.,]{2,}` also matches `...`, `.,` or a lone `$.`, which then is no number.",
    "mark not in front of the number": "strict-match wants a blank and a number right after `####`; we read the whole line or tag as the answer.",
    "more than one answer": "`18 or 19`: the harness takes the first (strict) or the last number (flexible); for us an answer that is two numbers is none.",
    "equation": "`17 + 1 = 18`: we read the equation and take its value, the harness its first number.",
    "percent": "We let 18% stand for the gold 18, as the harness does, but also know that it is 0.18.",
    "minus sign": "We read the Unicode minus; for the harness it is no part of the number.",
    "number cut out of a text": "The harness takes digits out of any text (`3` out of `3x`, `10` out of `10:30`); we ask for one finished value.",
    "first of several": "strict-match takes the first `####` of a text; we take the last, or call two that differ a hedge.",
    "unexplained": "No rule of this list applies.",
}  # fmt: skip
"""Kind of difference -> why it arises."""
_NUMBER = re.compile(r"-?[$0-9.,]*[0-9]")


def why(row: Row, text: str, extracted: str, theirs: bool, flexible: bool) -> str:
    """The kind of a difference, by the first rule that fits."""
    gold = parse_answer(row["gold"])
    value = parse_answer(extracted.strip().removeprefix("$").rstrip(".,"))
    same = value is not None and gold is not None and value.fraction == gold.fraction
    if chr(0x2212) in text.strip().split("\n")[-1]:
        return "minus sign"
    if not any(ch.isdigit() for ch in extracted) and extracted != "[invalid]":
        return "signs taken for a number"
    if same and not theirs:
        return "other form of the number"
    line = re.split("####", text)[-1].split("\n")[0] if "####" in text else ""
    if re.search(r"\d\s+or\s+\d", line) or grade(in_tags(text) or "", row["gold"], CONTRACT).kind is Kind.HEDGED:
        return "more than one answer"
    if not flexible:
        if text.count("####") > 1:
            return "first of several"
        if "=" in line:
            return "equation"
        return "mark not in front of the number"
    if "%" in text[-20:]:
        return "percent"
    stated = "####" in text or "boxed" in text or re.search(r"(?i)answer|答案", text)
    if stated:
        return "another number later"
    last = list(_NUMBER.finditer(text))
    if last and re.match(r"[A-Za-z:/°*^]|\s*[/*x:]\s*\d", text[last[-1].end() :]):
        return "number cut out of a text"
    return "unexplained"


def comparison(
    rows: list[Row], texts: list[str], theirs: list[tuple[str, bool]], ours: list[bool], flexible: bool
) -> Row:
    """Agreement, and the differences by kind with counts, examples and, where it is known, who is right."""
    agree = Counter((b, a) for (_, a), b in zip(theirs, ours, strict=True))
    kinds: dict[str, list[Row]] = {}
    for row, text, (extracted, their), our in zip(rows, texts, theirs, ours, strict=True):
        if their != our:
            difference = {
                "style": row["style"],
                "end": text[-70:],
                "gold": row["gold"],
                "harness": {"extracted": extracted, "right": their},
                "ours": our,
            }
            if "meant" in row:
                difference["meant"] = row["meant"]
            kinds.setdefault(why(row, text, extracted, their, flexible), []).append(difference)
    return {
        "n": len(rows),
        "agree": agree[True, True] + agree[False, False],
        "both right": agree[True, True],
        "both wrong": agree[False, False],
        "only ours right": agree[True, False],
        "only harness right": agree[False, True],
        "rate ours": round(sum(ours) / len(ours), 4),
        "rate harness": round(sum(right for _, right in theirs) / len(theirs), 4),
        "differences": {
            name: {
                "count": len(found),
                "why": REASONS[name],
                "ours as meant": sum(one["ours"] == one["meant"] for one in found if "meant" in one),
                "harness as meant": sum(one["harness"]["right"] == one["meant"] for one in found if "meant" in one),
                "meaning known": sum("meant" in one for one in found),
                "styles": dict(Counter(one["style"] for one in found).most_common()),
                "examples": found[:SHOWN],
            }
            for name, found in sorted(kinds.items(), key=lambda pair: -len(pair[1]))
        },
    }


def compare(rows: list[Row]) -> Row:
    """Both filters on one list of completions."""
    texts = [re.split(r"Question:|</s>|<\|im_end\|>", row["completion"])[0] for row in rows]
    theirs = harness(rows, texts)
    loose = [lenient(text, row["gold"], CONTRACT) for row, text in zip(rows, texts, strict=True)]
    found = {"flexible-extract against lenient": comparison(rows, texts, theirs["flexible-extract"], loose, True)}
    marked = [i for i, text in enumerate(texts) if in_tags(text) is not None]
    if marked:
        strict = [grade(in_tags(texts[i]) or "", rows[i]["gold"], CONTRACT).right for i in marked]
        found["strict-match against strict"] = comparison(
            [rows[i] for i in marked],
            [texts[i] for i in marked],
            [theirs["strict-match"][i] for i in marked],
            strict,
            False,
        )
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--generate", type=Path, metavar="FOLDER")
    parser.add_argument("--count", type=int, default=50)
    parser.add_argument("--gsm8k", type=Path, default=GSM8K, metavar="FOLDER")
    arguments = parser.parse_args()
    if arguments.generate:
        generate(arguments.generate, arguments.gsm8k, arguments.count)
        return
    from importlib.metadata import version

    test = gsm8k(arguments.gsm8k)
    result: Row = {"lm_eval": version("lm_eval")}
    for name, rows in (("model", list(generated(test))), ("written", list(written(test)))):
        result[name] = compare(rows)
    RESULT.write_text(json.dumps(result, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")
    for name in ("model", "written"):
        for pair, found in result[name].items():
            print(
                f"{name}, {pair}: {found['agree']} of {found['n']} agree; ours {found['rate ours']:.1%}, harness {found['rate harness']:.1%}"
            )
            for kind, difference in found["differences"].items():
                print(
                    f"  {difference['count']:4} {kind}: ours as meant {difference['ours as meant']}, harness {difference['harness as meant']} of {difference['meaning known']}"
                )


if __name__ == "__main__":
    main()
