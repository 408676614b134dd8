"""From the gate's first measurement to its last word: a whole measurement where an early stop does not decide, and more SFT where it helps.

One loop for the run, which carries the stages out, and for the plan, which only looks them up.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, MutableMapping
from dataclasses import replace
from typing import cast

from artifacts.manifest import Manifest
from pipeline_config.pipeline import PipelineConfig
from tasks.chain import GATE, SFT
from tasks.format_gate.stopping import decides
from tasks.format_gate.verdict import MORE_SFT, Verdict, decide
from tasks.stage import Stage
from tasks.terms import sft_round_terms

Make = Callable[[Stage, int, str], Manifest | None]
"""(stage, SFT rounds so far including this one, why) -> its artifact, or None when there is none and none is to be made."""
Looked = Callable[[int, Verdict, Manifest], None]

WHOLE_GATE = replace(GATE, options={"whole": True})


def sft_round(number: int, steps: int) -> Stage:
    """The SFT stage that trains the previous round's merged model for some more optimizer steps. `number` counts from 1."""
    return replace(
        SFT, parents=("sft", "dataset"), terms=sft_round_terms, options={"round": number, "max_steps": steps}
    )


def sft_rounds(config: PipelineConfig, given: Mapping[str, Manifest]) -> int:
    """Most SFT rounds that the gate may ask for: none when the SFT model was given to be used as it is."""
    return 0 if "sft" in given else config.gate.max_sft_rounds


def settle_gate(
    config: PipelineConfig, known: MutableMapping[str, Manifest], make: Make, looked: Looked, *, rounds: int
) -> Verdict | None:
    """Follow the gate's measurement in `known` until its verdict stands; None when something is missing for it.

    Args:
        known: manifests by stage name; `sft` and `format_gate` are replaced by those of the last round.
        make: makes or looks up one more stage.
        looked: is told the verdict of every look, with the number of SFT rounds before it.
        rounds: most SFT rounds.
    """
    done = 0
    while True:
        if not decides(known["format_gate"].metrics, config.gate):
            whole = make(WHOLE_GATE, done, "the sampling stopped early, and does not decide under these thresholds")
            if whole is None:
                return None
            known["format_gate"] = whole
        verdict = decide(known["format_gate"].metrics, config.gate)
        looked(done, verdict, known["format_gate"])
        if verdict.name != MORE_SFT or done >= rounds:
            return verdict
        done += 1
        steps = config.gate.sft_round_steps or int(cast(int, known["sft"].metrics["steps"]))
        trained = make(sft_round(done, steps), done, f"the gate asks for more SFT: round {done} of at most {rounds}")
        if trained is None:
            return None
        known["sft"] = trained
        measured = make(GATE, done, f"looks at SFT round {done}")
        if measured is None:
            return None
        known["format_gate"] = measured
