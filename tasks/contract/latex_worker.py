"""The process that compares LaTeX with math-verify. Run as a script by `latex.py`; talks JSON lines over stdin and stdout.

A request is `{"gold": str, "answer": str, "seconds": float}`, a reply `{"same": bool}`; the first line out is
`{"ready": true}`. Three guards hold even while a C function runs with the interpreter locked: the kernel's timer kills the
process after `seconds` of its own CPU time (so that a busy machine changes no verdict), its memory is capped, and the
parent kills it when it is late by the clock. Idle, it ends when stdin closes or its parent is gone.
"""

from __future__ import annotations

import json
import logging
import os
import resource
import select
import signal
import sys
from typing import Any

MEMORY_BYTES = 4 << 30
_PARENT_POLL_S = 1.0


def compare(gold: str, answer: str) -> bool:
    """Whether two LaTeX expressions are equal; floats are read as the exact decimals that were written."""
    from latex2sympy2_extended import NormalizationConfig
    from math_verify import LatexExtractionConfig, parse, verify

    # units=True would drop letters such as h, t, s, ab from the end: the area pi r^2 would be the volume pi r^2 h.
    plain = NormalizationConfig(basic_latex=True, units=False, malformed_operators=True, nits=True, boxed="all")
    config = [LatexExtractionConfig(normalization_config=plain)]
    parsed = []
    for text in (gold, answer):
        found = parse(f"${text}$", config, fallback_mode="no_fallback", parsing_timeout=None)
        if not found:
            return False
        parsed.append(_exact(found[0]))
    return bool(verify(parsed[0], parsed[1], numeric_precision=60, strict=True, timeout_seconds=None))


def _exact(expression: Any) -> Any:
    """An expression with every float replaced by the fraction that its digits say, so that nothing is rounded."""
    from sympy import Basic, Float, Rational

    if not isinstance(expression, Basic):
        return expression
    floats = {number: Rational(str(number)) for number in expression.atoms(Float)}
    return expression.xreplace(floats) if floats else expression


def main() -> None:
    """Serve comparisons until stdin closes or the parent is gone."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGPROF, signal.SIG_DFL)
    logging.disable(logging.CRITICAL)
    parent = os.getppid()
    _cap_memory()
    compare(r"\sqrt{2}+x", r"x+\sqrt{2}")  # import and warm up everything before the first timed request
    replies = sys.stdout
    sys.stdout = sys.stderr
    _say(replies, {"ready": True})
    pending = b""
    while True:
        readable, _, _ = select.select([0], [], [], _PARENT_POLL_S)
        if os.getppid() != parent:
            return
        if not readable:
            continue
        piece = os.read(0, 65536)
        if not piece:
            return
        pending += piece
        while b"\n" in pending:
            line, _, pending = pending.partition(b"\n")
            _say(replies, {"same": _answer(json.loads(line))})


def _answer(request: dict[str, Any]) -> bool:
    signal.setitimer(signal.ITIMER_PROF, float(request["seconds"]))
    try:
        return compare(str(request["gold"]), str(request["answer"]))
    except (Exception, RecursionError):  # noqa: BLE001 - whatever the algebra system trips over is not the gold
        return False
    finally:
        signal.setitimer(signal.ITIMER_PROF, 0)


def _say(stream: Any, message: dict[str, Any]) -> None:
    stream.write(json.dumps(message) + "\n")
    stream.flush()


def _cap_memory() -> None:
    hard = resource.getrlimit(resource.RLIMIT_AS)[1]
    limit = MEMORY_BYTES if hard == resource.RLIM_INFINITY else min(MEMORY_BYTES, hard)
    resource.setrlimit(resource.RLIMIT_AS, (limit, hard))


if __name__ == "__main__":
    main()
