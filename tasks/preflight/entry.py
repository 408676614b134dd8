"""The preflight stage: everything that can be known to fail before anything trains. Runs in the stage process.

Output: `findings.json`, all findings with their evidence and the memory and disk plan. A `fail` stops the run by its
name, once all checks have been made. No GPU is touched.
"""

from __future__ import annotations

import time
import traceback
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass, field
from functools import cached_property
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import torch

from pipeline_config.pipeline import PipelineConfig
from tasks.contract.prompts import encode_example, encode_prompt
from tasks.errors import Interrupted, ModelError, PipelineError, Retryable
from tasks.export.convert import estimate_bytes
from tasks.findings import Finding
from tasks.models import model_folder
from tasks.preflight import data, machine, memory, prompts, settings, verdict
from tasks.preflight.backend import check_backend
from tasks.preflight.export import check_export
from tasks.preflight.rewards import check_rewards
from tasks.preflight.shape import read_config, shape_of
from tasks.process.context import StageContext, StageResult
from tasks.rewards.build import build_rewards
from tasks.training.backend import backend_of
from tasks.training.loading import check_context, load_tokenizer

TABLES = ("train", "gate", "eval", "sft")
MAX_MEASURED = 20_000
"""Prompts per table that are encoded; of a larger table the ones with the most characters."""
MAX_EXAMPLES = 2000
EXPORT_PROMPTS = 4


@dataclass
class Preflight:
    """One preflight: what it reads, and what it has found so far by group."""

    ctx: StageContext
    folder: Path
    tables: dict[str, list[dict[str, Any]]]
    machine: machine.Machine
    tokenizer: Any = None
    encoded: dict[str, prompts.Encoded] = field(default_factory=dict)
    found: dict[str, list[Finding]] = field(default_factory=dict)
    longest_example: int = 0
    """Tokens of the longest SFT row; 0 until it is measured."""
    plans: dict[str, Any] = field(default_factory=dict)
    seconds: dict[str, float] = field(default_factory=dict)

    @property
    def config(self) -> PipelineConfig:
        config: PipelineConfig = self.ctx.config
        return config

    @cached_property
    def shape(self) -> memory.ModelShape:
        trusted = self.config.model.trust_remote_code
        return shape_of(read_config(self.folder, trusted), trusted)

    @property
    def computes_on_gpu(self) -> bool:
        return bool(self.machine.gpus) and self.config.run.device != "cpu" and torch.version.cuda is not None

    @property
    def vllm(self) -> bool:
        """Whether rollouts would go through vLLM; see `tasks.sampling.sampler.uses_vllm`."""
        return self.computes_on_gpu and find_spec("vllm") is not None and self.config.vllm.enabled != "off"


def run(ctx: StageContext) -> StageResult:
    """Make every check, write all findings, then stop the run if one of them is a `fail`.

    Raises:
        ConfigError, DataError, ModelError, StoreError: the first `fail`, named by it.
    """
    config = ctx.config
    folder = model_folder(ctx.inputs["model"], config.model.source, config.model.revision)
    tables = {name: pq.read_table(ctx.inputs["dataset"] / f"{name}.parquet").to_pylist() for name in TABLES}
    preflight = Preflight(ctx, folder, tables, machine.read_machine(ctx.work_dir))
    examine(preflight)
    found = preflight.found
    verdict.write(found, ctx.out, plans=preflight.plans, seconds=preflight.seconds)
    for _, finding in verdict.in_order(found):
        fix = f"; what to do: {finding.fix}" if finding.fix and finding.status != "ok" else ""
        ctx.log(f"{finding.status:<12} {finding.name}: {finding.evidence}{fix}")
    failure = verdict.first_failure(found)
    if failure is not None:
        raise failure
    notes = [f"{f.name}: {f.evidence}" for _, f in verdict.in_order(found) if f.status == "warn"]
    numbers = {f"findings/{status}": count for status, count in verdict.counts(found).items()}
    planned = {
        f"{name}_bytes": plan.get("peak", plan.get("total"))
        for name, plan in preflight.plans.items()
        if name != "sizes"
    }
    return StageResult(metrics={**numbers, **planned}, effective_config={}, notes=notes)


