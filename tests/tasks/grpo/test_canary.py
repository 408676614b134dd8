"""Stale rollout weights are caught: by the gap, by an engine that does not move, and by TRL's own measure."""

from __future__ import annotations

import copy
import math
import sys
from collections.abc import Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import flat_lines
import pytest
from flat_lines import TAGGED, grpo, logged, sums

from pipeline_config.loading import load_config
from tasks.errors import RunStopped
from tasks.grpo.canary import (
    Canary,
    Probe,
    SampledGap,
    add_canary,
    mean_gap,
    model_scorer,
    probes,
    rollout_adapter,
    vllm_scorer,
)

pytest.importorskip("trl")
PROBES = [Probe((1, 2, 3), 1)]


class Fixed:
    """A scorer whose log-probabilities the test sets."""

    def __init__(self, value: float) -> None:
        self.value = value

    def __call__(self, sequences: Sequence[Probe]) -> list[list[float]]:
        return [[self.value] * (len(probe.ids) - probe.start) for probe in sequences]


def test_the_mean_gap() -> None:
    assert mean_gap([[-1.0, -2.0]], [[-1.5, -2.0]]) == 0.25
    assert mean_gap([[-1.0], [-2.0, -2.0]], [[-1.0], [-2.3, -2.0]]) == pytest.approx(0.1)


def test_an_engine_that_follows_is_let_go_on() -> None:
    ours, theirs = Fixed(-1.0), Fixed(-1.01)
    canary = Canary(ours, theirs, PROBES, limit=0.1)
    assert canary.look(1) == {"canary/gap": pytest.approx(0.01), "canary/moved": 0.0, "canary/engine_moved": 0.0}
    for step in range(2, 20):
        ours.value -= 0.05
        theirs.value -= 0.05
        found = canary.look(step)
        assert found["canary/moved"] == found["canary/engine_moved"] == pytest.approx(0.05 * (step - 1))


def test_a_gap_above_the_limit() -> None:
    with pytest.raises(RunStopped, match=r"differ by 0\.2 nats") as caught:
        Canary(Fixed(-1.0), Fixed(-1.2), PROBES, limit=0.1).look(7)
    assert (caught.value.cause, caught.value.where) == ("stale_rollout_weights", "grpo step 7")


def test_an_engine_that_stands_still_is_caught_below_the_limit() -> None:
    ours, theirs = Fixed(-1.0), Fixed(-1.001)
    canary = Canary(ours, theirs, PROBES, limit=1.0)
    canary.look(1)
    ours.value = -1.02  # 20 times the first gap, far below the limit
    with pytest.raises(RunStopped, match="the engine by 0") as caught:
        canary.look(2)
    assert caught.value.cause == "stale_rollout_weights"


def test_trls_own_gap_needs_two_rows() -> None:
    watch = SampledGap(0.1)

    def row(gap: Any) -> None:
        watch.on_log(None, SimpleNamespace(global_step=5), None, {"sampling/sampling_logp_difference/mean": gap})  # type: ignore[arg-type]

    for gap in (0.01, 0.3, 0.02, None, 0.4):
        row(gap)
    with pytest.raises(RunStopped, match=r"0\.5 nats a token in 2 logged rows"):
        row(0.5)


class Engine:
    """An engine that shares its base weights: the adapter comes with a call, or the base answers (-2.0 a token)."""

    def __init__(self, shared: bool) -> None:
        self.shared_weights = shared

    def generate(self, prompts: list[Any], parameters: Any, use_tqdm: bool, lora_request: Any = None) -> list[Any]:
        value = -2.0 if lora_request is None else lora_request
        return [
            SimpleNamespace(
                prompt_logprobs=[{token: SimpleNamespace(logprob=value)} for token in p["prompt_token_ids"]]
            )
            for p in prompts
        ]


@pytest.mark.parametrize(("shared", "found"), [(True, [-1.5, -1.5]), (False, [-2.0, -2.0])])
def test_an_engine_that_shares_its_weights_is_asked_with_the_adapter(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, shared: bool, found: list[float]
) -> None:
    """The adapter's configuration is written into the run's folder, never into the one that the command was given in."""
    asked = []

    def load_lora(name: str, load_tensors: bool) -> float | None:
        asked.append(name)
        return -1.5 if load_tensors else None

    vllm = SimpleNamespace(SamplingParams=lambda **_: None, TokensPrompt=lambda **prompt: prompt)
    monkeypatch.setitem(sys.modules, "vllm", vllm)
    model = SimpleNamespace(load_lora=load_lora)
    engine = Engine(shared)
    assert vllm_scorer(engine, rollout_adapter(engine, model, tmp_path))(PROBES) == [found]
    assert asked == [str(tmp_path)] * shared


def test_nothing_to_compare_without_vllm() -> None:
    assert add_canary(SimpleNamespace(use_vllm=False), None, [], load_config("tiny"), print).startswith("not needed")


# -- with a real trainer ------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def with_tags(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return flat_lines.with_tags(tmp_path_factory.mktemp("tags"))


def test_a_models_log_probabilities(with_tags: Path) -> None:
    import torch
    from transformers import AutoModelForCausalLM

    tokenizer, _ = flat_lines.load(with_tags)
    model = AutoModelForCausalLM.from_pretrained(str(with_tags / "model"))
    found = probes(tokenizer, sums("1234"), load_config("tiny"))
    (scored, *_), probe = model_scorer(model)(found), found[0]
    assert len(found) == 4 and len(scored) == len(probe.ids) - probe.start
    # By hand: the probability of the first completion token after the prompt alone.
    with torch.no_grad():
        logits = model(input_ids=torch.tensor([probe.ids[: probe.start]])).logits[0, -1]
    assert scored[0] == pytest.approx(math.log(torch.softmax(logits.float(), -1)[probe.ids[probe.start]]), abs=1e-4)


@pytest.mark.parametrize("stale", [False, True])
def test_an_engine_with_and_without_its_weights_in_a_real_run(
    with_tags: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, stale: bool
) -> None:
    """The engine is a second transformers model, which gets the trainer's weights before it samples, as vLLM does; or once
    only, which is the fault."""
    from tasks.grpo import canary, entry

    def add(trainer: Any, tokenizer: Any, rows: Any, config: Any, log: Any) -> str:
        engine = copy.deepcopy(trainer.model)
        sample = trainer._generate_single_turn

        def push_and_sample(*args: Any, **kwargs: Any) -> Any:
            if not stale:
                engine.load_state_dict(trainer.model.state_dict())
            return sample(*args, **kwargs)

        trainer._generate_single_turn = push_and_sample
        pair = Canary(model_scorer(trainer.model), model_scorer(engine), probes(tokenizer, rows, config), 0.1)
        canary.watch_rollouts(trainer, pair, 1, log)
        return "fixed completions"

    monkeypatch.setattr(entry, "add_canary", add)
    settings = ["grpo.max_steps=6", "grpo.learning_rate=1e-3", "grpo.warmup_steps=0", "grpo.watchdog=off"]
    ctx = grpo(with_tags, tmp_path, *TAGGED, *settings, rows=sums("1234"))
    if not stale:
        assert entry.run(ctx).metrics["canary"] == "fixed completions"
        assert max(logged(ctx, "canary/gap")) < 1e-4 and logged(ctx, "canary/moved")[-1] > 0.01
        return
    with pytest.raises(RunStopped) as caught:
        entry.run(ctx)
    assert caught.value.cause == "stale_rollout_weights" and len(logged(ctx)) < 6
