"""Real processes: promotions at once, and kill -9 before every change to the disk. No state is ever half-written."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from artifacts import registry
from artifacts.store import Store
from pipeline_config.promotion import PromotionConfig
from tasks.promote import promote, rollback

ROOT = Path(__file__).resolve().parents[3]
WEAK = [True] * 40 + [False] * 60
BETTER = [True] * 60 + [False] * 40
BEST = [True] * 80 + [False] * 20
RULE = PromotionConfig()


def in_production(store: Store) -> str | None:
    newest = registry.current(store, "tiny")
    return newest.production.export.fingerprint if newest and newest.production else None


def checked(store: Store) -> list[registry.Event]:
    """The whole history, oldest first; every event follows from the one before it."""
    events = list(registry.history(store, "tiny"))[::-1]
    assert [event.number for event in events] == list(range(1, len(events) + 1))
    before = None
    for event in events:
        if event.kind == "promoted":
            assert event.production == event.subject and event.promoted_by == event.number
            assert event.replaced == (before.promoted_by if before else None)
        elif event.kind != "rolled_back":
            assert event.production == (before.production if before else None)
        before = event
    return events


PROMOTE = """
import sys
from artifacts.store import open_store
from pipeline_config.promotion import PromotionConfig
from tasks.promote import promote
store = open_store(sys.argv[1])
print("ready", flush=True)
sys.stdin.readline()
print(promote(store, sys.argv[2], PromotionConfig(), "tiny").outcome)
"""


def test_two_promotions_at_once(store: Store, version: Any) -> None:
    """Whichever comes second is compared with the winner: the better of the two is in production in the end."""
    promote(store, version("weak", WEAK).fingerprint, RULE, "tiny")
    better, best = version("better", BETTER), version("best", BEST)
    processes = {
        item.fingerprint: subprocess.Popen(
            [sys.executable, "-c", PROMOTE, store.url, item.fingerprint],
            cwd=ROOT,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        for item in (better, best)
    }
    for process in processes.values():
        assert process.stdout is not None and process.stdout.readline() == "ready\n"
    for process in processes.values():
        assert process.stdin is not None
        process.stdin.write("now\n")
        process.stdin.flush()
    outcomes = {ref: process.communicate(timeout=60)[0].strip() for ref, process in processes.items()}
    assert outcomes[best.fingerprint] == "promoted" and in_production(store) == best.fingerprint
    events = checked(store)
    assert sorted(event.kind for event in events[2:] if event.kind != "proposed") in (
        ["promoted", "promoted"],
        ["promoted", "refused"],
    )
    assert outcomes[better.fingerprint] == (
        "promoted" if len([e for e in events if e.kind == "promoted"]) == 3 else "refused"
    )


@pytest.mark.parametrize("what", ["promotion", "rollback"])
def test_kill_9_at_any_moment(store: Store, version: Any, run_until_call: Any, what: str) -> None:
    weak, better = version("weak", WEAK), version("better", BETTER)
    promote(store, weak.fingerprint, RULE, "tiny")
    if what == "rollback":
        promote(store, better.fingerprint, RULE, "tiny")
    old, new = (weak, better) if what == "promotion" else (better, weak)

    def work() -> None:
        if what == "promotion":
            promote(store, better.fingerprint, RULE, "tiny")
        else:
            rollback(store, "tiny")

    assert store.root is not None
    log = store.root / "registry" / "tiny"
    start = {path.name: path.read_bytes() for path in log.iterdir()}
    moved, kinds, number = [], set(), 0
    ended = False
    while not ended:
        number += 1
        assert number < 60
        ended = run_until_call(number, work)
        kinds.add(tuple(event.kind for event in checked(store)))
        assert in_production(store) in (old.fingerprint, new.fingerprint)
        moved.append(in_production(store) == new.fingerprint)
        if not ended and not moved[-1]:
            # The same call again goes on from there.
            work()
            assert in_production(store) == new.fingerprint
            checked(store)
        for path in log.iterdir():
            if path.name not in start:
                path.unlink()
    assert moved == sorted(moved) and not moved[0] and moved[-1], "the pointer moves in one moment"
    assert len(kinds) == (3 if what == "promotion" else 2)  # before, (proposed), after
