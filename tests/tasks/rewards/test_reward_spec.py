from __future__ import annotations

from typing import Any

import pytest

from tasks.rewards.spec import BadReturn, checked_values, text_of


@pytest.mark.parametrize(
    ("completion", "expected"),
    [
        ("plain", "plain"),
        ([{"role": "assistant", "content": "chat"}], "chat"),
        ([{"role": "assistant", "content": "a"}, {"role": "assistant", "content": "b"}], "ab"),
        ([{"role": "assistant", "content": [{"type": "text", "text": "part"}]}], "part"),
        ([{"role": "assistant", "content": None}], ""),
        ([], ""),
        (None, ""),
    ],
)
def test_text_of_a_completion(completion: Any, expected: str) -> None:
    assert text_of(completion) == expected


def test_good_values_are_floats() -> None:
    numpy = pytest.importorskip("numpy")
    assert checked_values([1, 2.5, True], 3) == ([1.0, 2.5, 1.0], {})
    assert checked_values((1,), 1) == ([1.0], {})
    assert checked_values(numpy.array([0.5, 1.0], dtype="float32"), 2) == ([0.5, 1.0], {})
    assert checked_values([numpy.float32(0.5)], 1) == ([0.5], {})


def test_bad_values_are_errors_of_their_rows() -> None:
    values, errors = checked_values([1.0, None, float("nan"), float("-inf"), "1", [1.0], 10**400], 7)
    assert values == [1.0, None, None, None, None, None, None]
    assert sorted(errors) == [1, 2, 3, 4, 5, 6]
    assert errors[1] == "returned None instead of a finite number"
    assert errors[2] == "returned nan instead of a finite number"
    assert "str '1'" in errors[4] and "a list" in errors[5]


def test_none_is_no_error_where_it_means_that_the_reward_does_not_apply() -> None:
    assert checked_values([None, 1.0], 2, allow_none=True) == ([None, 1.0], {})


@pytest.mark.parametrize(
    ("returned", "message"),
    [
        (None, "returned None instead of a list of 3 numbers"),
        (1.0, "returned 1.0 instead"),
        ({1: 2.0}, "returned a dict instead"),
        ("abc", "returned str 'abc' instead"),
        ((x for x in ()), "returned a generator instead"),
        ([1.0], "returned 1 value for 3 completions"),
        ([1.0] * 4, "returned 4 values for 3 completions"),
    ],
)
def test_what_fits_no_row_is_an_error_of_the_whole_batch(returned: Any, message: str) -> None:
    with pytest.raises(BadReturn, match=message):
        checked_values(returned, 3)
