"""No text may cost much: bombs, nesting, thousands of digits, repeated fragments, whole long completions."""

from __future__ import annotations

import time
from collections.abc import Callable

import pytest

from pipeline_config.contract import ContractConfig
from tasks.contract.grading import grade, lenient

CONTRACT = ContractConfig()
S, E, A, Z = CONTRACT.tags
LIMIT_S = 0.010

FRAGMENTS = [
    "(", "[", "{", "\\frac", "\\frac{", "\\text{", "\\boxed{", "=", "x=", "1=", "^", "^{", "9^{", "1/", "1 ", "1,", "1,234,",
    " 234", "or ", "$", "**", '"', "½", "(1,", "0.(", "the ", "the answer is ", "Answer: ", "答案", "个", "8", "00,000,", "\\",
    "\\left(", "~", "####", "\\sqrt{", "√", "2√3", "π", "-", "e", "1e9", "%", "°", "¹", "٣", "，", "\n", "  ", " (a)", ")", "x ",
    "1'234'", "1_000_", "<SOLUTION", "<end", "<", "!", "sqrt(", "1 1/2 ", "km/", "^2 km ", "\x00", "\u200b", "0.\\overline{",
    "\\frac{1}{2}", "a=b, ", "1;2;", "1 and ", "\\pi ", "{,}", "x_1=", "f(", "<|im_end|>", "</s> ",
]  # fmt: skip

BOMBS = [
    "9^{9^{9^{9}}}", "(10^7)!", "9**9**9**9", "10^{10^{10}}", "1e999999999", "1e-999999999", "1e" + "9" * 400, "9" * 100_000,
    "7" * 5000, "7" * 20_000, "0." + "7" * 20_000, "7" * 6000 + "/" + "3" * 5999, "1" + ",000" * 5000, "(" * 5000 + "8" + ")" * 5000,
    "\\sqrt{" + "9" * 5000 + "}", "__import__('os').system('true')",
]  # fmt: skip


def seconds(call: Callable[[], object]) -> float:
    """CPU seconds of the fastest of three calls, so that a busy machine does not fail the test."""
    best = 9.0
    for _ in range(3):
        start = time.thread_time()
        call()
        best = min(best, time.thread_time() - start)
        if best < LIMIT_S / 4:
            break
    return best


@pytest.mark.parametrize("bomb", BOMBS, ids=range(len(BOMBS)))
def test_bombs(bomb: str) -> None:
    for gold in ("8", bomb[:3000]):
        assert seconds(lambda gold=gold: grade(f"w{E}{A}{bomb}{Z}", gold, CONTRACT)) < LIMIT_S


@pytest.mark.parametrize("size", [700, 26_000, 200_000])
def test_repeated_fragments(size: int) -> None:
    slow = []
    for fragment in FRAGMENTS:
        for before, after in (("", ""), ("8", "8"), ("x=", ")"), ("(", "x"), ("\\frac{1}{2", "}")):
            answer = before + fragment * (size // len(fragment)) + after
            spent = seconds(lambda answer=answer: grade(f"w{E}{A}{answer}{Z}", "8", CONTRACT))
            if spent >= LIMIT_S:
                slow.append((fragment, before, after, spent))
    assert slow == []


def test_long_completions_without_a_readable_answer() -> None:
    slow = []
    for fragment in FRAGMENTS:
        text = fragment * (100_000 // len(fragment))
        for completion in (text, f"w{E}{text}", f"w{E}{A}{text}", f"{A}{text}", f"{text}{E}{A}8{Z}"):
            spent = max(
                seconds(lambda completion=completion: grade(completion, "8", CONTRACT)),
                seconds(lambda completion=completion: lenient(completion, "8", CONTRACT)),
            )
            if spent >= LIMIT_S:
                slow.append((fragment, completion[:20], spent))
    assert slow == []
