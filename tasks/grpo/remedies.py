"""The remedy ladder: which change, within bounds, may help a run against a failure with a name. Pure functions, no torch.

Rungs, in this order; each failure uses those that can help it (LADDERS):

    refill        replace groups that cannot teach by others while training
    narrow        set prompts aside that were dead every time they were tried
    temperature   of the rollouts: a cold one back to 1, then up in steps of 0.1
    group         twice as many completions per prompt
    slower        back to the last good checkpoint, with half the learning rate; once
    beta          the same again, and a pull towards the SFT model (a first beta, or three times the one there is); once
    sft           back to the SFT model with all that was changed, and half the learning rate again; once

Each rung says what it needs: refilling and setting aside need groups that are alive, for example. When no rung is left the run stops with the failure's name and its last good checkpoint.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any, Literal

from pipeline_config.training import GRPOSettings

Start = Literal["here", "good", "sft"]

LADDERS: Mapping[str, tuple[str, ...]] = {
    "dead_groups": ("refill", "narrow", "temperature", "group"),
    "all_wrong": ("refill", "narrow", "group"),
    # Training on the few that are left made a model worse that was right in 94 % (benchmarks/planted_faults.json has the stop instead).
    "all_correct": (),
    "entropy_collapse": ("temperature", "slower", "sft"),
    "late_nan": ("slower", "beta", "sft"),
    "kl_explosion": ("slower", "beta", "sft"),
    # What the policy has lost on the way it can keep at a slower pace; what it never had, GRPO cannot teach it (see `next_step`).
    "extraction_failed": ("slower", "sft"),
    "truncation_spiral": ("slower", "sft"),
    "length_collapse": ("slower", "beta"),
    # A reward that pays the wrong thing pays it at any learning rate.
    "reward_hacking": (),
}
RUNG_TEXTS: Mapping[str, str] = {
    "refill": "replace groups that cannot teach by others while training (grpo.max_refills)",
    "narrow": "set aside prompts whose groups were always dead",
    "temperature": "sample at temperature 1, or 0.1 warmer",
    "group": "twice as many completions per prompt (grpo.num_generations)",
    "slower": "back to the last good checkpoint with half the learning rate",
    "beta": "the same with a pull towards the SFT model (grpo.beta)",
    "sft": "back to the SFT model, once",
}
"""The rungs in words, for whoever only reads about them."""
ROLLBACKS = ("slower", "beta", "sft")
NOTHING_LEFT = "training ended early: nothing was left to learn from these problems"
"""What the manifest of GRPO notes where `all_correct` was the end of learning."""
LEARNT_ONLY = frozenset({"extraction_failed", "truncation_spiral", "length_collapse"})
"""Failures that only a run which began without them can be brought back from."""
FIRST_BETA = 0.02
"""Weight of the first pull towards the SFT model: half of DeepSeekMath's 0.04 (arXiv 2402.03300)."""
LEAST_LIVE = 0.05
"""Share of live groups below which neither refilling nor setting aside can find what to train on."""
LEAST_SET_ASIDE = 0.05
"""Share of the prompts that setting aside must concern to be worth a restart."""


@dataclass(frozen=True)
class Failure:
    """What went wrong. `onset` is the step since when; `from_start`: it was so from the first rows on."""

    name: str
    headline: str
    onset: int
    from_start: bool = False


@dataclass(frozen=True)
class Step:
    """One remedy taken, as it is kept in remedies.json.

    Attributes:
        rung: name in the ladder.
        because: the failure's name. headline: its sentence.
        at_step: optimizer step at which the run was stopped. onset: step since when it failed.
        changes: setting -> [before, after]; what `settings_after` applies.
        set_aside: ids of prompts left out from now on.
        start: go on from `here`, from the last `good` checkpoint (before the onset), or from the `sft` model.
        resumed_from: step of the checkpoint that was gone on from, 0 for the SFT model; None until it is known.
    """

    rung: str
    because: str
    headline: str
    at_step: int
    onset: int
    changes: dict[str, list[float]] = field(default_factory=dict)
    set_aside: tuple[str, ...] = ()
    start: Start = "here"
    resumed_from: int | None = None

    def sentence(self) -> str:
        """The remedy in one sentence, for the log and the report."""
        what = ", ".join(f"{name} {before:g} -> {after:g}" for name, (before, after) in self.changes.items())
        aside = f"{len(self.set_aside)} prompts set aside" if self.set_aside else ""
        place = {"here": "", "good": "from the last good checkpoint", "sft": "from the SFT model"}[self.start]
        if self.resumed_from is not None and self.start == "good":
            place = f"from step {self.resumed_from}" if self.resumed_from else "from the SFT model (no good checkpoint)"
        return f"at step {self.at_step} ({self.because}): " + ", ".join(filter(None, (place, what, aside)))

    def to_json(self) -> dict[str, Any]:
        return {**asdict(self), "set_aside": list(self.set_aside)}


def step_from_json(data: Mapping[str, Any]) -> Step:
    """A Step as `to_json` wrote it."""
    return Step(**{**data, "set_aside": tuple(data.get("set_aside", ()))})


