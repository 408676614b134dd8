"""6. Input made to do harm: paths, YAML, endless lines, reward modules, model folders with code, and where secrets end up."""

from __future__ import annotations

import hashlib
import json
import os
import pickle
import shutil
import subprocess
import threading
import time
import zipfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import psutil

from artifacts.manifest import FileEntry, content_digest
from benchmarks.reliability.area import Area
from benchmarks.reliability.lab import Ended, Lab, below, error_line, losses, rewrite, said, short, store
from benchmarks.reliability.prefect_server import with_server
from benchmarks.reliability.results import Trial

KIND = "6-hostile"
GIGABYTE = 10**9
ROW = {"question": "What is 1 + 2?", "answer": "3", "working": "1 + 2 = 3"}


@contextmanager
def memory_of(command: str) -> Iterator[list[int]]:
    """Largest resident memory (bytes) of any one process whose command line holds `command`, in a list of one."""
    largest, stop = [0], threading.Event()

    def watch() -> None:
        while not stop.wait(0.1):
            for process in psutil.process_iter():
                try:
                    if command in " ".join(process.cmdline()):
                        largest[0] = max(largest[0], process.memory_info().rss)
                except psutil.Error:
                    continue

    thread = threading.Thread(target=watch)
    thread.start()
    try:
        yield largest
    finally:
        stop.set()
        thread.join()


def result(lost: list[str], ended: Ended, went_on: str = "", **more: Any) -> dict[str, Any]:
    at, words = said(ended)
    noticed = error_line(ended) or words
    return {"lost": lost, "noticed_s": at, "noticed": noticed, "went_on": went_on or "refused; nothing ran", **more}


def refused(ended: Ended, code: int, within_s: float = 60.0) -> list[str]:
    wrong = [] if ended.code == code else [f"exit code {ended.code} instead of {code}: {ended.tail(3)}"]
    return wrong + ([f"it took {ended.seconds:.0f} s"] if ended.seconds > within_s else [])


# Paths ---------------------------------------------------------------------------------------------------------------


def manifest_with_a_path_out(lab: Lab, home: Path) -> dict[str, Any]:
    """A manifest, right in every other way, whose file lies outside the store."""
    outside = home / "outside.txt"
    outside.write_text("not yours")
    opened = store(home)
    place = Path(opened.uri(opened.find("export:latest")))

    def lead_out(data: bytes) -> bytes:
        raw = json.loads(data)
        sha = hashlib.sha256(outside.read_bytes()).hexdigest()
        entry = FileEntry.model_construct(path="../../../../../outside.txt", size=outside.stat().st_size, sha256=sha)
        raw["files"] = [entry.model_dump()]
        raw["content_digest"] = content_digest([entry])
        return json.dumps(raw).encode()

    rewrite(place, lead_out)
    return paths_do_no_harm(lab, home, outside)


def artifact_with_a_link_out(lab: Lab, home: Path) -> dict[str, Any]:
    """An artifact whose files folder was replaced by a link to a folder outside."""
    outside = home / "outside"
    outside.mkdir()
    (outside / "keep.txt").write_text("not yours")
    opened = store(home)
    files = Path(opened.uri(opened.find("export:latest"))).with_name("files")
    shutil.rmtree(files)
    files.symlink_to(outside)
    return paths_do_no_harm(lab, home, outside / "keep.txt")


def paths_do_no_harm(lab: Lab, home: Path, outside: Path) -> dict[str, Any]:
    ended = lab.run(home)
    collected = lab.call(
        [*lab.command(home)[:3], "artifacts", "gc", "--store", str(home / "store"), "--keep-last", "0", "--delete"]
    )
    lost = [] if outside.exists() and outside.read_text() == "not yours" else ["the file outside was touched"]
    lost += [f"exit code {ended.code}: {error_line(ended)}"] if ended.code else []
    lost += [f"gc: exit code {collected.code}"] if collected.code else []
    return result(lost, ended, "only the export was made again; `gc --delete` deleted nothing outside the store")


