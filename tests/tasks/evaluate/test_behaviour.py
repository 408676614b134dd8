"""Self-checks, repetition and loops on short texts counted by hand."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tasks.evaluate.behaviour import behaviour_of, loop_share, quantiles, repeated_share, self_checks, totals


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("Wait, that is 12. Wait! No. wait... yes", {"wait": 3}),
        ("So 7. Wait that cannot be.", {"wait": 1}),
        ("They wait for 5 minutes. How long did she wait? Wait for me. 3 waiters, 2 await", {}),
        ("Let me check: 3 + 4 = 7. Let's quickly verify it. I should confirm.", {"let me check": 3}),
        ("Let me double-check. Cross check the sum. Now check it again, and re-check.", {"double-check": 2, "check again": 2}),
        ("I need to reconsider and re-evaluate.", {"reconsider": 2}),
        ("Hmm, hold on. I made a small mistake. That's not right.", {"hmm": 1, "hold on": 1, "mistake": 2}),
        ("He wrote a check for $5 and made a cake by mistake.", {}),
        ("等等，让我检查一下。不对，重新计算。我们来验算：3+4=7。", {"等等": 1, "检查": 2, "重新": 1, "不对": 1}),
        ("苹果、梨等等水果共 8 个。检查站有 3 人。", {}),
        ("", {}),
    ],
)  # fmt: skip
def test_self_checks(text: str, expected: dict[str, int]) -> None:
    assert self_checks(text) == expected


def test_repeated_n_grams() -> None:
    # a b c d a b c d: abcd bcda cdab dabc abcd, 4 distinct of 5.
    assert repeated_share("a b c d a b c d") == pytest.approx(0.2)
    assert repeated_share("A b, c!") == repeated_share("one two three") == repeated_share("") == 0.0
    # 我们算我们算我们算: 9 characters, 6 windows, 3 distinct.
    assert repeated_share("我们算我们算我们算") == pytest.approx(0.5)


def test_loops() -> None:
    once = "Let me see. "
    assert loop_share(once + "and so on, " * 10) == pytest.approx(110 / 122, abs=0.02)
    assert loop_share("The sum is 7. " * 3) == 1.0
    assert loop_share("The sum is 7. " * 3 + "The sum") == 1.0, "the last turn may be cut"
    assert loop_share("The sum is 7. " * 2) == 0.0, "twice is no loop"
    assert loop_share("ab" * 19) == 0.0, "nor are 38 characters"
    assert loop_share("The sum is 7. " * 5 + "So the answer is 7, and that is all there is to say.") == 0.0, (
        "it got out"
    )
    assert loop_share("3 + 4 = 7" + "\n" * 60) == pytest.approx(60 / 69)
    assert loop_share("1 + 2 = 3\n1 + 3 = 4\n1 + 4 = 5\n1 + 5 = 6\n") == 0.0
    assert loop_share("") == 0.0


@given(st.text(alphabet="ab 等\n", max_size=300))
def test_a_loop_is_one_by_its_definition(text: str) -> None:
    """The looping end has a period of at most a third of it, and no longer end has."""

    def periodic(end: str) -> bool:
        return any(end[p:] == end[:-p] for p in range(1, len(end) // 3 + 1))

    longest = max((n for n in range(40, len(text) + 1) if periodic(text[-n:])), default=0)
    assert loop_share(text) == (longest / len(text) if longest else 0.0)


def test_quantiles_by_nearest_rank() -> None:
    assert quantiles(range(1, 11)) == {
        "min": 1, "p10": 1, "p25": 3, "median": 5, "p75": 8, "p90": 9, "p99": 10, "max": 10
    }  # fmt: skip
    assert quantiles([]) == {}


def test_totals() -> None:
    texts = {"Wait, 7.": True, "Wait, let me check.": False, "It is 7.": True, "no no no no " * 9: False}
    items = [
        {"behaviour": behaviour_of(text), "right": right, "tokens": len(text)} for text, right in texts.items()
    ]  # fmt: skip
    found = totals(items)
    assert found["self_checks"] == {"completions": 2, "right": 1, "phrases": {"wait": 2, "let me check": 1}}
    assert found["loops"] == 1 and found["n"] == 4
    # 36 words, 33 windows, all the same: 32 / 33 repeated.
    assert found["repetition"]["max"] == pytest.approx(32 / 33, abs=1e-4)
    assert found["repetition"]["mean"] == pytest.approx(32 / 33 / 4, abs=1e-4)
    assert found["tokens"]["right"]["max"] == 8 and found["tokens"]["all"]["max"] == 108
