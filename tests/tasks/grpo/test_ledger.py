"""What a group of rollouts is called, and what is known of a prompt from the groups tried."""

from __future__ import annotations

import math
import random
from pathlib import Path

import pytest

from tasks.contract.grading import Grade
from tasks.contract.kinds import Kind
from tasks.grpo.ledger import (
    Group,
    KnownPrompts,
    append_groups,
    group_of,
    per_prompt,
    read_groups,
    shares,
    totals,
    truncate_groups,
)


def grades(*kinds: Kind) -> list[Grade]:
    return [Grade(kind, None, right=kind is Kind.RIGHT, well_formed=kind in (Kind.RIGHT, Kind.WRONG)) for kind in kinds]


R, W, T, N = Kind.RIGHT, Kind.WRONG, Kind.TRUNCATED, Kind.NO_ANSWER


@pytest.mark.parametrize(
    ("rewards", "kinds", "expected"),
    [
        ([1.0, 0.25, 1.0, 1.0], (R, W, R, R), "live"),
        ([1.0] * 4, (R, R, R, R), "all_right"),
        ([0.25] * 4, (W, W, W, W), "all_wrong"),
        ([0.0] * 4, (T, T, W, W), "truncated"),  # half of them cut
        ([0.0] * 4, (N, N, T, W), "unparsable"),  # cut ones have no answer either
        ([0.0] * 4, (N, W, W, W), "all_wrong"),
        ([-2.0] * 4, (R, W, W, W), "equal"),  # the reward does not tell them apart
        ([math.nan, 1.0, math.nan, 1.0], (W, R, W, R), "equal"),  # what could be scored is equal
        ([math.nan] * 4, (W, W, W, W), "all_wrong"),
        ([1.0, 1.0 + 1e-9, 1.0, 1.0], (R, R, R, R), "all_right"),
        ([0.1, 0.0, 0.0, 0.0], (N, N, N, N), "form_only"),  # none right, but the rewards differ
        ([1.0, 0.75, 1.0, 1.0], (R, R, R, R), "form_only"),
    ],
)
def test_kinds(rewards: list[float], kinds: tuple[Kind, ...], expected: str) -> None:
    found = group_of("p", rewards, grades(*kinds))
    assert found.kind == expected and found.right == kinds.count(R)
    by_spread = "live" if expected == "form_only" else expected
    assert group_of("p", rewards, grades(*kinds), "spread").kind == by_spread


def test_shares_sum_to_one() -> None:
    found = shares([Group("a", "live", 1, (0.0, 1.0)), Group("b", "all_right", 2, (1.0, 1.0))] * 2)
    assert found["groups/live"] == found["groups/all_right"] == 0.5 and sum(found.values()) == 1


@pytest.fixture
def file(tmp_path: Path) -> Path:
    """Step 1: two drawn, one dead and refilled in the second round; step 2: one drawn, alive."""
    path = tmp_path / "groups.jsonl"
    a, b = Group("a", "live", 1, (1.0, 0.25)), Group("b", "all_wrong", 0, (0.25, 0.25))
    c, d = Group("c", "all_right", 2, (1.0, 1.0)), Group("d", "live", 1, (0.25, 1.0))
    append_groups(path, 1, [(0, a, True), (0, b, False), (1, c, False), (2, d, True)])
    append_groups(path, 2, [(0, Group("b", "live", 1, (1.0, math.nan)), True)])
    return path


def test_totals_and_prompts(file: Path) -> None:
    rows = read_groups(file)
    assert rows[-1] == {
        "step": 2,
        "round": 0,
        "prompt_id": "b",
        "kind": "live",
        "right": 1,
        "rewards": [1.0, None],
        "used": True,
    }
    assert totals(rows) == {
        "groups_tried": 5,
        "groups_used": 3,
        "groups_live": 3,
        "groups_dropped": 2,
        "groups_refilled": 1,
        "extra_rollouts": 4,
        "groups_by_kind": {
            "live": 3,
            "all_wrong": 1,
            "all_right": 1,
            "truncated": 0,
            "unparsable": 0,
            "equal": 0,
            "form_only": 0,
        },
    }
    ledger = {row["id"]: row for row in per_prompt(rows, ["c"])}
    assert list(ledger) == ["a", "b", "c", "d"]
    b = ledger["b"]
    assert (b["groups"], b["live"], b["all_wrong"], b["completions"], b["right"], b["last_step"]) == (2, 1, 1, 4, 1, 2)
    assert [name for name, row in ledger.items() if row["set_aside"]] == ["c"]


def test_what_came_after_a_checkpoint_is_dropped_and_a_torn_line_left_out(file: Path) -> None:
    with file.open("a") as out:
        out.write('{"step": 3, "rou')
    assert len(read_groups(file)) == 5
    truncate_groups(file, 1)
    assert [row["step"] for row in read_groups(file)] == [1] * 4
    truncate_groups(file.with_name("missing.jsonl"), 0)


def test_live_prompts_are_tried_before_new_ones_and_dead_ones_last() -> None:
    known = KnownPrompts([{"prompt_id": "dead", "kind": "all_wrong"}, {"prompt_id": "often", "kind": "live"}])
    for name, live in (("often", True), ("once", True), ("lost", True), ("lost", False)):
        known.add(name, live)
    ids = ["new", "dead", "often", "once", "lost", "here"]
    order = [ids[at] for at in known.best(ids, 9, {"here"}, random.Random(0))]
    assert order == [
        "once",
        "often",
        "new",
        "dead",
        "lost",
    ]  # tried once, twice; never; dead once, dead after two tries
    assert known.best(ids, 2, set(), random.Random(0)) == [3, 2]
    # Equals are drawn at random, the same way for the same seed.
    many = [f"p{i}" for i in range(50)]
    first = KnownPrompts().best(many, 5, set(), random.Random(1))
    assert first == KnownPrompts().best(many, 5, set(), random.Random(1)) != [0, 1, 2, 3, 4]
