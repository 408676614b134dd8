"""Where a run's results come from and where they are: lineage, versions, files, the GGUF proof, and the command to repeat it."""

from __future__ import annotations

import json
import shlex
from collections.abc import Mapping
from typing import Any

from pydantic import ValidationError

from pipeline_config.loading import load_config, parse_override, profiles
from pipeline_config.pipeline import PipelineConfig
from tasks.errors import PipelineError
from tasks.report.run_files import RunFiles, number

MAX_SETS = 12
"""A configuration that differs from every profile in more settings than this is given as a file."""
TAKEN_AWAY = (("export", (".gguf", "Modelfile", ".md")), ("grpo", (".safetensors",)))


def lineage(run: RunFiles) -> list[dict[str, Any]]:
    """One row per artifact: fingerprints, parents, versions, what the trainer changed."""
    return [
        {
            "stage": name,
            "fingerprint": m.fingerprint,
            "content_digest": m.content_digest,
            "parents": [{"stage": p.stage, "fingerprint": p.fingerprint} for p in m.parents.values()],
            "finished_at": m.finished_at.isoformat(),
            "attempt": m.attempt,
            "git_revision": m.git_revision,
            "changed": changed_settings(m.effective_config.get("changed_by_the_trainer")),
        }
        for name, m in run.manifests.items()
    ]


def changed_settings(changed: Any) -> list[dict[str, Any]]:
    """Settings that a trainer changed after it had been asked for others."""
    if not isinstance(changed, Mapping):
        return []
    return [
        {"name": name, "asked": json.dumps(value.get("asked")), "used": json.dumps(value.get("used"))}
        for name, value in sorted(changed.items())
        if isinstance(value, Mapping)
    ]


def versions(run: RunFiles) -> dict[str, str]:
    """Library versions that the artifacts were made with; one that differs between stages names both."""
    found: dict[str, set[str]] = {}
    for manifest in run.manifests.values():
        for name, version in manifest.library_versions.items():
            if version != "absent":
                found.setdefault(name, set()).add(version)
    return {name: ", ".join(sorted(texts)) for name, texts in sorted(found.items())}


def files(run: RunFiles) -> list[dict[str, Any]]:
    """What a user takes away: GGUF files with what belongs to them, weights and adapter of the trained model."""
    return [
        {"folder": str(run.folders[stage]), "name": entry.path, "bytes": entry.size, "stage": stage}
        for stage, endings in TAKEN_AWAY
        for entry in (run.manifests[stage].files if stage in run.manifests else ())
        if entry.path.endswith(endings)
    ]


def proofs(run: RunFiles) -> list[dict[str, Any]]:
    """Per GGUF file: verdict, size, accuracy beside the 16-bit model's, and the checks behind the verdict."""
    checks = run.json("export", "proof.json")
    found = []
    for name, item in run.metrics("export").items():
        if not isinstance(item, Mapping) or "verdict" not in item:
            continue
        proof = checks.get(name) if isinstance(checks, Mapping) else None
        findings = proof.get("findings") if isinstance(proof, Mapping) else None
        rate = {
            key: number(item.get(f"accuracy{end}")) for key, end in (("rate", ""), ("low", "_low"), ("high", "_high"))
        }
        found.append(
            {
                "name": name,
                "verdict": str(item["verdict"]),
                "bytes": number(item.get("bytes")),
                "accuracy": {**rate, "n": item.get("n")} if None not in rate.values() else None,
                "model_accuracy": number(item.get("model_accuracy")),
                "gained": item.get("gained"),
                "lost": item.get("lost"),
                "reasons": [str(reason) for reason in item.get("reasons") or ()],
                "findings": [f for f in findings or () if isinstance(f, Mapping)],
            }
        )
    return found


def promotions(run: RunFiles) -> list[dict[str, Any]]:
    """What the model registry decided about the run's export, newest first."""
    return [
        {
            "kind": event.kind,
            "reason": str(event.decision.get("reason", "")),
            "text": str(event.decision.get("text", "")),
            "at": event.at.isoformat(),
        }
        for event in run.promotions
    ]


def command(record: Mapping[str, Any]) -> tuple[str, bool]:
    """The shell command that repeats a run, and whether it needs the configuration as the file run.yaml.

    It is the nearest profile with `--set` for what differs, checked by loading it, when that is short.
    """
    choice = record.get("choice") or {}
    options = [f"--{key.replace('_', '-')} {shlex.quote(str(choice[key]))}" for key in CHOICES if choice.get(key)]
    options += [f"--force {shlex.quote(str(name))}" for name in choice.get("force") or ()]
    short = _from_profile(record["config"])
    given = "-c run.yaml" if short is None else short
    return " ".join(["grpo-pipeline run", given, *options]), short is None


CHOICES = ("start_from", "stop_after", "resume_from")


def _from_profile(config: Mapping[str, Any]) -> str | None:
    try:
        wanted = PipelineConfig.model_validate(config)
        texts = {
            name: _sets(load_config(name).model_dump(mode="json"), wanted.model_dump(mode="json"))
            for name in profiles()
        }
        name, sets = min(texts.items(), key=lambda item: len(item[1]))
        if len(sets) > MAX_SETS or load_config(name, overrides=sets) != wanted:
            return None
    except (ValidationError, PipelineError):  # a record of another version, or a value that --set cannot say
        return None
    return " ".join([f"-p {shlex.quote(name)}", *(f"--set {shlex.quote(text)}" for text in sets)])


def _sets(base: Mapping[str, Any], wanted: Mapping[str, Any], path: str = "") -> list[str]:
    """`a.b=c` for every setting of `wanted` that differs from `base`; lists are given whole."""
    texts = []
    for key, value in wanted.items():
        at, old = f"{path}{key}", base.get(key)
        if isinstance(value, Mapping) and isinstance(old, Mapping):
            texts += _sets(old, value, f"{at}.")
        elif value != old:
            texts.append(f"{at}={value if _plain(value) else json.dumps(value, ensure_ascii=False)}")
    return texts


def _plain(value: Any) -> bool:
    """Whether a text means itself after `key=`."""
    return isinstance(value, str) and parse_override(f"a={value}")[1] == value
