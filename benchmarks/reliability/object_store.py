"""3. An object store that fails in many ways: moto behind a proxy that misbehaves."""

from __future__ import annotations

import logging
import threading
import time
import uuid
from collections.abc import Callable
from pathlib import Path
from typing import Any

from artifacts.store import open_store
from benchmarks.reliability.lab import RESULT_FILES, Lab, during, error_line, latest, said
from benchmarks.reliability.prefect_server import HTTP
from benchmarks.reliability.proxy import Proxy
from tasks.chain import NAMES

KEYS = {"AWS_ACCESS_KEY_ID": "AKIARELIABILITY", "AWS_SECRET_ACCESS_KEY": "not-a-real-secret", "AWS_REGION": "us-east-1"}


def on_s3(mode: str, seconds: float, *, download: bool = False) -> Callable[[Lab, Path, str], dict[str, Any]]:
    """The store is a bucket behind a proxy, which misbehaves for `seconds` from the end of the stage's process (or, with
    `download`, the start of the run) on."""

    def carry_out(lab: Lab, home: Path, stage: str) -> dict[str, Any]:
        from moto.server import ThreadedMotoServer

        logging.getLogger("werkzeug").setLevel(logging.ERROR)
        server = ThreadedMotoServer(ip_address="127.0.0.1", port=0, verbose=False)
        server.start()
        proxy = Proxy(("127.0.0.1", server.get_host_and_port()[1]))
        try:
            return through(lab, home, stage, proxy, f"http://127.0.0.1:{server.get_host_and_port()[1]}")
        finally:
            proxy.close()
            server.stop()

    def through(lab: Lab, home: Path, stage: str, proxy: Proxy, direct: str) -> dict[str, Any]:
        url = bucket_with(lab, stage, direct)
        env = {**KEYS, "AWS_ENDPOINT_URL": proxy.url, "XDG_CACHE_HOME": str(home / "cache")}
        sets = [f"run.store={url}", "run.retry_delay_s=10"]
        began = [0.0]

        def break_it() -> None:
            began[0] = time.monotonic()
            proxy.set(mode)
            later(seconds, lambda: proxy.set("pass"))

        if download:
            # The inputs of the stage are fetched when it begins; everything before is only looked at.
            proxy.mode = mode
            later(seconds, lambda: proxy.set("pass"))
            first = lab.run(home, "--stop-after", stage, sets=sets, env=env, timeout=900)
        else:
            first = during(lab, home, stage, break_it, sets, env, "result.json")
        hits = proxy.hits
        if not hits:
            raise RuntimeError("the fault met no connection: nothing was tried")
        proxy.set("pass")
        again = lab.run(home, "--stop-after", stage, sets=sets, env=env) if first.code else None
        opened = open_store(
            url,
            storage_options={
                "endpoint_url": direct,
                "key": KEYS["AWS_ACCESS_KEY_ID"],
                "secret": KEYS["AWS_SECRET_ACCESS_KEY"],
            },
            cache=home / "check",
        )
        stored = {manifest.stage: manifest for manifest in opened.list()}
        lost = [f"{name} is gone" for name in NAMES[: NAMES.index(stage) + 1] if name not in stored]
        lost += [f"{name}: {text}" for name, one in stored.items() for text in opened.verify(one, deep=True)]
        ended = again or first
        lost += [f"exit code {ended.code}: {error_line(ended)}"] if ended.code else []
        base = latest(lab.base, stage)
        theirs = {entry.path: entry.sha256 for entry in base.files} if base else {}
        mine = stored[stage].files if stage in stored else ()
        differ = [e.path for e in mine if e.path.endswith(RESULT_FILES) and theirs.get(e.path) != e.sha256]
        at, words = said(first)
        how = (
            "the run rode it out"
            if first.code == 0
            else f"exit code {first.code}; run again: stored (attempt {stored[stage].attempt if stage in stored else '-'})"
        )
        return {
            "lost": lost,
            "noticed_s": at,
            "noticed": error_line(first) or words,
            "went_on": how,
            "faulty_connections": hits,
            "first_exit_code": first.code,
            "differ": differ,
            "seconds": round(first.seconds, 1),
        }

    return carry_out


def later(seconds: float, act: Callable[[], None]) -> None:
    timer = threading.Timer(seconds, act)
    timer.daemon = True
    timer.start()


def bucket_with(lab: Lab, stage: str, endpoint: str) -> str:
    """A new bucket with what the stages before `stage` made."""
    import s3fs

    fs = s3fs.S3FileSystem(
        key=KEYS["AWS_ACCESS_KEY_ID"],
        secret=KEYS["AWS_SECRET_ACCESS_KEY"],
        endpoint_url=endpoint,
        client_kwargs={"region_name": "us-east-1"},
        skip_instance_cache=True,
    )
    bucket = f"reliability-{uuid.uuid4().hex[:12]}"
    HTTP.put(f"{endpoint}/{bucket}").raise_for_status()
    for name in NAMES[: NAMES.index(stage)]:
        for path in (lab.base / "store" / "artifacts" / name).rglob("*"):
            if path.is_file() and path.name != "verified.json":
                fs.put_file(str(path), f"{bucket}/store/{path.relative_to(lab.base / 'store').as_posix()}")
    return f"s3://{bucket}/store"
