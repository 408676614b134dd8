"""One function a failure: what it looks like in the log, with thresholds relative to the run's own start.

Here the rules about how the policy moves; those about what completions are paid for are in `outcome_rules`. Each takes a `Run` and returns a `Finding`. None decides alone whether it is a cause or a consequence: `ranking` does.
Absolute levels are used only where they mean the same in every run (shares, NaN); entropy, length and reward have
no such level: starting entropies from 0.017 to 1.03 are on record for runs that trained well.
"""

from __future__ import annotations

import math

from tasks.diagnosis.changes import accuracy_drop, accuracy_since, crashed, reward_fell, reward_rose
from tasks.diagnosis.dead_groups import DEAD, DeadGroups, dead_groups, near_the_top
from tasks.diagnosis.findings import Finding, missing, ok, scarce
from tasks.diagnosis.outcome_rules import all_correct, all_wrong, extraction_failed, plateau, reward_hacking, starving
from tasks.diagnosis.run_info import RunInfo
from tasks.diagnosis.series import CLIPPED, LENGTH, MIN_ROWS, Run

__all__ = ["RULES", "RunInfo", "entropy_collapse", "kl_explosion", "length_collapse", "non_finite", "truncation_spiral"]

_CORE = ("grad_norm", "loss", "reward", "kl", "entropy")


def non_finite(run: Run) -> Finding:
    """NaN or infinity in the last rows, or a metric that has turned null.

    TRL averages NaN away before logging, so a dead run shows as `grad_norm: nan` with `kl` and `entropy` null. Two such metrics in the
    last row are enough. One alone must last three rows, unless the run is known not to be fp16: there the loss scaler skips
    single overflowing steps by design, elsewhere the optimizer has already used the gradient.
    """
    train = run.train
    always = {key for key in _CORE if len(run.series(key)) >= max(3, 0.5 * run_length_before_gap(run, key))}
    bad = [[key for key in _CORE if _is_bad(row, key, key in always)] for row in train]
    tail = 0
    while tail < len(bad) and bad[-1 - tail]:
        tail += 1
    odd = sum(bool(keys) for keys in bad)
    if not odd and not any(key in row for row in train for key in _CORE if key != "reward"):
        return missing("late_nan", "no grad_norm, loss, kl or entropy is logged")
    enough = 1 if run.info.fp16 is False else 2
    if tail >= 3 or (tail and len(bad[-1]) >= enough and _has_nan(train[-1])):
        row = len(bad) - tail
        names = {key for keys in bad[row:] for key in keys}
        lost = "the weights are lost from there on" if names != {"reward"} else "a reward function returned no number"
        return Finding(
            "late_nan",
            "failed",
            f"{', '.join(sorted(names))} not finite since {'step' if run.steps_known else 'row'} {train[row]['step']}: {lost}",
            row,
            train[row]["step"],
            row == 0,
            {"rows_not_finite": float(tail), "rows": float(len(train))},
            next(key for key in _CORE if key in names),
        )
    if odd:
        head = f"{odd} of {len(train)} rows had a value that is not finite" + ("" if tail else "; the run went on")
        return Finding("non_finite_rows", "note", head, curve="grad_norm", evidence={"rows": float(odd)})
    return ok("late_nan", "grad_norm")


def run_length_before_gap(run: Run, key: str) -> int:
    """Rows up to the last finite value of `key`."""
    series = run.series(key)
    return series.rows[-1] + 1 if len(series) else len(run.train)


def _is_bad(row: dict[str, float | None], key: str, usually_there: bool) -> bool:
    value = row.get(key)
    return usually_there if value is None else not math.isfinite(value)


def _has_nan(row: dict[str, float | None]) -> bool:
    return any(value is not None and not math.isfinite(value) for value in (row.get(key) for key in _CORE))