def archive_with_a_path_out(lab: Lab, home: Path) -> dict[str, Any]:
    """A zip whose member is called ../../escaped.jsonl, as a data source. Nothing here unpacks archives: it is read."""
    archive = home / "rows.zip"
    with zipfile.ZipFile(archive, "w") as file:
        file.writestr(
            "../../escaped.jsonl",
            "\n".join(json.dumps({**ROW, "question": f"What is {n} + 2?", "answer": n + 2}) for n in range(300)),
        )
    ended = dataset_from(lab, home, f"zip://../../escaped.jsonl::{archive}")
    found = [str(path) for path in (home.parent, home, lab.folder) if (path / "escaped.jsonl").exists()]
    return result(found, ended, "read as a stream; nothing was unpacked" if ended.code == 0 else "refused")


def dataset_from(lab: Lab, home: Path, url: str, *more: str) -> Ended:
    source = json.dumps(
        [{"kind": "file", "url": url, "columns": {"question": "question", "answer": "answer", "working": "working"}}]
    )
    return lab.run(
        home,
        "--stop-after",
        "dataset",
        sets=[
            f"data.train={source}",
            "data.sft=[]",
            "data.eval_rows=24",
            "data.sft_rows=20",
            "data.train_rows=20",
            "data.gate_rows=16",
            "data.deduplicate=true",
            *more,
        ],
    )


# Configuration -------------------------------------------------------------------------------------------------------


def yaml_file(text: str) -> Callable[[Lab, Path], dict[str, Any]]:
    def carry_out(lab: Lab, home: Path) -> dict[str, Any]:
        path, canary = home / "bad.yaml", home / "canary"
        path.write_text(text.replace("CANARY", str(canary)))
        with memory_of(str(path)) as memory:
            ended = lab.run(home, "--config", str(path), command="plan")
        lost = refused(ended, 10, 30) + (["code ran"] if canary.exists() else [])
        lost += [f"{memory[0] >> 20} MiB"] if memory[0] > 500 << 20 else []
        return result(lost, ended, memory_mib=memory[0] >> 20)

    return carry_out


BOMB = "a0: &a0 [x, x, x, x, x, x, x, x, x, x]\n" + "".join(
    f"a{n}: &a{n} [{', '.join([f'*a{n - 1}'] * 10)}]\n" for n in range(1, 12)
)


# Data ----------------------------------------------------------------------------------------------------------------


