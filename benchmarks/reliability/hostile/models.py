"""Model folders with pickles or code."""

from __future__ import annotations

import json
import pickle
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

from benchmarks.reliability.hostile.common import refused, result
from benchmarks.reliability.lab import Lab, error_line, store


class Touch:
    """A pickle that makes a file when it is loaded."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self) -> tuple[Any, ...]:
        return Path.touch, (self.path,)


def model_folder(lab: Lab, home: Path) -> Path:
    """A copy of the tiny model, as a folder of the user's."""
    opened = store(home)
    folder = home / "model"
    shutil.copytree(opened.local_folder(opened.find("model:latest")) / "model", folder)
    return folder


def pickle_only(lab: Lab, home: Path) -> dict[str, Any]:
    folder, canary = model_folder(lab, home), home / "canary"
    (folder / "model.safetensors").unlink()
    (folder / "pytorch_model.bin").write_bytes(pickle.dumps(Touch(canary)))
    ended = lab.run(home, sets=[f"model.source={folder}"])
    return result(refused(ended, 12) + (["code ran"] if canary.exists() else []), ended)


def pickles_beside(lab: Lab, home: Path) -> dict[str, Any]:
    folder, canary = model_folder(lab, home), home / "canary"
    for name in (
        "pytorch_model.bin",
        "optimizer.pt",
        "training_args.bin",
        "adapter_model.bin",
        "scheduler.pt",
        "rng_state.pth",
    ):
        (folder / name).write_bytes(pickle.dumps(Touch(canary)))
    ended = lab.run(home, "--stop-after", "sft", sets=[f"model.source={folder}"])
    lost = (["code ran"] if canary.exists() else []) + (
        [f"exit code {ended.code}: {error_line(ended)}"] if ended.code else []
    )
    return result(lost, ended, "the safetensors were used; no pickle was opened")


def with_code(name: str, file: str) -> Callable[[Lab, Path], dict[str, Any]]:
    """`auto_map` in `file` points to a Python file of the folder."""

    def carry_out(lab: Lab, home: Path) -> dict[str, Any]:
        folder, canary = model_folder(lab, home), home / "canary"
        (folder / "evil.py").write_text(f"open({str(canary)!r}, 'w')\nclass Evil: pass\n")
        settings = json.loads((folder / file).read_text())
        settings["auto_map"] = {
            "AutoConfig": "evil.Evil",
            "AutoModelForCausalLM": "evil.Evil",
            "AutoTokenizer": ["evil.Evil", "evil.Evil"],
        }
        if file == "config.json":
            settings["model_type"] = "evil"
        (folder / file).write_text(json.dumps(settings))
        ended = lab.run(home, "--stop-after", "sft", sets=[f"model.source={folder}"])
        lost = ["code ran"] if canary.exists() else []
        if file == "config.json":
            lost += refused(ended, 12)
        return result(
            lost,
            ended,
            "refused; nothing ran" if ended.code else "the code was left alone; the tokenizer's own files were used",
        )

    return carry_out


def template_with_code(lab: Lab, home: Path) -> dict[str, Any]:
    folder, canary = model_folder(lab, home), home / "canary"
    attack = f"{{{{ cycler.__init__.__globals__.os.system('touch {canary}') }}}}"
    template = folder / "chat_template.jinja"
    text = (
        template.read_text()
        if template.exists()
        else json.loads((folder / "tokenizer_config.json").read_text())["chat_template"]
    )
    template.write_text(attack + text)
    ended = lab.run(home, "--stop-after", "sft", sets=[f"model.source={folder}"])
    lost = (["code ran"] if canary.exists() else []) + ([] if ended.code else ["it was accepted"])
    return result(lost, ended)
