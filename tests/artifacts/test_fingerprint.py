from __future__ import annotations

import enum
import hashlib
import json
import os
import subprocess
import sys
from collections import OrderedDict
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from artifacts.fingerprint import canonical_json, changed_terms, fingerprint

GOLDEN_TERMS: dict[str, Any] = {
    "stage": "grpo",
    "version": 3,
    "config": {"learning_rate": 1e-5, "beta": 0.04, "max_steps": 100.0, "tags": ["<a>", "\u00fc\u4e2d"], "vllm": None},
    "inputs": {"sft": "ab" * 32},
    "exact": True,
}
GOLDEN_JSON = (
    '{"config":{"beta":0.04,"learning_rate":1e-05,"max_steps":100,"tags":["<a>","\u00fc\u4e2d"],"vllm":null},'
    '"exact":true,"inputs":{"sft":"' + "ab" * 32 + '"},"stage":"grpo","version":3}'
)
# echo -n "$GOLDEN_JSON" | sha256sum. If this changes, every artifact that anybody has is lost.
GOLDEN_KEY = "fadac7d247937451f20b7ec257f1836c35d3486debc7ee606c6ad577e095d1d8"

json_values = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(2**80), 2**80)
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(st.characters(exclude_categories=["Cs"])),
    lambda children: (
        st.lists(children, max_size=4)
        | st.dictionaries(st.text(st.characters(exclude_categories=["Cs"]), max_size=5), children, max_size=4)
    ),
    max_leaves=15,
)
terms = st.dictionaries(st.sampled_from("abcd"), json_values, max_size=4)


def test_golden_key() -> None:
    assert canonical_json(GOLDEN_TERMS) == GOLDEN_JSON
    assert hashlib.sha256(GOLDEN_JSON.encode()).hexdigest() == GOLDEN_KEY
    assert fingerprint(GOLDEN_TERMS) == GOLDEN_KEY


@pytest.mark.parametrize("seed", ["0", "1", "4242"])
def test_golden_key_in_other_processes(seed: str) -> None:
    code = "import json, sys; from artifacts.fingerprint import fingerprint; print(fingerprint(json.load(sys.stdin)))"
    result = subprocess.run(
        [sys.executable, "-c", code],
        input=json.dumps(GOLDEN_TERMS),
        env={**os.environ, "PYTHONHASHSEED": seed, "PYTHONPATH": os.getcwd(), "LC_ALL": "C"},
        capture_output=True,
        text=True,
        check=True,
    )
    assert result.stdout.strip() == GOLDEN_KEY


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (1.0, "1"),
        (-0.0, "0"),
        (1e22, "10000000000000000000000"),
        (0.1, "0.1"),
        (1e-5, "1e-05"),
        (True, "true"),
        ([True, 1, 1.0], "[true,1,1]"),
        ((1, 2), "[1,2]"),
        ({"b": 1, "a": 2}, '{"a":2,"b":1}'),
        (OrderedDict(b=1, a=2), '{"a":2,"b":1}'),
        ('a"b\\\n', '"a\\"b\\\\\\n"'),
        ("\U0001f600", '"\U0001f600"'),
        ({}, "{}"),
    ],
)
def test_canonical_json(value: Any, text: str) -> None:
    assert canonical_json(value) == text


def test_subclasses_are_written_as_their_values() -> None:
    class Word(enum.StrEnum):
        ONE = "one"

    class Number(enum.IntEnum):
        ONE = 1

    assert canonical_json([Word.ONE, Number.ONE]) == '["one",1]'


class Colour(enum.Enum):
    RED = "red"


@pytest.mark.parametrize(
    ("value", "path"),
    [
        ({"a": {"b": [0, float("nan")]}}, "a.b[1]: nan"),
        ({"a": float("inf")}, "a: inf"),
        ({"a": {1, 2}}, "a: set is not"),
        ({"a": [Path("x")]}, "a[0]: PosixPath"),
        ({"a": b"x"}, "a: bytes"),
        ({"a": {1: 2}}, "a: key 1 is int"),
        ({"a.b": {"c": object()}}, '["a.b"].c: object'),
        ({"a": "\ud800"}, "a: '\\ud800' is not valid Unicode"),
        ({"a": Colour.RED}, "a: Colour"),
        ({"a": 10**5000}, "a: an integer of"),
        (float("nan"), "value: nan"),
    ],
)
def test_what_is_not_json_is_refused_with_its_path(value: Any, path: str) -> None:
    with pytest.raises(TypeError) as caught:
        canonical_json(value)
    assert str(caught.value).startswith(path)


def test_a_value_that_contains_itself_is_refused() -> None:
    loop: list[Any] = []
    loop.append(loop)
    with pytest.raises(TypeError, match="contains itself"):
        canonical_json(loop)


def test_fingerprint_needs_a_mapping() -> None:
    with pytest.raises(TypeError, match="list"):
        fingerprint([])  # type: ignore[arg-type]


@given(json_values)
def test_canonical_json_reads_back_as_the_same_value(value: Any) -> None:
    text = canonical_json(value)
    assert json.loads(text) == value
    assert canonical_json(json.loads(text)) == text


@given(terms)
def test_a_fingerprint_survives_storage(value: dict[str, Any]) -> None:
    """Terms are read back from manifests to say what changed."""
    stored = json.loads(json.dumps(value, indent=1))
    assert fingerprint(stored) == fingerprint(value)
    assert changed_terms(stored, value) == []


@given(terms, terms)
def test_changed_terms_is_empty_exactly_for_equal_fingerprints(old: dict[str, Any], new: dict[str, Any]) -> None:
    assert (changed_terms(old, new) == []) == (fingerprint(old) == fingerprint(new))


def test_changed_terms_by_hand() -> None:
    old = {
        "config": {"grpo": {"learning_rate": 1e-5, "beta": 0.0, "gone": 1, "on": True}},
        "inputs": {"sft": "ab" * 32},
        "rewards": ["exact", "format"],
        "shapes": [1, 2],
        "a.b": 1,
    }
    new = {
        "config": {"grpo": {"learning_rate": 2e-5, "beta": 0, "new": {"x": "y"}, "on": 1}},
        "inputs": {"sft": "cd" * 32},
        "rewards": ["exact", "length"],
        "shapes": [1, 2, 3],
        "a.b": 2,
    }
    assert changed_terms(old, new) == [
        '["a.b"]: 1 -> 2',
        "config.grpo.gone: 1 -> (not set)",
        "config.grpo.learning_rate: 1e-05 -> 2e-05",
        'config.grpo.new: (not set) -> {"x":"y"}',
        "config.grpo.on: true -> 1",
        "inputs.sft: abababababab… -> cdcdcdcdcdcd…",
        'rewards[1]: "format" -> "length"',
        "shapes: [1,2] -> [1,2,3]",
    ]


def test_long_values_are_shown_around_their_difference() -> None:
    (line,) = changed_terms({"p": "x" * 500 + "old" + "y" * 500}, {"p": "x" * 500 + "new" + "y" * 500})
    assert "old" in line and "new" in line
    assert len(line) < 200
