"""Which sets are evaluated how, and which earlier results are still good."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest

from artifacts.manifest import Manifest
from pipeline_config.loading import load_config
from tasks.errors import ConfigError
from tasks.evaluate.plan import SetPlan, earlier_results, plan_of

SETS = (
    "evaluation.sets=[{name: hard, source: {kind: generated, problem: word}, problems: 5, samples: 2},"
    "{name: long, source: {kind: file, url: x.jsonl}, samples: 0, max_new_tokens: 90}]"
)


def test_every_set_with_its_settings() -> None:
    config = load_config("tiny", overrides=[SETS, "evaluation.samples=8", "grpo.temperature=0.7"])
    sampler = {"temperature": 0.7, "top_p": 1.0, "top_k": 0, "min_p": None}
    assert plan_of(config) == [
        SetPlan("held_out", 48, 8, sampler),
        SetPlan("hard", 48, 2, sampler),
        SetPlan("long", 90, 0),
    ]
    assert "sampler" not in SetPlan("long", 90, 0).terms(seed=1)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("[{name: held_out, source: {kind: file, url: x.jsonl}}]", "is taken by the set that `data` holds out"),
        ("[{name: a, source: {kind: generated, problem: sum}}]", "a generator has no end"),
        ("[{name: A b, source: {kind: file, url: x.jsonl}}]", "name"),
        (
            "[{name: a, source: {kind: file, url: x}}, {name: a, source: {kind: file, url: y}}]",
            "two sets are named 'a'",
        ),
        (
            "[{name: a, source: {kind: file, url: x}, max_new_tokens: 256}]",
            r"evaluation.sets\[0\].max_new_tokens = 256",
        ),
    ],
)
def test_what_is_no_set(text: str, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        load_config("tiny", overrides=[f"evaluation.sets={text}"])


def terms(**sets: dict[str, Any]) -> dict[str, Any]:
    return {"stage": "evaluate_sft", "model": "m", "template": {"t": 1}, "sets": sets}


def one(problems: str, **more: Any) -> dict[str, Any]:
    return {"problems": problems, "overlap": "o", "samples": 0, "max_new_tokens": 48, **more}


def found(wanted: dict[str, Any], *stored: Manifest) -> dict[str, str]:
    return {name: manifest.fingerprint[:1] for name, manifest in earlier_results(wanted, stored).items()}


def test_what_is_taken_from_an_earlier_artifact(tiny_chain: dict[str, Manifest]) -> None:
    template = tiny_chain["evaluate_sft"]

    def stored(mark: str, hours: int, terms: dict[str, Any]) -> Manifest:
        moment = template.finished_at + timedelta(hours=hours)
        return template.model_copy(update={"fingerprint": mark * 64, "finished_at": moment, "terms": terms})

    first = stored("a", 1, terms(held_out=one("p"), gsm8k=one("g")))
    newer = stored("b", 2, terms(held_out=one("p")))
    # A set is added: the others are taken over, each from the newest artifact that has it.
    wanted = terms(held_out=one("p"), gsm8k=one("g"), math=one("x"))
    assert found(wanted, first, newer) == {"earlier/held_out": "b", "earlier/gsm8k": "a"}
    # What training holds of a set changes no completion; anything else does.
    assert found(terms(gsm8k=one("g", overlap="other")), first) == {"earlier/gsm8k": "a"}
    for other in (one("other"), one("g", samples=4), one("g", max_new_tokens=64)):
        assert found(terms(gsm8k=other), first) == {}
    # Another model or template: nothing.
    assert found({**terms(held_out=one("p")), "model": "other"}, first, newer) == {}
    assert found({**terms(held_out=one("p")), "template": {"t": 2}}, first, newer) == {}
    assert found(terms(held_out=one("p")), stored("c", 3, {"stage": "evaluate_sft"})) == {}
