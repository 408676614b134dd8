"""What a run would do, and why, without doing it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from artifacts.fingerprint import fingerprint
from artifacts.manifest import Manifest
from artifacts.store import Store
from pipeline_config.pipeline import PipelineConfig
from tasks.chain import NAMES, names_of, stages_for
from tasks.errors import ConfigError
from tasks.stage import Stage, all_terms, why


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
    """One line of a plan: `reuse`, `run`, `given`, or `wait` (its inputs will be made first)."""

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
    SFT model): it and its recorded ancestors are used as they are, whatever the configuration says. `start_from` alone
    takes the newest stored artifact of every stage before it.

    Raises:
        ConfigError: unknown stage, or start after stop.
        StoreError: nothing stored to start from.
    """
    stages = stages_for(config)
    order = {name: i for i, name in enumerate(NAMES)}
    forced = frozenset(name for text in force for name in names_of(text))
    given: dict[str, Manifest] = {}
    if resume_from:
        reference = "sft:latest" if resume_from == "latest" else resume_from
        given = lineage(store.find(reference), store)
    if start_from:
        first = order[names_of(start_from)[0]]
        needed = needed_before(stages, first)
        for name in needed:
            if name not in given:
                given.update({k: m for k, m in lineage(store.find(f"{name}:latest"), store).items() if k not in given})
        forced = frozenset(name for name in forced if order[name] >= first)
    if stop_after:
        last = max(order[name] for name in names_of(stop_after))
        if start_from and last < order[names_of(start_from)[0]]:
            raise ConfigError(f"--stop-after {stop_after} comes before --start-from {start_from}")
        stages = tuple(stage for stage in stages if order[stage.name] <= last)
    if start_from:
        first = order[names_of(start_from)[0]]
        stages = tuple(stage for stage in stages if order[stage.name] >= first or stage.name in given)
    return Selection(stages, given, forced - given.keys())


def needed_before(stages: Sequence[Stage], first: int) -> list[str]:
    """Stages before position `first` whose artifacts the stages from there on read."""
    order = {name: i for i, name in enumerate(NAMES)}
    later = [stage for stage in stages if order[stage.name] >= first]
    needed = {parent for stage in later for parent in stage.parents if order[parent] < first}
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
    """What each selected stage would do. A stage behind one that runs can still be reused, if that one's result is unchanged."""
    known: dict[str, Manifest] = dict(selection.given)
    steps = []
    for stage in selection.stages:
        if stage.name in selection.given:
            manifest = selection.given[stage.name]
            steps.append(Step(stage.name, "given", "used as it is", manifest.fingerprint))
            continue
        missing = [name for name in stage.parents if name not in known]
        if missing:
            steps.append(Step(stage.name, "wait", f"its input {', '.join(missing)} is made first", None))
            continue
        terms = all_terms(stage, config, known)
        key = fingerprint(terms)
        manifest_or_none = store.lookup(stage.name, key)
        if stage.name in selection.forced:
            steps.append(Step(stage.name, "run", "forced", key))
        elif manifest_or_none is None:
            steps.append(Step(stage.name, "run", why(stage, terms, store), key))
        elif problems := store.verify(manifest_or_none, deep=True):
            steps.append(Step(stage.name, "run", f"stored artifact damaged: {problems[0]}", key))
        else:
            known[stage.name] = manifest_or_none
            steps.append(Step(stage.name, "reuse", "unchanged", key))
    return steps
