"""What a run would do, and why, without doing it."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace

from artifacts.fingerprint import fingerprint
from artifacts.manifest import Manifest
from artifacts.store import Store
from pipeline_config.pipeline import PipelineConfig
from tasks.chain import CHAIN, NAMES, names_of, stages_for
from tasks.errors import ConfigError, StoreError
from tasks.format_gate.verdict import GO, Verdict
from tasks.sft_rounds import settle_gate, sft_rounds
from tasks.stage import Stage, all_terms, stored, why
from tasks.storage import RUN_ID, find_run


@dataclass(frozen=True)
class Selection:
    """Which part of the chain runs.

    Attributes:
        stages: in order, the ones to carry out.
        given: manifests used as they are, by stage name (`--resume-from`, or stages before `--start-from`).
        forced: names of stages made again although stored.
    """

    stages: tuple[Stage, ...]
    given: Mapping[str, Manifest]
    forced: frozenset[str]


@dataclass(frozen=True)
class Step:
    """One line of a plan: `reuse`, `run`, `given`, or `wait` (its inputs will be made first, or the gate stops the run before it)."""

    stage: str
    action: str
    reason: str
    fingerprint: str | None


def select(
    config: PipelineConfig,
    store: Store,
    start_from: str | None = None,
    stop_after: str | None = None,
    force: Sequence[str] = (),
    resume_from: str | None = None,
) -> Selection:
    """Turn the options of a run into the stages to carry out.

    `resume_from` names an artifact (manifest path, fingerprint, `stage/prefix`, `stage:latest`, or `latest` for the newest
    SFT model) or a run (its id): the artifact with its recorded ancestors, or all that the run made, are used as they are,
    whatever the configuration says. `start_from` takes, for every stage before it, what this configuration would reuse,
    else the newest stored artifact.

    Raises:
        ConfigError: unknown stage, or start after stop.
        StoreError: nothing stored to start from, or it is damaged.
    """
    order = {name: i for i, name in enumerate(NAMES)}
    first = order[names_of(start_from)[0]] if start_from else 0
    last = max(order[name] for name in names_of(stop_after)) if stop_after else len(NAMES)
    if last < first:
        raise ConfigError(
            f"--stop-after {stop_after} comes before --start-from {start_from}",
            fix=f"the order is {', '.join(NAMES)}",
        )
    evaluates = any(stage.package == "evaluate" and first <= order[stage.name] <= last for stage in CHAIN)

    def before(name: str) -> bool:
        # The evaluation's sets stand before training, but belong to the evaluation: they follow the configuration.
        return order[name] < first and not (name == "evaluation_sets" and evaluates)

    forced = frozenset(name for text in force for name in names_of(text) if not before(name))
    stages = tuple(stage for stage in stages_for(config) if order[stage.name] <= last)
    given = _resumed(resume_from, store) if resume_from else {}
    if start_from:
        given = {name: manifest for name, manifest in given.items() if before(name)}
        same = _reusable(config, store, stages, given)
        for name in needed_before(stages, before):
            if name not in given:
                manifest = same[name] if name in same else store.find(f"{name}:latest")
                given = {**lineage(manifest, store), **given}
        stages = tuple(stage for stage in stages if not before(stage.name) or stage.name in given)
    _check_given(stages, given, store)
    return Selection(stages, given, forced - given.keys())


def _resumed(reference: str, store: Store) -> dict[str, Manifest]:
    """What `--resume-from` names, by stage name."""
    if not RUN_ID.fullmatch(reference):
        return lineage(store.find("sft:latest" if reference == "latest" else reference), store)
    run = find_run(store, reference)
    made = [(item["stage"], item["fingerprint"]) for item in run["stages"] if "fingerprint" in item]
    found = {stage: manifest for stage, key in made if (manifest := store.lookup(stage, key)) is not None}
    if not found:
        raise StoreError(
            f"nothing of the run {run['run_id']} is stored",
            where=store.url,
            fix="`grpo-pipeline artifacts ls` lists what there is",
        )
    return found


def _reusable(
    config: PipelineConfig, store: Store, stages: Sequence[Stage], given: Mapping[str, Manifest]
) -> dict[str, Manifest]:
    """What is stored for exactly this configuration, SFT rounds included; nothing behind a stage that is not stored."""
    known = dict(given)

    def look_up(stage: Stage, *_: object) -> Manifest | None:
        return store.lookup(stage.name, fingerprint(all_terms(stage, config, known)))

    for stage in stages:
        if stage.name not in known and all(parent in known for parent in stage.parents):
            manifest = look_up(stage)
            if manifest is not None:
                known[stage.name] = manifest
        if stage.name == "format_gate" and stage.name in known and known[stage.name].metrics:
            settle_gate(config, known, look_up, lambda *_: None, rounds=sft_rounds(config, given))
    return known


def _check_given(stages: Sequence[Stage], given: Mapping[str, Manifest], store: Store) -> None:
    """What is used as it is must at least be whole: no stage makes it again."""
    read = {parent for stage in stages if stage.name not in given for parent in stage.parents}
    for name in sorted(read & given.keys()):
        problems = store.verify(given[name], deep=True)
        if problems:
            raise StoreError(
                f"the stored artifact is damaged: {problems[0]}",
                where=f"{name}/{given[name].fingerprint[:16]}",
                fix="run without --resume-from and --start-from, so that it is made again",
                cause="artifact_damaged",
            )


def needed_before(stages: Sequence[Stage], before: Callable[[str], bool]) -> list[str]:
    """Stages before the start whose artifacts the stages from there on read, the latest first."""
    order = {name: i for i, name in enumerate(NAMES)}
    later = [stage for stage in stages if not before(stage.name)]
    needed = {parent for stage in later for parent in stage.parents if before(parent)}
    return sorted(needed, key=order.__getitem__, reverse=True)


def lineage(manifest: Manifest, store: Store) -> dict[str, Manifest]:
    """An artifact and its recorded ancestors, by stage name."""
    found = {manifest.stage: manifest}
    for parent in manifest.parents.values():
        ancestor = store.lookup(parent.stage, parent.fingerprint)
        if ancestor is not None:
            for name, item in lineage(ancestor, store).items():
                found.setdefault(name, item)
    return found


def plan(config: PipelineConfig, store: Store, selection: Selection) -> list[Step]:
    """What each selected stage would do. A stage behind one that runs can still be reused, if that one's result is unchanged.

    Whether the gate asks for more SFT is known only once it has measured; stored measurements are followed, and where one ends in a round
    that is not stored, or in a refusal, the stages behind it wait for that.
    """
    known: dict[str, Manifest] = dict(selection.given)
    steps: list[Step] = []
    rounds = sft_rounds(config, selection.given)
    refused = ""

    def step(stage: Stage, *_: object) -> Manifest | None:
        """Adds the step of one stage; its artifact, if it would be reused."""
        terms = all_terms(stage, config, known)
        key = fingerprint(terms)
        found, damage = stored(stage, key, store)
        if stage.name in selection.forced:
            steps.append(Step(stage.name, "run", "forced", key))
        elif found is None:
            steps.append(Step(stage.name, "run", why(stage, terms, store), key))
        elif damage:
            steps.append(Step(stage.name, "run", f"the stored artifact is damaged: {damage}", key))
        else:
            steps.append(Step(stage.name, "reuse", "unchanged", key))
            return found
        return None

    def more(stage: Stage, done: int, reason: str) -> Manifest | None:
        found = step(stage)
        steps[-1] = replace(steps[-1], reason=reason if found is None else f"unchanged; {reason}")
        return found

    def looked(done: int, verdict: Verdict, manifest: Manifest) -> None:
        steps[-1] = replace(steps[-1], reason=f"{steps[-1].reason}; its verdict: {verdict.name}")

    for stage in selection.stages:
        if stage.name in selection.given:
            manifest = selection.given[stage.name]
            steps.append(Step(stage.name, "given", "used as it is", manifest.fingerprint))
        else:
            missing = [name for name in stage.parents if name not in known]
            if missing:
                steps.append(Step(stage.name, "wait", f"its input {', '.join(missing)} is made first", None))
            elif refused:
                steps.append(Step(stage.name, "wait", refused, None))
            elif (found := step(stage)) is not None:
                known[stage.name] = found
        if stage.name == "format_gate" and "grpo" not in selection.given:
            if stage.name in known and known[stage.name].metrics:
                verdict = settle_gate(config, known, more, looked, rounds=rounds)
                if verdict is None:
                    known.pop(steps[-1].stage)
                elif verdict.name != GO:
                    refused = f"the gate refuses GRPO: {verdict.name}"
            elif rounds:
                last = steps[-1]
                steps[-1] = replace(
                    last, reason=f"{last.reason}; up to {rounds} more SFT rounds may follow, by what it measures"
                )
    return steps
