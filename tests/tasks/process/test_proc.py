"""Which process is which, and who is asked first to end."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from dataclasses import replace

import pytest

from tasks.process import proc


def test_the_same_process_under_another_parent() -> None:
    one = proc.Proc(pid=7, ppid=5, group=5, session=5, start=1000)
    assert one == replace(one, ppid=1) and hash(one) == hash(replace(one, ppid=1, group=7, session=7))
    assert one != replace(one, start=1001) and one != replace(one, pid=8)


def test_a_stage_that_changes_its_parent_meanwhile_still_gets_its_grace(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its supervisor dies between two looks: it is then a child of init, and the same stage."""
    saves = "import signal, sys, time; signal.signal(15, lambda *_: (time.sleep(0.3), sys.exit())); print(flush=True); time.sleep(60)"
    stage = subprocess.Popen([sys.executable, "-S", "-c", saves], stdout=subprocess.PIPE)
    helper = subprocess.Popen([sys.executable, "-S", "-c", "import time; time.sleep(60)"])
    sent: list[tuple[str, bool]] = []
    really = os.kill

    def kill(pid: int, signum: int) -> None:
        sent.append(("stage" if pid == stage.pid else "helper", stage.poll() is None))
        really(pid, signum)

    def find() -> list[proc.Proc]:
        found = [proc.read_proc(process.pid) for process in (stage, helper)]
        return [replace(one, ppid=1) for one in found if one is not None]

    monkeypatch.setattr(os, "kill", kill)
    with stage, helper:
        assert stage.stdout is not None and stage.stdout.readline()
        left = proc.wind_down(stage.pid, find, grace_s=20.0, tick=lambda _: time.sleep(0.01))
        monkeypatch.undo()
        stage.kill()
        helper.kill()
    assert not left
    assert sent == [("stage", True), ("helper", False)], "who was sent SIGTERM, and whether the stage lived then"