def kl_explosion(run: Run) -> Finding:
    """KL above 0.5 and 8 times its start, and grown fourfold within a quarter of the run or with the reward falling; or, while it
    triples and the reward falls, above 0.3; or, with the reward crashed, above 0.1.

    Healthy KL grows all the time (tenfold over 200 steps is usual, since it starts at 0), so growth alone says nothing;
    0.5 nats a token is far from any reference, and an explosion multiplies where learning adds. While the reward rises, only 5 nats are one.
    """
    kl = run.series("kl")
    if not len(kl):
        return _runaway_without_kl(run)
    if not kl.enough:
        return scarce("kl_explosion", "kl", len(kl), MIN_ROWS)
    base = min(kl.values[:3])
    growth = kl.recent / max(kl.smooth[-1 - min(len(kl) - 1, max(5, len(kl) // 4))], 1e-9)
    fell, rose = reward_fell(run), reward_rose(run)
    limit = max(0.1 if crashed(run) else 0.3 if fell and growth >= 3 else 0.5, 8 * base)
    if kl.recent > limit:
        if fell or (growth >= 4 and not rose) or kl.recent > max(5.0, limit):
            row, step = kl.onset(lambda value: value > base + 0.4 * (limit - base))
            head = f"KL to the reference grew from {base:.2g} to {kl.recent:.3g}: the policy has run away from it"
            return Finding(
                "kl_explosion",
                "failed",
                head,
                row,
                step,
                row < 3,
                {"kl_start": base, "kl_recent": kl.recent},
                "kl",
                limit,
            )
        head = f"KL to the reference is {kl.recent:.2g}; so far nothing else went wrong"
        return Finding("kl_high", "note", head, curve="kl", evidence={"kl_recent": kl.recent})
    if run.steps_known and kl.steps[0] <= 2 and kl.values[0] > 0.1 and kl.start > 0.1:
        head = f"KL is already {kl.values[0]:.2g} at step {kl.steps[0]}: the reference is not the policy that training began from"
        return Finding("reference_mismatch", "note", head, curve="kl", evidence={"kl_first": kl.values[0]})
    return ok("kl_explosion", "kl", {"kl_recent": kl.recent})


def _runaway_without_kl(run: Run) -> Finding:
    """With beta 0 no KL is logged; a policy that has run away still shows: reward down by half a deviation, and entropy doubled or
    gradients five times as large as at the start. (A spiral into truncation raises entropy by a third, not by two.)"""
    entropy, grad = run.series("entropy"), run.series("grad_norm")
    reason = "kl is not logged (it is only with beta > 0)"
    if (
        not run.series("reward").enough
        or not (entropy.enough or grad.enough)
        or not (run.reward_change() <= -0.5 or crashed(run))
    ):
        return missing("kl_explosion", reason)
    at_once = crashed(run)  # then the heat may be over by now: what counts is that it came with the crash
    hot = entropy.enough and (max(entropy.smooth) if at_once else entropy.recent) >= 2 * max(
        min(entropy.values[:3]), 1e-9
    )
    steep = grad.enough and grad.recent >= 5 * max(min(grad.values[:3]), 1e-9) > 0 and min(grad.values[:3]) > 0
    if not hot and not steep:
        return missing("kl_explosion", reason)
    key, series = ("entropy", entropy) if hot else ("grad_norm", grad)
    base = min(series.values[:3])
    row, step = (0, series.steps[0]) if at_once else series.onset(lambda value: value > 1.3 * base)
    highest = max(series.smooth)
    head = f"the policy has run away: reward fell and {key} rose from {base:.2g} to {highest:.2g} (KL itself is not logged)"
    evidence = {f"{key}_start": base, f"{key}_highest": highest, "reward_change_in_std": run.reward_change()}
    return Finding("kl_explosion", "failed", head, row, step, row < 3, evidence, key, 2 * base if hot else 5 * base)


def truncation_spiral(run: Run) -> Finding:
    """At least 30 % of the completions cut off, 15 points more than at the start, and the reward not rising; or half of them from the
    start without getting fewer. A cut completion has no answer, so what it costs is the reward; while that rises, it is a note, unless
    nine of ten are cut and at most 5 % right: then the policy only learns to squeeze some answer in.
    """
    clipped = run.series(CLIPPED)
    if not clipped.enough:
        return scarce("truncation_spiral", CLIPPED, len(clipped), MIN_ROWS)
    level, early = clipped.recent_mean, min(clipped.early, clipped.start)
    evidence = {"clipped_early": early, "clipped_recent": level}
    rose = reward_rose(run)
    grew = level >= 0.3 and level >= early + 0.15 and (level >= 0.5 or reward_fell(run))
    always = level >= 0.5 and early >= 0.5 and level >= clipped.early - 0.1
    correct = dead_groups(run).shares.recent.correct
    squeezed = always and level >= 0.9 and correct is not None and correct <= 0.05
    if (grew or always) and (squeezed or not rose):
        row, step = clipped.onset(lambda value: value > early + 0.25 * (0.3 - early)) if grew else (0, clipped.steps[0])
        head = f"{level:.0%} of the completions are cut at the length cap" + (
            f", {early:.0%} at the start" if grew else " from the start"
        )
        return Finding("truncation_spiral", "failed", head, row, step, not grew or row < 3, evidence, CLIPPED, 0.3)
    if level >= 0.3:
        return Finding(
            "truncation",
            "note",
            f"{level:.0%} of the completions are cut at the length cap",
            curve=CLIPPED,
            evidence=evidence,
        )
    return ok("truncation_spiral", CLIPPED, evidence)


def length_collapse(run: Run) -> Finding:
    """Completions less than half as long as at the start, and correctness not up.

    Where held-out accuracy was evaluated on both sides it must have fallen, or not risen while three quarters of the length are gone or the
    share of right answers fell; else that share must not have risen; where neither is known, two thirds must be gone. Completions that get shorter because fewer run into the cap are measured
    without the cut ones.
    """
    clipped = run.series(CLIPPED)
    key = LENGTH
    if clipped.enough and clipped.early >= 0.1 and run.series("completions/mean_terminated_length").enough:
        key = "completions/mean_terminated_length"
    length = run.series(key)
    if not length.enough:
        return scarce("length_collapse", LENGTH, len(length), MIN_ROWS)
    base = max(length.early, length.start)
    ratio = length.recent / base if base > 0 else 1.0
    evidence = {"length_early": base, "length_recent": length.recent}
    if ratio >= 0.5:
        if ratio > 2:
            return Finding(
                "length_growth",
                "note",
                f"completions grew from {base:.0f} to {length.recent:.0f} tokens",
                curve=key,
                evidence=evidence,
            )
        return ok("length_collapse", key, evidence)
    row, step = length.onset(lambda value: value < 0.85 * base)
    head = f"completions shrank from {base:.0f} to {length.recent:.0f} tokens"
    accuracy = accuracy_since(run, row)
    shares = dead_groups(run).shares
    right, before = shares.recent.correct, shares.early.correct
    if accuracy is not None:
        fewer = right is not None and before is not None and right < 0.85 * before
        overall = accuracy_drop(run)
        fell = accuracy.fell or (overall is not None and overall.fell)
        failed, why = (
            fell or (not accuracy.rose and (ratio < 0.25 or fewer)),
            f", held-out accuracy went from {accuracy.before:.2f} to {accuracy.now:.2f}",
        )
        evidence |= {"accuracy_before": accuracy.before, "accuracy_now": accuracy.now}
    elif before is not None and right is not None:
        failed, why = right < before + 0.1, f", right answers from {before:.0%} to {right:.0%}"
    else:
        failed, why = ratio < 0.35, ""
    if failed:
        return Finding("length_collapse", "failed", head + why, row, step, False, evidence, key, 0.5 * base)
    return Finding("shorter", "note", head + why, curve=key, evidence=evidence)


def entropy_collapse(run: Run) -> Finding:
    """Entropy below a fifth of its own start, with groups losing their spread; or groups that are copies from the start.

    Where nearly every answer is right, low entropy is the success itself. Copies: 80 % of the groups (less a standard error) without
    spread although some are right and some wrong, or half of them when the temperature is known to be 0.3 or less.
    """
    entropy = run.series("entropy")
    dead = dead_groups(run)
    correct = dead.shares.recent.correct
    evidence = {} if dead.share is None else {"zero_std_groups": dead.share}
    if entropy.enough:
        base = max(entropy.early, entropy.start)
        ratio = entropy.recent / base if base > 0 else 1.0
        evidence |= {"entropy_start": base, "entropy_recent": entropy.recent}
        # Without any measure of right answers a run that simply succeeds looks alike: only the deeper fall counts.
        judged = correct is not None or len(run.accuracy) > 0
        starving = dead.share is None or dead.share >= 0.3 or dead.share - (dead.early_share or 0.0) >= 0.15
        if ratio < 0.1 or (ratio < 0.2 and starving and judged):
            row, step = entropy.onset(lambda value: value < 0.7 * base)
            head = f"entropy fell from {base:.2g} to {entropy.recent:.2g}" + (
                f"; {dead.share:.0%} of the groups have no spread" if dead.share else ""
            )
            if (
                (correct is not None and correct >= 0.9)
                or near_the_top(run)
                or (len(run.accuracy) and run.accuracy.recent >= 0.85)
            ):
                return Finding(
                    "low_entropy", "note", head + ", with nearly all answers right", curve="entropy", evidence=evidence
                )
            return Finding("entropy_collapse", "failed", head, row, step, row < 3, evidence, "entropy", 0.2 * base)
    copies = _copies(run, dead, evidence)
    if copies is not None:
        return copies
    return (
        ok("entropy_collapse", "entropy", evidence)
        if entropy.enough
        else scarce("entropy_collapse", "entropy", len(entropy), MIN_ROWS)
    )


def _copies(run: Run, dead: DeadGroups, evidence: dict[str, float]) -> Finding | None:
    """Groups without spread although the batch has some: copies from the start."""
    key, correct = dead.key, dead.shares.recent.correct
    if dead.share is None or dead.sure is None or dead.early_share is None or key == "reward":
        return None
    shares_logged = key == "frac_reward_zero_std"
    start = run.series(key).steps[0]
    cold = run.info.temperature is not None and run.info.temperature <= 0.3
    if cold and min(dead.share, dead.early_share) >= 0.5 and (correct is None or 0.05 <= correct <= 0.95):
        head = f"{dead.share:.0%} of the groups have no spread at temperature {run.info.temperature:g}: completions of one prompt are copies"
        return Finding(
            "entropy_collapse", "failed", head, 0, start, True, evidence, key, 0.5 if shares_logged else None
        )
    if dead.cause != "mixed":
        return None
    # With 15 to 85 % right, independent completions leave at most 28 % of the groups of 8 without spread if prompts are alike.
    sure = dead.sure >= 0.9 if correct is None else dead.sure >= 0.8 and 0.15 <= correct <= 0.85
    if sure and len(run.series(key)) >= 8 and dead.early_share >= DEAD:
        head = f"{dead.share:.0%} of the groups have no spread although the batch has: completions of one prompt are copies"
        return Finding(
            "entropy_collapse", "failed", head, 0, start, True, evidence, key, DEAD if shares_logged else None
        )
    return None


RULES = (
    non_finite,
    kl_explosion,
    extraction_failed,
    truncation_spiral,
    length_collapse,
    reward_hacking,
    entropy_collapse,
    all_correct,
    all_wrong,
    starving,
    plateau,
)
"""In the order in which causes are named when several apply (see `ranking`)."""