def settings_after(settings: GRPOSettings, steps: Sequence[Step]) -> GRPOSettings:
    """The settings with every change applied, in order."""
    changes = {name: after for step in steps for name, (_, after) in step.changes.items()}
    whole = {
        name: int(value) if name in ("max_refills", "num_generations") else value for name, value in changes.items()
    }
    return settings.model_copy(update=whole)


@dataclass(frozen=True)
class Situation:
    """Where a run stands: step, number of prompts, share of live groups since the last remedy, ids of prompts that were dead each time
    they were tried, and whether this back end can refill."""

    at_step: int
    prompts: int
    live: float
    always_dead: tuple[str, ...] = ()
    can_refill: bool = True


def next_step(failure: Failure, steps: Sequence[Step], settings: GRPOSettings, situation: Situation) -> Step | None:
    """The next rung that can help, or None: stop.

    Args:
        failure: what the watchdog named.
        steps: remedies taken so far in this run.
        settings: as configured, without the remedies.
        situation: where the run stands now.
    """
    if len(steps) >= settings.remedy_bounds.max_steps or (failure.name in LEARNT_ONLY and failure.from_start):
        return None
    now, used = settings_after(settings, steps), {step.rung for step in steps}
    for rung in LADDERS.get(failure.name, ()):
        if rung in ROLLBACKS and rung in used:
            continue
        what = _RUNGS[rung](now, settings, steps, situation)
        if what is not None:
            return Step(rung, failure.name, failure.headline, situation.at_step, failure.onset, **what)
    return None


def suggestions(name: str, from_start: bool) -> tuple[str, ...]:
    """The rungs for a failure in words, in order; none where the ladder has none."""
    if name in LEARNT_ONLY and from_start:
        return ()
    return tuple(RUNG_TEXTS[rung] for rung in LADDERS.get(name, ()))


What = dict[str, Any] | None
"""What a rung would do, as attributes of its Step; None when it cannot help here."""


def _refill(now: GRPOSettings, asked: GRPOSettings, steps: Sequence[Step], at: Situation) -> What:
    most = asked.remedy_bounds.max_refills
    helps = at.can_refill and now.max_refills < most and at.live >= LEAST_LIVE
    return {"changes": {"max_refills": [now.max_refills, most]}} if helps else None


def _narrow(now: GRPOSettings, asked: GRPOSettings, steps: Sequence[Step], at: Situation) -> What:
    """Not when the dead prompts are too few to matter, or when too few prompts would be left."""
    gone = {name for step in steps for name in step.set_aside}
    ids = tuple(name for name in at.always_dead if name not in gone)
    per_batch = now.per_device_train_batch_size * now.gradient_accumulation_steps // now.num_generations
    least = max(2 * per_batch, asked.remedy_bounds.min_prompts_share * (at.prompts + len(gone)))
    helps = at.live >= LEAST_LIVE and len(ids) >= LEAST_SET_ASIDE * at.prompts and at.prompts - len(ids) >= least
    return {"set_aside": ids} if helps else None


def _temperature(now: GRPOSettings, asked: GRPOSettings, steps: Sequence[Step], at: Situation) -> What:
    wanted = 1.0 if now.temperature < 1.0 else round(now.temperature + 0.1, 6)
    within = wanted <= max(1.0, asked.remedy_bounds.max_temperature)
    return {"changes": {"temperature": [now.temperature, wanted]}} if within else None


def _group(now: GRPOSettings, asked: GRPOSettings, steps: Sequence[Step], at: Situation) -> What:
    """Twice the group, where the batch still holds two whole groups: with one, every step is about a single prompt."""
    wanted = 2 * now.num_generations
    batch = now.per_device_train_batch_size * now.gradient_accumulation_steps
    fits = wanted <= asked.remedy_bounds.max_num_generations and batch % wanted == 0 and batch >= 2 * wanted
    return {"changes": {"num_generations": [now.num_generations, wanted]}} if fits else None


def _half(now: GRPOSettings, asked: GRPOSettings) -> dict[str, list[float]]:
    wanted = now.learning_rate / 2
    least = asked.learning_rate * asked.remedy_bounds.min_learning_rate_share
    return {"learning_rate": [now.learning_rate, wanted]} if wanted >= least * (1 - 1e-9) else {}


def _slower(now: GRPOSettings, asked: GRPOSettings, steps: Sequence[Step], at: Situation) -> What:
    changes = _half(now, asked)
    return {"changes": changes, "start": "good"} if changes else None


def _beta(now: GRPOSettings, asked: GRPOSettings, steps: Sequence[Step], at: Situation) -> What:
    wanted = round(3 * now.beta, 6) if now.beta else FIRST_BETA
    if wanted > asked.remedy_bounds.max_beta:
        return None
    return {"changes": {"beta": [now.beta, wanted], **_half(now, asked)}, "start": "good"}


def _sft(now: GRPOSettings, asked: GRPOSettings, steps: Sequence[Step], at: Situation) -> What:
    changes = _half(now, asked)
    return {"changes": changes, "start": "sft"} if changes or steps else None


_RUNGS: Mapping[str, Callable[[GRPOSettings, GRPOSettings, Sequence[Step], Situation], What]] = {
    "refill": _refill,
    "narrow": _narrow,
    "temperature": _temperature,
    "group": _group,
    "slower": _slower,
    "beta": _beta,
    "sft": _sft,
}
