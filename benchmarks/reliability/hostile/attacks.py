"""All attacks, by the name that the page gives them."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

from benchmarks.reliability.area import Area
from benchmarks.reliability.hostile.models import pickle_only, pickles_beside, template_with_code, with_code
from benchmarks.reliability.hostile.paths import (
    archive_with_a_path_out,
    artifact_with_a_link_out,
    manifest_with_a_path_out,
)
from benchmarks.reliability.hostile.secrets import secret_in_a_setting, secrets_everywhere
from benchmarks.reliability.hostile.settings import BOMB, endless_line, reward_module, yaml_file
from benchmarks.reliability.lab import Lab
from benchmarks.reliability.prefect_server import with_server
from benchmarks.reliability.results import Trial

KIND = "6-hostile"
ATTACKS: dict[str, Callable[[Lab, Path], dict[str, Any]]] = {
    "manifest: a file outside the store": manifest_with_a_path_out,
    "artifact: a link out of the store": artifact_with_a_link_out,
    "archive: a member that leads out": archive_with_a_path_out,
    "YAML: a bomb of aliases": yaml_file(BOMB),
    "YAML: 100,000 nested lists": yaml_file("a: " + "[" * 100_000),
    "YAML: a Python object": yaml_file("model: !!python/object/apply:os.system ['touch CANARY']\n"),
    "JSONL: a line of 1 GB": endless_line,
    "reward: no such module": reward_module(None),
    "reward: raises when imported": reward_module("raise RuntimeError('no')"),
    "reward: ends the process when imported": reward_module("import os\nos._exit(0)"),
    "reward: kills its process group when called": reward_module(
        "import os, signal\ndef pay(completions, **kwargs):\n    os.kill(0, signal.SIGKILL)\n"
    ),
    "model: only a pickle": pickle_only,
    "model: pickles beside the safetensors": pickles_beside,
    "model: code by config.json": with_code("config", "config.json"),
    "model: code by tokenizer_config.json": with_code("tokenizer", "tokenizer_config.json"),
    "model: code in the chat template": template_with_code,
    "secrets: printed and raised by a reward": secrets_everywhere,
    "secrets: in a setting": secret_in_a_setting,
}


def trials(moments: int) -> list[Trial]:
    return [Trial(KIND, attack) for attack in ATTACKS]


def run(lab: Lab, trial: Trial) -> dict[str, Any]:
    return ATTACKS[trial.fault](lab, lab.home(trial.key))


AREA = Area("Hostile input", trials, run, with_server)