def examine(preflight: Preflight) -> None:
    """All groups of checks. The export's dry run is mostly a process of its own, so it goes on beside the others."""
    _measured(preflight, "tokenizer", _tokenizer)
    with ThreadPoolExecutor(1) as pool:
        export = pool.submit(_measured, preflight, "export", _export)
        for group, check in (
            ("config", _settings),
            ("data", _data),
            ("rewards", _rewards),
            ("memory", _memory),
            ("disk", _disk),
        ):
            _measured(preflight, group, check)
            preflight.ctx.progress(len(preflight.found), len(verdict.GROUPS), group)
        export.result()
    preflight.ctx.progress(len(verdict.GROUPS), len(verdict.GROUPS), "done")


def _measured(preflight: Preflight, group: str, check: Callable[[Preflight], Sequence[Finding]]) -> None:
    """Make one group of checks. An error of the pipeline's is a finding by its cause; what goes wrong inside a check
    is `not measured`, with the traceback in the log, because a fault of ours must not keep a run from starting."""
    began = time.monotonic()
    try:
        found = list(check(preflight))
    except (Interrupted, Retryable):
        raise
    except PipelineError as error:
        name = error.cause if error.cause != error.default_cause else f"{group}.usable"
        found = [Finding(name, "fail", f"{error.where}: {error.message}" if error.where else error.message, error.fix)]
    except Exception as error:  # noqa: BLE001 - see above
        traceback.print_exc()
        found = [Finding(group, "not_measured", f"the check itself failed: {type(error).__name__}: {error}")]
    preflight.found[group] = found
    preflight.seconds[group] = round(time.monotonic() - began, 2)


def _tokenizer(preflight: Preflight) -> list[Finding]:
    config, contract = preflight.config, preflight.config.contract
    check_context(preflight.folder, config)
    tokenizer = load_tokenizer(preflight.folder, config)
    found = []
    for role in ("train", "gate", "eval"):
        questions = _longest([str(row["question"]) for row in preflight.tables[role]], MAX_MEASURED)
        try:
            lengths = [len(encode_prompt(tokenizer, contract, question)) for question in questions]
        except ModelError as error:
            return [
                Finding(error.cause if error.cause != "model" else "template.renders", "fail", error.message, error.fix)
            ]
        preflight.encoded[role] = prompts.Encoded(questions, lengths)
    found += prompts.check_prompts(tokenizer, contract, preflight.encoded["train"])
    ids = [
        token
        for question in preflight.encoded["train"].questions[:64]
        for token in encode_prompt(tokenizer, contract, question)
    ]
    vocab = read_config(preflight.folder, config.model.trust_remote_code).get_text_config().vocab_size
    found.append(prompts.check_vocabulary(tokenizer, vocab, [*ids, int(tokenizer.eos_token_id)]))
    preflight.tokenizer = tokenizer
    return found


def _settings(preflight: Preflight) -> list[Finding]:
    from trl import GRPOTrainer

    config, grpo = preflight.config, preflight.config.grpo
    return [
        *settings.check_arguments(preflight.ctx),
        *settings.check_choices(grpo, GRPOTrainer, preflight.vllm),
        *settings.check_batch(grpo, config.parallel.processes, len(preflight.tables["train"])),
        settings.check_sampling(grpo, preflight.vllm),
        check_backend(grpo, backend_of(config, grpo)),
        *settings.check_devices(config, len(preflight.machine.gpus), torch.version.cuda is not None),
        *settings.check_server(config.vllm),
        *settings.check_adapter("sft", config.sft, preflight.shape.linear),
        *settings.check_adapter("grpo", grpo, preflight.shape.linear),
    ]


def _data(preflight: Preflight) -> list[Finding]:
    config, tables = preflight.config, preflight.tables
    completion = config.grpo.max_completion_length
    limits = {"train": completion, "gate": completion, "eval": config.evaluation.max_new_tokens or completion}
    found = [
        data.check_golds([*tables["train"], *tables["eval"]]),
        *data.check_answers(tables["train"]),
        data.check_copied_golds(tables["train"]),
        *data.check_repeats(tables, may_repeat=not config.data.deduplicate),
    ]
    if preflight.encoded:
        longest = {role: encoded.longest for role, encoded in preflight.encoded.items()}
        found.append(data.check_lengths(longest, limits, config.model.max_context))
    if preflight.tokenizer is not None:
        found += _examples(preflight)
    return found


