"""Promote a version if the rule allows it, or go back to the one before. Every decision is an event of the registry.

What a scheduled retraining ends with:

    from tasks.promote import promote
    from tasks.promote.evaluation import evaluator
    from tasks.promote.versions import model_name

    decision = promote(store, run_id, config.promotion, model_name(config), evaluate=evaluator(settings))
    # decision.outcome: "promoted", "refused" or "unchanged"; decision.text says why
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict, dataclass, field
from typing import Any, Literal

from artifacts import registry
from artifacts.manifest import Manifest, Parent
from artifacts.registry import Event, Version
from artifacts.store import Store
from pipeline_config.promotion import PromotionConfig
from tasks.errors import ConfigError, StoreError
from tasks.promote.compare import Answers, answers_of, comparable, judge
from tasks.promote.versions import artifact, check_whole, version_of

Evaluate = Callable[[Manifest, Manifest], Manifest]
"""(model artifact, evaluation artifact) -> evaluation of that model under the same frozen spec; see `evaluator`."""


@dataclass(frozen=True)
class Decision:
    """What became of a version.

    Attributes:
        outcome: `unchanged` when it is in production already.
        reason: machine-readable: better, not_worse, above_floor, same_weights, by_hand; not_better, may_be_worse, drifted,
            below_floor, not_comparable, export_refused, rolled_back; in_production.
        text: the same for people, with the numbers.
        evidence: n, gained, lost, p, intervals, accuracies, rule and spec.
        event: number of the registry's event; None when nothing was written.
    """

    name: str
    outcome: Literal["promoted", "refused", "unchanged"]
    reason: str
    text: str
    evidence: dict[str, Any] = field(default_factory=dict)
    event: int | None = None

    def to_json(self) -> dict[str, Any]:
        return asdict(self)


def promote(
    store: Store,
    ref: str,
    settings: PromotionConfig,
    name: str,
    *,
    evaluate: Evaluate | None = None,
    by_hand: str = "",
) -> Decision:
    """Propose a version as `candidate`, and put it into `production` if it is better by the rule.

    Two processes may do this at once: each decides against what is in production when its event is written. Killed at
    any point, it leaves the pointers as they were or as they should be; calling it again goes on.

    Args:
        ref: a run id, an export artifact, or `latest`; see `tasks.promote.versions.export_of`.
        settings: `config.promotion`.
        name: the model's name in the registry; `tasks.promote.versions.model_name(config)` is the usual one.
        evaluate: called when production was evaluated under another frozen spec, to score it under the new one. Without
            it such a version is refused as `not_comparable`.
        by_hand: promote without comparing, for this reason; both are recorded.

    Returns:
        The decision, recorded with its evidence also when the version was refused.

    Raises:
        StoreError: nothing fits `ref`, an artifact is gone or damaged, or the registry cannot be read or written.
        DataError: an evaluation cannot be read.
        ConfigError: the model was not asked the set that decides, or `name` cannot be a name.
        Retryable: others kept changing the registry, or the network is down.
    """
    version = version_of(store, ref)
    after = None if by_hand else _own_answers(store, version, settings)
    judged: dict[str, tuple[bool, str, str, dict[str, Any]]] = {}

    def propose(newest: Event | None) -> Event | None:
        if newest is not None and (version.same_model(newest.production) or newest.candidate == version):
            return None
        return registry.following(newest, kind="proposed", subject=version, candidate=version)

    def settle(newest: Event | None) -> Event | None:
        if newest is not None and version.same_model(newest.production):
            return None
        # Judged anew only when another version came into production meanwhile.
        key = newest.model_dump_json(include={"production", "anchor", "withdrawn"}) if newest else ""
        if key not in judged:
            judged[key] = _judge(store, version, after, newest, settings, evaluate, by_hand)
        good, reason, text, evidence = judged[key]
        decision = {"outcome": "promoted" if good else "refused", "reason": reason, "text": text, "evidence": evidence}
        if not good:
            return registry.following(newest, kind="refused", subject=version, decision=decision)
        return _promotion(newest, version, reason, decision)

    registry.change(store, name, propose)
    event = registry.change(store, name, settle)
    if event is None:
        return Decision(name, "unchanged", "in_production", "this version is in production already")
    return Decision(name, event=event.number, **dict[str, Any](event.decision))


def rollback(store: Store, name: str, reason: str = "", to: int | None = None) -> Event:
    """Put the version before production's back, and remember the one that leaves as withdrawn.

    Args:
        to: number of the event of an earlier promotion to go back to; None for the one before.

    Returns:
        The event; its `production` is the version that is back.

    Raises:
        ConfigError: nothing is in production, or there is nothing (or not that event) to go back to.
        StoreError: the artifacts of the version to go back to are gone or damaged.
    """

    def back(newest: Event | None) -> Event:
        if newest is None or newest.production is None:
            raise ConfigError(
                f"nothing of {name} is in production", fix="grpo-pipeline models list", cause="no_rollback"
            )
        target = registry.restored(store, name, newest)
        while to is not None and target is not None and target.number != to:
            target = registry.restored(store, name, target)
        if target is None:
            raise ConfigError(
                f"{name} has no earlier production version"
                if to is None
                else f"event {to} is not a promotion before the version in production",
                fix=f"grpo-pipeline models show {name} lists the history",
                cause="no_rollback",
            )
        check_whole(store, target.subject)
        withdrawn = [*newest.withdrawn, newest.production.model.content_digest]
        return registry.following(
            newest,
            kind="rolled_back",
            subject=newest.production,
            production=target.subject,
            promoted_by=target.number,
            anchor=target.anchor,
            withdrawn=tuple(dict.fromkeys(withdrawn))[-registry.WITHDRAWN :],
            decision={"outcome": "rolled_back", "reason": "by_hand", "text": reason},
        )

    event = registry.change(store, name, back)
    if event is None:
        raise StoreError("the rollback was not written", where=store.url)
    return event


def _promotion(newest: Event | None, version: Version, reason: str, decision: dict[str, Any]) -> Event:
    """The event that puts `version` into production."""
    number = newest.number + 1 if newest else 1
    candidate = newest.candidate if newest else None
    proven = newest is None or newest.anchor is None or reason in ("better", "above_floor", "by_hand")
    withdrawn = newest.withdrawn if newest else ()
    return registry.following(
        newest,
        kind="promoted",
        subject=version,
        candidate=None if version.same_model(candidate) else candidate,
        production=version,
        promoted_by=number,
        replaced=newest.promoted_by if newest else None,
        anchor=version if proven or newest is None else newest.anchor,
        withdrawn=tuple(digest for digest in withdrawn if digest != version.model.content_digest),
        decision=decision,
    )


def _judge(
    store: Store,
    version: Version,
    after: Answers | None,
    newest: Event | None,
    settings: PromotionConfig,
    evaluate: Evaluate | None,
    by_hand: str,
) -> tuple[bool, str, str, dict[str, Any]]:
    """(promote, reason, sentence, evidence) for `version` against what `newest` says is in production."""
    production = newest.production if newest else None
    against = {"against": production.model.model_dump()} if production else {}
    if after is None:
        return True, "by_hand", by_hand, against
    export = artifact(store, version.export)
    verdicts = {
        key: item["verdict"] for key, item in export.metrics.items() if isinstance(item, dict) and "verdict" in item
    }
    if not any(verdict != "refused" for verdict in verdicts.values()):
        return False, "export_refused", "no GGUF file of this version was released", {**against, "verdicts": verdicts}
    if newest is not None and version.model.content_digest in newest.withdrawn:
        return False, "rolled_back", "this model was in production and was rolled back", against
    if production is not None and production.model.content_digest == version.model.content_digest:
        return True, "same_weights", "the model in production, exported again", {**against, "verdicts": verdicts}
    before = _answers(store, production, version, after, evaluate, settings.eval_set) if production else None
    if production is not None and before is None:
        text = "production was evaluated on other problems or in another way, and could not be evaluated again"
        return False, "not_comparable", text, {**against, "spec": after.spec}
    anchor = newest.anchor if newest and settings.rule == "non_inferiority" else None
    drifts = anchor is not None and not anchor.same_model(production)
    last_gain = _answers(store, anchor, version, after, evaluate, settings.eval_set) if anchor and drifts else None
    good, reason, text, evidence = judge(after, before, last_gain, settings)
    if anchor and drifts:
        evidence["anchor"] = {**anchor.model.model_dump(), "compared": last_gain is not None}
    return good, reason, text, {**against, **evidence}


def _own_answers(store: Store, version: Version, settings: PromotionConfig) -> Answers:
    found = answers_of(store, artifact(store, version.evaluation), settings.eval_set)
    if found is None:
        raise ConfigError(
            f"the model was not evaluated on the set {settings.eval_set!r} under a frozen spec",
            where="promotion.eval_set",
            fix="name one of evaluation.sets, or held_out; an evaluation by an older version is to be made again",
        )
    return found


def _answers(
    store: Store, old: Version, new: Version, wanted: Answers, evaluate: Evaluate | None, name: str
) -> Answers | None:
    """Answers of `old` that can be compared with those of `new`, by evaluating it again if need be and possible."""
    evaluation, model = _there(store, old.evaluation), _there(store, old.model)
    stored = answers_of(store, evaluation, name) if evaluation else None
    if stored is None or not comparable(stored, wanted):
        if evaluate is None or model is None:
            return None
        stored = answers_of(store, evaluate(model, artifact(store, new.evaluation)), name)
    return stored if stored is not None and comparable(stored, wanted) else None


def _there(store: Store, item: Parent) -> Manifest | None:
    """The artifact behind a reference, or None if it is gone or other than it was."""
    try:
        return artifact(store, item)
    except StoreError as error:
        if error.cause != "artifact_gone":
            raise
        return None
