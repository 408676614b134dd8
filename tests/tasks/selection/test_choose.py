"""Choosing problems by pass rate: the band, its widening, and the numbers of a choice, worked out by hand."""

from __future__ import annotations

from fractions import Fraction

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pipeline_config.loading import load_config
from tasks.selection.choose import choose, summary
from tasks.selection.switch import least_kept
from tasks.selection.table import COLUMNS, rows

RIGHT = {"a": 0, "b": 1, "c": 2, "d": 3, "e": 4, "f": 4}
RATES = {id: right / 4 for id, right in RIGHT.items()}
IDS = [*RIGHT, "z"]


def test_the_band() -> None:
    choice = choose(IDS, RATES, 0.1, 0.9, 1)
    assert dict(choice.why) == {
        "a": "too_hard",
        "b": "in_band",
        "c": "in_band",
        "d": "in_band",
        "e": "too_easy",
        "f": "too_easy",
        "z": "not_measured",
    }
    assert choice.band == (0.1, 0.9)
    assert [id for id in IDS if choice.keeps(id)] == ["b", "c", "d"]


def test_both_ends_belong_to_the_band() -> None:
    rates = {str(i): i / 10 for i in range(11)}
    choice = choose(list(rates), rates, 0.3, 0.7, 1)
    assert [id for id in rates if choice.keeps(id)] == ["3", "4", "5", "6", "7"]


def test_a_band_with_too_few_is_widened_on_both_sides_to_the_next_rate() -> None:
    """In [0.4, 0.5] lies one prompt. The next rate is 0.25, 0.15 away; then 0.75, 0.25 away; then 0, 0.4 away; then 1, 0.5 away."""
    assert choose(IDS, RATES, 0.4, 0.5, 1).band == (0.4, 0.5)
    two = choose(IDS, RATES, 0.4, 0.5, 2)
    assert two.band == pytest.approx((0.25, 0.65)) and two.why["b"] == "widened" and two.why["d"] == "too_easy"
    four = choose(IDS, RATES, 0.4, 0.5, 4)
    assert four.band == pytest.approx((0.0, 0.9)) and four.why["a"] == "widened" and four.why["e"] == "too_easy"
    everything = choose(IDS, RATES, 0.4, 0.5, 100)
    assert [id for id in IDS if everything.keeps(id)] == list(RIGHT) and everything.why["z"] == "not_measured"


@given(st.lists(st.integers(0, 8), min_size=1, max_size=50), st.integers(1, 60), st.randoms(use_true_random=False))
def test_the_order_does_not_matter_and_enough_are_kept(rights: list[int], minimum: int, random: object) -> None:
    rates = {str(i): right / 8 for i, right in enumerate(rights)}
    shuffled = list(rates)
    random.shuffle(shuffled)  # type: ignore[attr-defined]
    one, other = choose(list(rates), rates, 0.2, 0.7, minimum), choose(shuffled, rates, 0.2, 0.7, minimum)
    assert dict(one.why) == dict(other.why)
    kept = [id for id in rates if one.keeps(id)]
    assert len(kept) >= min(minimum, len(rates))
    assert all(one.keeps(id) for id, rate in rates.items() if 0.2 <= rate <= 0.7)
    # Nothing is left out that is as near to the band as something kept.
    far = max((max(0.2 - rates[id], rates[id] - 0.7, 0.0) for id in kept), default=0.0)
    assert all(max(0.2 - r, r - 0.7, 0.0) > far - 1e-9 for id, r in rates.items() if not one.keeps(id))


def test_numbers_of_a_choice() -> None:
    numbers = summary(choose(IDS, RATES, 0.1, 0.9, 1), RIGHT, 4, 8, (0.1, 0.9))
    assert (numbers["prompts"], numbers["measured"], numbers["kept"], numbers["widened"]) == (7, 6, 3, False)
    assert numbers["reasons"] == {"in_band": 3, "widened": 0, "too_hard": 1, "too_easy": 2, "not_measured": 1}
    assert numbers["prompts_by_right_before"] == [1, 1, 1, 1, 2]
    assert numbers["prompts_by_right_after"] == [0, 1, 1, 1, 0]


def test_the_forecast_allows_for_luck() -> None:
    """Every count of four equally often is Beta(1, 1). A prompt with r right then has p ~ Beta(1 + r, 5 - r), and with G = 2

        E[p^2 + (1-p)^2] = ((1+r)(2+r) + (5-r)(6-r)) / (6 * 7):  32, 26, 24, 26, 32 forty-seconds for r = 0 to 4.

    Before: their mean 140/210 = 2/3, which is 2/(G+1), the forecast for a uniform p. After: (26 + 24 + 26)/126 = 38/63.
    """
    right = {str(i): i for i in range(5)}
    rates = {id: count / 4 for id, count in right.items()}
    numbers = summary(choose(list(right), rates, 0.1, 0.9, 1), right, 4, 2, (0.1, 0.9))
    assert numbers["dead_groups_before"] == pytest.approx(2 / 3, rel=1e-3)
    assert numbers["dead_groups_after"] == pytest.approx(float(Fraction(26 + 24 + 26, 126)), rel=1e-3)


def test_a_step_must_find_its_prompts() -> None:
    """tiny reads 256 / 8 = 32 prompts a step; the trainer would drop a smaller epoch whole."""
    config = load_config("tiny", overrides=["pass_rates.min_kept=5"])
    assert least_kept(config) == 32
    assert least_kept(load_config("tiny")) == 64


def test_the_table_that_prefect_shows() -> None:
    found = rows(summary(choose(IDS, RATES, 0.4, 0.5, 2), RIGHT, 4, 8, (0.4, 0.5)))
    assert all(tuple(row) == COLUMNS for row in found)
    shown = {row["what"]: row for row in found}
    assert shown["training prompts"] == {
        "what": "training prompts",
        "prompts": "7",
        "note": "6 measured, 4 samples each",
    }
    assert (shown["kept"]["prompts"], shown["kept"]["note"]) == ("2", "pass rate 0.25 to 0.65, widened")
    assert shown["kept, outside the band as configured"]["prompts"] == "1"
    assert shown["set aside: solved too often"]["prompts"] == "3"
    assert shown["4 of 4 right"]["prompts"] == "2 -> 0"
    assert "->" in shown["forecast of dead groups, G = 8"]["prompts"]