def _examples(preflight: Preflight) -> list[Finding]:
    """Lengths of the longest SFT rows, prompt and completion apart as SFT encodes them, in tokens."""
    config = preflight.config
    rows = sorted(preflight.tables["sft"], key=lambda row: -len(row["question"]) - len(row["working"]))[:MAX_EXAMPLES]
    wholes, completions = [], []
    for row in rows:
        ids, mask = encode_example(
            preflight.tokenizer, config.contract, str(row["question"]), str(row["working"]), str(row["answer"])
        )
        wholes.append(len(ids))
        completions.append(sum(mask))
    preflight.longest_example = max(wholes, default=0)
    return [
        data.check_examples(wholes, config.sft.max_length),
        data.check_completions(completions, config.grpo.max_completion_length),
    ]


def _rewards(preflight: Preflight) -> list[Finding]:
    config, rows = preflight.config, preflight.tables["train"]
    tokenizer = preflight.tokenizer
    eos = [int(tokenizer.eos_token_id)] if tokenizer is not None else []

    def encode(text: str) -> list[int]:
        if tokenizer is None:
            return list(range(1, 2 + len(text) // 4))
        return [*tokenizer(text, add_special_tokens=False)["input_ids"], *eos]

    with build_rewards(
        config.grpo.rewards, config.contract, max_completion_length=config.grpo.max_completion_length, eos_ids=eos
    ) as rewards:
        found = check_rewards(rewards, config.grpo.rewards, config.contract, rows, config.preflight.reward_audit)
        if any(finding.name == "rewards.no_exception" and finding.status == "fail" for finding in found):
            gold = Finding("data.gold_scores_maximum", "not_measured", "the rewards fail; see rewards.no_exception")
        else:
            gold = data.check_gold_rewards(rows, rewards, config.contract, encode)
    return [*found, gold]


def _memory(preflight: Preflight) -> list[Finding]:
    config = preflight.config
    shape = preflight.shape
    longest = max((encoded.longest for encoded in preflight.encoded.values()), default=0)
    scene = memory.Scene(
        longest_prompt=longest or config.model.max_context - config.grpo.max_completion_length,
        longest_example=min(preflight.longest_example or config.sft.max_length, config.sft.max_length),
        gpu_bytes=min(preflight.machine.gpus) if preflight.computes_on_gpu else 0,
        vllm=preflight.vllm,
        unsloth=backend_of(config, config.grpo) == "unsloth",
        liger=not preflight.computes_on_gpu or find_spec("liger_kernel") is not None,
    )
    plan = preflight.plans["memory"] = memory.memory_plan(config, shape, scene)
    preflight.plans["sizes"] = {"shape": asdict(shape), "scene": asdict(scene)}
    preflight.plans["disk"] = memory.disk_plan(config, shape, estimate_bytes(shape.parameters, config.export.formats))
    there = (
        preflight.machine
        if preflight.computes_on_gpu
        else machine.Machine(preflight.machine.host, (), preflight.machine.disk)
    )
    return machine.check_memory(plan, there)


def _disk(preflight: Preflight) -> list[Finding]:
    if "disk" not in preflight.plans:
        return [Finding("disk", "not_measured", "the size of the model is not known; see the memory check")]
    return [machine.check_disk(preflight.plans["disk"], preflight.machine)]


def _export(preflight: Preflight) -> list[Finding]:
    if preflight.tokenizer is None:
        return [Finding("export.dry_run", "not_measured", "the tokenizer cannot be used; see above")]
    questions = preflight.encoded["train"].questions[:EXPORT_PROMPTS]
    return check_export(preflight.folder, preflight.config, preflight.tokenizer, questions)


def _longest(texts: Sequence[str], most: int) -> list[str]:
    """The texts with the most characters, in their order; all of them when there are not too many."""
    if len(texts) <= most:
        return list(texts)
    places = sorted(range(len(texts)), key=lambda i: -len(texts[i]))[:most]
    return [texts[i] for i in sorted(places)]
