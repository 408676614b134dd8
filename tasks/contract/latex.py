"""Symbolic comparison of LaTeX answers in a guarded process. (Placeholder until the worker is in.)"""

from __future__ import annotations


def may_compare(answer: str, gold: str) -> bool:
    """Whether a symbolic comparison may be tried."""
    return False


def same_latex(answer: str, gold: str, timeout_s: float = 2.0) -> bool:
    """Whether two LaTeX texts are the same value."""
    return False