def endless_line(lab: Lab, home: Path) -> dict[str, Any]:
    path = home / "rows.jsonl"
    with path.open("wb") as file:
        file.write(json.dumps(ROW).encode() + b"\n" + b'{"question": "')
        for _ in range(GIGABYTE // 10**7):
            file.write(b"x" * 10**7)
    with memory_of(f"{home}/work/") as memory:
        ended = dataset_from(lab, home, str(path))
    path.unlink()
    lost = refused(ended, 11, 120) + ([f"{memory[0] >> 20} MiB"] if memory[0] > 2 << 30 else [])
    return result(
        lost, ended, "the file and the line are named; the line was never held in memory", memory_mib=memory[0] >> 20
    )


# Rewards -------------------------------------------------------------------------------------------------------------


def reward_module(text: str | None, *, code: int = 10, within_s: float = 120) -> Callable[[Lab, Path], dict[str, Any]]:
    """`text` is the module; None for a module that does not exist."""

    def carry_out(lab: Lab, home: Path) -> dict[str, Any]:
        folder = home / "code"
        folder.mkdir()
        if text is not None:
            (folder / "hostile_reward.py").write_text(text)
        env = {"PYTHONPATH": os.pathsep.join((lab.env()["PYTHONPATH"], str(folder)))}
        ended = lab.run(home, sets=['grpo.rewards.functions=[{"path": "hostile_reward:pay"}]'], env=env, timeout=300)
        lost = refused(ended, code, within_s) + losses(home, "preflight")
        left = [process.pid for process in below(home)]
        return result(
            lost + [f"process {pid} is left" for pid in left],
            ended,
            "refused by the preflight, before anything trained",
        )

    return carry_out


# Models --------------------------------------------------------------------------------------------------------------


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


# Secrets -------------------------------------------------------------------------------------------------------------

CANARIES = {
    "HF_TOKEN": "hf_CANARYhuggingface",
    "AWS_SECRET_ACCESS_KEY": "CANARYaws/secret+key",
    "SWANLAB_API_KEY": "CANARYswanlab",
    "GITHUB_PAT": "ghp_CANARYgithub",
    "SMTP_PASS": "CANARYmail",
    "DATABASE_URL": "postgresql://grpo:CANARYdatabase@db/grpo",
    "PREFECT_SERVER_API_AUTH_STRING": "admin:CANARYprefect",
    "SLACK_WEBHOOK_URL": "https://hooks.invalid/services/CANARYslack",
}
LEAKY = """
import os

def pay(prompts, completions, **kwargs):
    print("all of it:", {name: value for name, value in os.environ.items() if "CANARY" in value})
    if kwargs.get("trainer_state") is not None:
        raise RuntimeError("cannot log in with " + " ".join(v for v in os.environ.values() if "CANARY" in v))
    return [float(text.count("7")) for text in map(str, completions)]
"""


def secrets_everywhere(lab: Lab, home: Path) -> dict[str, Any]:
    """A reward that prints every secret and then raises with all of them; afterwards everything written is searched."""
    folder = home / "code"
    folder.mkdir()
    (folder / "leaky.py").write_text(LEAKY)
    env = {**CANARIES, "PYTHONPATH": os.pathsep.join((lab.env()["PYTHONPATH"], str(folder)))}
    env.pop("PREFECT_SERVER_API_AUTH_STRING")
    sets = ['grpo.rewards.functions=[{"path": "leaky:pay"}]', "run.tracking=offline"]
    seen: set[str] = set()
    stop = threading.Event()

    def watch() -> None:
        while not stop.wait(0.2):
            for process in psutil.process_iter():
                try:
                    line = " ".join(process.cmdline())
                except psutil.Error:
                    continue
                if "CANARY" in line:
                    seen.add(short(line)[:200])

    thread = threading.Thread(target=watch)
    thread.start()
    try:
        ended = lab.run(home, "--start-from", "preflight", sets=sets, env=env, timeout=500)
    finally:
        stop.set()
        thread.join()
    time.sleep(3)
    if "No module" in ended.text or "no module named" in ended.text:
        raise RuntimeError("the reward was never called: nothing was tried")
    lost = [f"on a command line: {line}" for line in sorted(seen)]
    lost += ["on the terminal"] if "CANARY" in ended.text else []
    places = [home, lab.folder / "prefect", lab.folder / "server.log", Path(str(lab.folder / "worker.log"))]
    lost += [f"in {short(str(path))}" for place in places for path in files_with_canary(place) if path.suffix != ".py"]
    return result(
        lost,
        ended,
        "masked wherever a stage's output is kept or shown",
        exit_code=ended.code,
        searched=[str(p.name) for p in places],
    )


def files_with_canary(place: Path) -> list[Path]:
    if not place.exists():
        return []
    found = subprocess.run(["grep", "-rlaE", "CANARY[a-z]", str(place)], capture_output=True, text=True, check=False)
    return [Path(line) for line in found.stdout.splitlines()]


def secret_in_a_setting(lab: Lab, home: Path) -> dict[str, Any]:
    source = json.dumps(
        [{"kind": "file", "url": "https://me:CANARYpassword@host.invalid/rows.jsonl?token=CANARYtoken"}]
    )
    ended = lab.run(home, sets=[f"data.train={source}"])
    lost = refused(ended, 10) + (["on the terminal"] if "CANARY" in ended.text else [])
    return result(lost + [short(str(path)) for path in files_with_canary(home)], ended)


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
