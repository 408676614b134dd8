"""GRPO logs for tests and benchmarks, drawn completion by completion.

Per step and prompt an ability is drawn (beta distribution around the run's skill), then for each completion of its group: cut off,
formatted, right, or paid for nothing. Rewards follow from the outcomes, and every logged share from the rewards. Curves that have no
completions behind them (KL, entropy, gradient norm) get a shape and noise of their own. Shapes, noise, group sizes, reward scales, metric names and
logging intervals vary from trace to trace; only the seed decides.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

Array = NDArray[np.float64]

FAULTS = (
    "extraction_failed",
    "all_correct",
    "all_wrong",
    "kl_explosion",
    "length_collapse",
    "truncation_spiral",
    "entropy_collapse",
    "reward_hacking",
    "late_nan",
)

# Per function: pay for no answer, a wrong one, the right one.
SCHEMES: dict[str, dict[str, tuple[float, float, float]]] = {
    "tutorial": {
        "match_format_approximately": (-3, 1.5, 1.5),
        "check_answer": (-2, -2.5, 5),
        "check_numbers": (-2.5, -1.5, 3.5),
    },
    "tutorial_answer_only": {"check_answer": (-2, -2.5, 5)},
    "trl": {"accuracy_reward": (0, 0, 1), "think_format_reward": (0, 1, 1)},
    "sound": {"sound": (0, 0.25, 1)},
    "own_scale": {"solve_score": (-1, 0, 2)},
    "layout_and_result": {"layout": (-0.5, 0.5, 0.5), "result": (0, -1, 4)},
    "binary": {"is_right": (0, 0, 1)},
}
PUBLISHED = ("tutorial", "tutorial_answer_only", "trl", "sound")


@dataclass
class Trace:
    """`verdict`: the one wanted; `onset_row`: row in which the fault starts (0 from the start, None healthy); `info`: for `run_info.from_mapping`, or None.

    `accept`: verdicts that are as right, for logs that do not hold what would tell the two apart: rewards that pay the same for no answer
    and a wrong one (or do not say what they pay), and no held-out accuracy.
    """

    name: str
    verdict: str
    rows: list[dict[str, Any]]
    info: dict[str, Any] | None
    onset_row: int | None
    logging_steps: int
    accept: tuple[str, ...] = ()


@dataclass
class Plan:
    """Curves over the steps; all of length `steps`."""

    steps: int
    skill: Array
    fmt: Array
    cut: Array
    length: Array
    entropy: Array
    kl: Array
    grad: Array
    copies: Array
    hack: Array
    accuracy: Array
    cap: int = 1024
    nan_from: int | None = None
    onset: int | None = None
    spread: float = 3.0
    drop_keys: set[str] = field(default_factory=set)


def ramp(rng: np.random.Generator, steps: int, start: int, duration: int) -> Array:
    """0 before `start`, 1 after `start + duration`, in between one of four shapes."""
    t = np.clip((np.arange(steps) - start) / max(duration, 1), 0, 1)
    shape = rng.integers(4)
    if shape == 0:
        return np.asarray(t)
    if shape == 1:
        return np.asarray(t * t * (3 - 2 * t))
    if shape == 2:
        return np.asarray((1 - np.exp(-4 * t)) / (1 - math.exp(-4)))
    return np.ceil(t * 4) / 4


def wobble(rng: np.random.Generator, steps: int, size: float, memory: float = 0.7) -> Array:
    """Autocorrelated noise with standard deviation `size`."""
    noise = rng.normal(0, size * math.sqrt(1 - memory**2), steps)
    out = np.zeros(steps)
    level = rng.normal(0, size)
    for i in range(steps):
        level = memory * level + noise[i]
        out[i] = level
    return out


def healthy_plan(rng: np.random.Generator, steps: int) -> Plan:
    """A run that learns: skill, format and length move, entropy falls to between 0.35 and 1 of its start, KL grows from about 0."""
    learn = ramp(rng, steps, int(rng.uniform(-0.1, 0.1) * steps), int(rng.uniform(0.5, 1.3) * steps))
    first = rng.uniform(0.12, 0.5)
    skill = first + rng.uniform(0.05, 0.35) * learn
    fmt = rng.uniform(0.55, 0.98) + learn * 0.0
    fmt = fmt + (0.97 - fmt) * learn * rng.uniform(0.3, 1)
    length0 = math.exp(rng.uniform(math.log(40), math.log(400)))
    length = length0 * (1 + rng.uniform(-0.25, 0.5) * learn)
    entropy0 = math.exp(rng.uniform(math.log(0.03), math.log(1.2)))
    entropy = entropy0 * (1 - rng.uniform(0, 0.65) * learn)
    kl = rng.uniform(0.005, 0.15) * learn ** rng.uniform(0.6, 1.5) + rng.uniform(0.0005, 0.004)
    grad = math.exp(rng.uniform(math.log(0.05), math.log(2))) * np.ones(steps)
    cut = np.full(steps, rng.uniform(0.0, 0.05))
    zero = np.zeros(steps)
    return Plan(
        steps,
        skill,
        fmt,
        cut,
        length,
        entropy,
        kl,
        grad,
        zero + rng.uniform(0, 0.1),
        zero.copy(),
        skill * rng.uniform(0.8, 1.1),
        int(length0 * rng.uniform(3, 6)),
    )


def vary_healthy(rng: np.random.Generator, plan: Plan) -> str:
    """Turn a healthy plan into a harder one that is healthy all the same; returns what was done."""
    steps = plan.steps
    whole = np.linspace(0, 1, steps)
    kind = str(
        rng.choice(
            [
                "plain",
                "flat",
                "longer",
                "briefer",
                "learns_to_stop",
                "steady_kl",
                "cold_format",
                "saturates",
                "spikes",
                "sharp_entropy",
                "one_nan",
                "hard_start",
                "format_only",
            ]
        )
    )
    if kind == "flat":
        plan.skill[:] = plan.skill[0]
        plan.accuracy[:] = plan.accuracy[0]
        plan.fmt[:] = plan.fmt.mean()
    elif kind == "longer":
        plan.length *= 1 + 1.2 * whole
    elif kind == "briefer":
        plan.length *= 1 - rng.uniform(0.4, 0.6) * whole
        plan.skill += 0.15 * whole
        plan.accuracy += 0.2 * whole
    elif kind == "learns_to_stop":
        plan.cut = np.maximum(0.02, rng.uniform(0.2, 0.4) * (1 - 1.5 * whole))
        plan.skill += 0.1 * whole
    elif kind == "steady_kl":
        plan.kl = 0.002 + rng.uniform(0.4, 1.2) * whole
        plan.skill += 0.2 * whole
        plan.accuracy += 0.2 * whole
    elif kind == "cold_format":
        plan.fmt = 0.25 + 0.7 * np.minimum(1, 2 * whole)
    elif kind == "saturates":
        plan.skill = 0.4 + 0.59 * np.minimum(1, 1.4 * whole)
        plan.fmt[:] = 0.99
        plan.accuracy = plan.skill * 0.95
        plan.entropy *= 1 - 0.6 * whole
    elif kind == "spikes":
        for curve, factor in ((plan.kl, 30.0), (plan.grad, 15.0), (plan.length, 1.6)):
            curve[rng.random(steps) < 0.02] *= factor
    elif kind == "sharp_entropy":
        plan.entropy *= 1 - rng.uniform(0.3, 0.45) * whole
    elif kind == "one_nan":
        plan.grad[int(rng.uniform(0.1, 0.9) * steps)] = np.nan
    elif kind == "format_only":
        plan.fmt = 0.4 + 0.55 * whole
        plan.skill[:] = plan.skill[0]
        plan.accuracy[:] = plan.accuracy[0]
    elif kind == "hard_start":
        plan.skill = 0.1 + 0.35 * whole
        plan.accuracy = plan.skill.copy()
        plan.fmt = np.maximum(plan.fmt, 0.85)
    return kind


def add_fault(rng: np.random.Generator, plan: Plan, fault: str, room: int) -> str:
    """Bend the curves of a healthy plan; `room` is the number of steps the fault may need to unfold. Returns a name for the variant."""
    steps = plan.steps
    onset = int(rng.uniform(0.2, 0.55) * steps)
    fall = ramp(rng, steps, onset, int(rng.uniform(0.3, 1.0) * room))
    after = np.clip(np.arange(steps) - onset, 0, None)
    plan.onset = onset
    variant = ""
    if fault == "extraction_failed":
        variant = str(rng.choice(["flat", "near", "drift"], p=[0.45, 0.4, 0.15]))
        plan.onset = onset if variant == "drift" else 0
        plan.fmt = (
            plan.fmt * (1 - fall)
            if variant == "drift"
            else np.full(steps, 0.0 if variant == "flat" else rng.uniform(0.01, 0.04))
        )
        if variant != "drift":
            plan.skill[:] = plan.skill[0]
            plan.accuracy[:] = plan.skill[0]
            plan.kl = 0.001 + 0.002 * np.arange(steps) / steps
    elif fault in ("all_correct", "all_wrong"):
        plan.onset = 0
        level = rng.uniform(0.975, 0.999) if fault == "all_correct" else rng.uniform(0.0, 0.012)
        plan.skill[:], plan.fmt[:], plan.spread = level, rng.uniform(0.985, 1.0), 60.0
        plan.cut[:] = rng.uniform(0.0, 0.01)
        plan.accuracy[:] = np.clip(level - 0.01, 0, 1)
    elif fault == "kl_explosion":
        rate = math.log(rng.uniform(60, 3000)) / room
        plan.kl = (
            plan.kl + 0.01 * np.expm1(np.minimum(rate * after, math.log(3e4)))
            if rng.random() < 0.6
            else plan.kl + rng.uniform(2, 30) * (after / room) ** 3
        )
        broken = np.clip(plan.kl / rng.uniform(0.8, 3.0) - 0.1, 0, 1)
        plan.fmt = plan.fmt * (1 - broken)
        plan.skill = plan.skill * (1 - 0.7 * broken)
        plan.accuracy = plan.accuracy * (1 - broken)
        plan.cut = plan.cut + (rng.uniform(0, 0.85) - plan.cut) * broken
        plan.entropy = plan.entropy * (1 + rng.uniform(1.5, 8) * broken)
        plan.grad = plan.grad * (1 + rng.uniform(0, 6) * broken)
        plan.length = plan.length * (1 + rng.uniform(-0.3, 1.5) * broken)
    elif fault == "length_collapse":
        plan.skill[onset:] = plan.skill[onset]
        plan.accuracy[onset:] = plan.accuracy[onset]
        plan.length = plan.length * (1 - rng.uniform(0.68, 0.95) * fall)
        plan.accuracy = plan.accuracy * (1 - rng.uniform(0.35, 0.7) * fall)
        plan.skill = plan.skill * (1 - rng.uniform(0.3, 0.6) * fall)
        plan.kl = plan.kl + 0.1 * fall
    elif fault == "truncation_spiral":
        variant = str(rng.choice(["spiral", "from_start"], p=[0.75, 0.25]))
        top = rng.uniform(0.7, 0.97)
        plan.cut = plan.cut + (top - plan.cut) * fall if variant == "spiral" else np.full(steps, top)
        plan.onset = onset if variant == "spiral" else 0
        plan.entropy = plan.entropy * (1 + rng.uniform(0, 0.4) * fall)
        plan.accuracy = plan.accuracy * (1 - 0.9 * plan.cut)
        if variant == "from_start":
            plan.skill[:] = plan.skill[0]
            plan.fmt[:] = plan.fmt[0]
    elif fault == "entropy_collapse":
        variant = str(rng.choice(["falls", "copies"], p=[0.8, 0.2]))
        if variant == "falls":
            plan.entropy = plan.entropy[0] * (1 - rng.uniform(0.9, 0.985) * fall)
            plan.copies = np.maximum(plan.copies, rng.uniform(0.7, 0.98) * fall)
        else:
            plan.onset = 0
            plan.copies = np.full(steps, rng.uniform(0.86, 0.97))
            plan.entropy = np.full(steps, plan.entropy[0] * 0.03)
        plan.skill = np.minimum(plan.skill, 0.6)
    elif fault == "reward_hacking":
        plan.accuracy = np.maximum(plan.accuracy, 0.25)
        plan.skill[onset:], plan.accuracy[onset:] = plan.skill[onset], plan.accuracy[onset]
        plan.hack = rng.uniform(0.6, 0.97) * fall
        plan.fmt = np.maximum(plan.fmt, fall)
        plan.accuracy = plan.accuracy * (1 - rng.uniform(0.45, 0.8) * fall)
        plan.kl = plan.kl + rng.uniform(0, 0.25) * fall
        plan.length = plan.length * (1 - rng.uniform(0, 0.3) * fall)
    elif fault == "late_nan":
        plan.nan_from = onset
    return variant


def make_trace(seed: int, verdict: str = "healthy", *, logging_steps: int | None = None) -> Trace:
    """One trace; `verdict` is `healthy` or one of FAULTS."""
    rng = np.random.default_rng([seed, ("healthy", *FAULTS).index(verdict)])
    every = int(logging_steps or rng.choice([1, 5, 10]))
    rows = (
        int(rng.integers(60, 200))
        if every == 1
        else int(rng.integers(30, 90))
        if every == 5
        else int(rng.integers(24, 60))
    )
    start_kinds = ("extraction_failed", "all_correct", "all_wrong")
    if verdict in ("healthy", *start_kinds) and rng.random() < 0.15:
        rows = int(rng.integers(8, 14))
    steps = rows * every
    plan = healthy_plan(rng, steps)
    if verdict == "healthy":
        variant = vary_healthy(rng, plan)
    else:
        variant = add_fault(rng, plan, verdict, room=int(rng.uniform(0.15, 0.3) * steps))
    scheme = str(rng.choice(list(SCHEMES)))
    informed = rng.random() < 0.6
    beta = float(rng.choice([0.0, 0.001, 0.04]))
    if verdict == "kl_explosion" and rng.random() < 0.85:
        beta = 0.04
    evals = verdict in ("reward_hacking", "length_collapse") or rng.random() < 0.7
    generations, prompts = int(rng.choice([4, 8, 16])), int(rng.choice([4, 8, 16]))
    logged = simulate(rng, plan, SCHEMES[scheme], every, generations, prompts, beta > 0, evals)
    info = None
    if informed:
        info = {
            "reward_functions": {
                name: {"no_match": n, "wrong": w, "correct": c, "min": min(n, w, c), "max": max(n, w, c)}
                for name, (n, w, c) in SCHEMES[scheme].items()
            },
            "num_generations": generations,
            "beta": beta,
            "max_completion_length": plan.cap,
        }
    name = f"{verdict}{'/' + variant if variant else ''} {scheme}{'' if informed else ' (undeclared)'} seed {seed} every {every}"
    untold = scheme == "binary" or (scheme not in PUBLISHED and not informed)
    low = ("extraction_failed", "all_wrong")
    accept = low if verdict in low and untold and not evals else ()
    return Trace(name, verdict, logged, info, None if plan.onset is None else plan.onset // every, every, accept)


def simulate(
    rng: np.random.Generator,
    plan: Plan,
    scheme: dict[str, tuple[float, float, float]],
    every: int,
    generations: int,
    prompts: int,
    with_kl: bool,
    with_eval: bool,
) -> list[dict[str, Any]]:
    """Draw the completions and log them. Outcomes: 0 no answer, 1 wrong, 2 right."""
    shape = (plan.steps, prompts, generations)
    skill = np.clip(plan.skill, 0.001, 0.999)
    ability = rng.beta(skill[:, None] * plan.spread, (1 - skill[:, None]) * plan.spread, shape[:2])
    dead = plan.nan_from is not None
    lost = np.arange(plan.steps) >= (plan.nan_from or 0) if dead else np.zeros(plan.steps, bool)
    cut = np.where(lost, 1.0, np.clip(plan.cut, 0, 1))

    def draw(size: tuple[int, ...]) -> tuple[Any, Any]:
        p = ability[..., None] + plan.hack[:, None, None] * (1 - ability[..., None])
        is_cut = rng.random(size) < cut[:, None, None]
        formatted = (rng.random(size) < np.clip(plan.fmt, 0, 1)[:, None, None]) & ~is_cut
        return np.where(formatted, np.where(rng.random(size) < p, 2, 1), 0), is_cut

    outcome, is_cut = draw(shape)
    same, same_cut = draw((*shape[:2], 1))
    copied = (rng.random(shape[:2]) < np.clip(plan.copies, 0, 1)[:, None])[..., None]
    outcome, is_cut = np.where(copied, same, outcome), np.where(copied, same_cut, is_cut)
    pays = {name: np.array(values)[outcome] for name, values in scheme.items()}
    total = sum(pays.values())
    steps: dict[str, Array] = {}
    for name, value in pays.items():
        steps[f"rewards/{name}/mean"] = value.mean((1, 2))
        steps[f"rewards/{name}/std"] = value.reshape(plan.steps, -1).std(1, ddof=1)
    steps["reward"] = total.mean((1, 2))  # type: ignore[union-attr]
    steps["reward_std"] = total.reshape(plan.steps, -1).std(1, ddof=1)  # type: ignore[union-attr]
    steps["frac_reward_zero_std"] = (np.ptp(total, axis=2) < 1e-9).mean(1)
    whole = np.clip(plan.length[:, None, None] * np.exp(rng.normal(0, 0.35, shape)), 2, plan.cap - 1)
    tokens = np.where(is_cut, plan.cap, whole)
    steps["completions/mean_length"] = tokens.mean((1, 2))
    steps["completions/max_length"] = tokens.max((1, 2)).astype(float)
    steps["completions/clipped_ratio"] = is_cut.mean((1, 2))
    steps["completions/mean_terminated_length"] = np.where(is_cut, 0, whole).sum((1, 2)) / np.maximum(
        1, (~is_cut).sum((1, 2))
    )
    steps["entropy"] = plan.entropy * np.exp(wobble(rng, plan.steps, 0.05))
    steps["kl"] = plan.kl * np.exp(wobble(rng, plan.steps, 0.25, 0.3))
    alive = np.sqrt(np.maximum(1 - steps["frac_reward_zero_std"], 1e-4))
    steps["grad_norm"] = plan.grad * alive * np.exp(rng.normal(0, 0.3, plan.steps))
    steps["loss"] = rng.normal(0, 0.02, plan.steps)
    steps["learning_rate"] = 1e-6 * (1 - np.arange(plan.steps) / plan.steps)
    eval_every, eval_items = (
        every * max(1, round(float(rng.choice([10, 20])) / every)),
        int(rng.choice([100, 250, 500])),
    )
    key = str(rng.choice(["eval_accuracy", "eval/accuracy", "val/accuracy"]))
    rows: list[dict[str, Any]] = []
    for end in range(every, plan.steps + 1, every):
        span = slice(end - every, end)
        row: dict[str, Any] = {"step": end}
        for metric, values in steps.items():
            row[metric] = float(values[end - 1] if metric in ("grad_norm", "learning_rate") else values[span].mean())
        if lost[end - 1]:
            row |= {"grad_norm": math.nan, "kl": None, "entropy": None, "loss": 0.0}
        if not with_kl:
            del row["kl"]
        rows.append(row)
        if with_eval and end % eval_every == 0:
            p = 0.0 if lost[end - 1] else float(np.clip(plan.accuracy[end - 1], 0, 1))
            rows.append({"step": end, key: float(rng.binomial(eval_items, p)) / eval_items})
    return rows
