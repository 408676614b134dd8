"""The output sink on its own: line splitting, progress bars, limits."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tasks.process import output
from tasks.process.output import CappedLog, OutputSink


class Clock:
    """Stands in for the time module."""

    now = 100.0

    def monotonic(self) -> float:
        return self.now


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    clock = Clock()
    monkeypatch.setattr(output, "time", clock)
    return clock


def test_progress_bars_are_throttled_and_the_tail_keeps_the_latest(tmp_path: Path, clock: Clock) -> None:
    lines: list[str] = []
    sink = OutputSink(tmp_path / "log", {}, lines.append)
    sink.feed(b"start\n")
    for percent in range(101):  # as tqdm writes: \r before each update, a line end after the last
        clock.now = 100.0 + percent / 10
        sink.feed(f"\r{percent}%|bar".encode())
    sink.feed(b"\nend\r\n")
    sink.close()
    # Updates come out when the next \r follows: 0 % at 0.1 s, then the first one at least 5 s later.
    assert lines == ["start", "0%|bar", "50%|bar", "end"]
    assert sink.tail == ("start", "100%|bar", "end")
    assert (tmp_path / "log").read_bytes().count(b"%|bar") == 101


def test_colours_are_removed_and_blank_lines_dropped(tmp_path: Path) -> None:
    lines: list[str] = []
    sink = OutputSink(tmp_path / "log", {}, lines.append)
    sink.feed(b"\x1b[1;32mgreen\x1b[0m \n\n  \nindented:\n    yes\n")
    sink.close()
    assert lines == ["green", "indented:", "    yes"]


def test_lines_beyond_the_rate_are_counted(tmp_path: Path, clock: Clock) -> None:
    lines: list[str] = []
    sink = OutputSink(tmp_path / "log", {}, lines.append)
    for i in range(1500):
        sink.feed(f"{i}\n".encode())
    clock.now += 1.0  # credit for 50 lines
    sink.feed(b"later\n")
    sink.close()
    assert lines[999] == "999" and lines[-1] == "later"
    assert lines[1000].startswith("[process] 500 lines are left out here")
    assert len(lines) == 1002


def test_a_line_without_end_does_not_grow_without_bound(tmp_path: Path) -> None:
    lines: list[str] = []
    sink = OutputSink(tmp_path / "log", {}, lines.append)
    for _ in range(100):
        sink.feed(b"z" * 10_000)
    sink.close()
    assert max(map(len, lines)) <= output.LINE_BYTES + 10_000
    assert sum(map(len, lines)) == 1_000_000


def test_secrets_across_pieces_are_masked(tmp_path: Path) -> None:
    sink = OutputSink(tmp_path / "log", {"WANDB_API_KEY": "0123456789"})
    for piece in (b"key=01", b"2345", b"6789 x\nnext 012345", b"6789"):
        sink.feed(piece)
    sink.close()
    assert (tmp_path / "log").read_text() == "key=*** x\nnext ***\n"


@given(st.lists(st.sampled_from([b"ab", b"\n", b"\r", b"\r\n", b"\xc3", b"\xa4", b"c"]), max_size=40))
def test_lines_do_not_depend_on_how_the_output_is_cut(
    tmp_path_factory: pytest.TempPathFactory, pieces: list[bytes]
) -> None:
    folder = tmp_path_factory.mktemp("log")
    whole, parts, bytewise = (OutputSink(folder / name, {}) for name in ("a", "b", "c"))
    data = b"".join(pieces)
    whole.feed(data)
    for piece in pieces:
        parts.feed(piece)
    for i in range(len(data)):
        bytewise.feed(data[i : i + 1])
    for sink in (whole, parts, bytewise):
        sink.close()
    assert whole.tail == parts.tail == bytewise.tail
    assert (folder / "a").read_bytes() == (folder / "b").read_bytes() == (folder / "c").read_bytes()


def test_a_full_log_keeps_its_start_and_its_end(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(output, "LOG_END_BYTES", 10)
    log = CappedLog(tmp_path / "log", cap=20)
    for i in range(10, 40):
        log.write(f"line{i}\n".encode())
    log.close()
    # 30 lines of 7 bytes = 210; 20 at the start, 190 past the cap, of which the last two pieces (14 bytes) are kept.
    assert (tmp_path / "log").read_text() == (
        "line10\nline11\nline12\n[the log is full: 176 bytes are left out here]\nline38\nline39\n"
    )


def test_a_later_attempt_appends_and_a_large_log_is_put_aside(tmp_path: Path) -> None:
    path = tmp_path / "log"
    for text in (b"first\n", b"second\n"):
        log = CappedLog(path, cap=20)
        log.write(text)
        log.close()
    assert path.read_bytes() == b"first\nsecond\n"
    log = CappedLog(path, cap=20)
    log.write(b"third\n")
    log.close()
    assert path.read_bytes() == b"third\n"
    assert (tmp_path / "log.1").read_bytes() == b"first\nsecond\n"


def test_a_full_disk_stops_the_log_only(tmp_path: Path) -> None:
    lines: list[str] = []
    sink = OutputSink(tmp_path / "log", {}, lines.append)
    sink._log._file.close()
    sink._log._file = open("/dev/full", "ab", buffering=0)  # noqa: SIM115 - closed by the sink
    sink.feed(b"one\ntwo\n")
    sink.close()
    assert lines == ["one", "two"]
