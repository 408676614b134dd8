"""Paths that lead out of the store or out of an archive."""

from __future__ import annotations

import hashlib
import json
import shutil
import zipfile
from pathlib import Path
from typing import Any

from artifacts.manifest import FileEntry, content_digest
from benchmarks.reliability.hostile.common import ROW, dataset_from, result
from benchmarks.reliability.lab import Lab, error_line, rewrite, store


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
