"""The guarded symbolic comparison: verdicts, and a worker that can hang, die, be shared by threads and be forked."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest

from pipeline_config.contract import ContractConfig
from tasks.contract import latex
from tasks.contract.grading import Kind, grade
from tasks.contract.symbolic import latex_source

ROOT = Path(__file__).resolve().parents[3]
CONTRACT = ContractConfig()
S, E, A, Z = CONTRACT.tags


def kind(answer: str, gold: str) -> Kind:
    return grade(f"w{E}{A}{answer}{Z}", gold, CONTRACT).kind


@pytest.mark.parametrize(
    ("answer", "gold"),
    [
        ("(x+1)^2", "x^2+2x+1"),
        ("x^2+2x+1", "(x+1)^2"),
        ("$x^2 + 2x + 1$", "(x+1)^2"),
        ("y = 2x+1", "2x+1"),
        ("2x + 1", "y=2x+1"),
        ("\\frac{6}{\\sqrt{3}}", "2\\sqrt{3}"),
        ("\\frac{1}{\\sqrt{2}}", "\\frac{\\sqrt{2}}{2}"),
        ("1 + √2", "\\sqrt{2}+1"),
        ("1 + sqrt(2)", "\\sqrt{2}+1"),
        ("1+\\sqrt{3}\\text{ cm}", "1+\\sqrt{3}"),
        ("1024", "2^{10}"),
        ("10", "\\binom{5}{2}"),
        ("4i+3", "3+4i"),
        ("5 < x", "x>5"),
        ("(1,2)\\cup(3,4)", "(1,2) \\cup (3,4)"),
        ("\\begin{pmatrix} 1 & 2 \\\\ 3 & 4 \\end{pmatrix}", "\\begin{pmatrix}1&2\\\\3&4\\end{pmatrix}"),
        ("The answer is \\boxed{x^2}", "x^2"),
        ("x^12", "x^{12}"),
        ("x**2", "x^2"),
        ("pi*r^2", "\\pi r^2"),
        ("ln 2", "\\ln 2"),
        ("x^(n+1)", "x^{n+1}"),
        ("∅", "\\emptyset"),
        ("\\{1, \\sqrt{2}\\}", "\\{\\sqrt2,1\\}"),
        ("f(x) = x^2+1", "x^2+1"),
        ("f^{-1}(x) = x^2+1", "x^2+1"),
        ("f'(x) = x^2+1", "x^2+1"),
        ("\\frac{dy}{dx} = x^2+1", "x^2+1"),
        ("\\theta = 1+\\sqrt{3}", "1+\\sqrt{3}"),
        ("\\overline{AB} = 1+\\sqrt{3}", "1+\\sqrt{3}"),
        ("(x+1)^2 = x^2+2x+1", "x^2+2x+1"),
        ("\\sqrt{12}+1 = 1+2\\sqrt{3}", "1+2\\sqrt{3}"),
        ("2x-y+1 = 0", "y=2x+1"),
        ("1+\\sqrt{3} square units", "1+\\sqrt{3}"),
        ("1+\\sqrt{3} meters per second", "1+\\sqrt{3}"),
        ("1+\\sqrt{3}\\,cm", "1+\\sqrt{3}\\text{ centimeters}"),
        ("2^{100}", "2^{100} apples"),
        ("2^{100}cm", "2^{100}"),
        ("h\\pi r^2", "\\pi r^2 h"),
        ("\\frac{1}{2}gt^2", "\\frac12 g t^2"),
        ("\\log_2 5", "\\log_{2}5"),
        ("\\log_2 3", "\\log_2(3)"),
        ("2x \\cdot y", "2xy"),
        ("2yx", "2xy"),
        ("2ab", "2ba"),
        ("yx", "xy"),
        ("120", "5!"),
        ("5! = 120", "5!"),
        ("1+\\sqrt{2} and 1-\\sqrt{2}", "1+\\sqrt{2}, 1-\\sqrt{2}"),
        ("1-\\sqrt{2} \\text{ and } 1+\\sqrt{2}", "1+\\sqrt{2}, 1-\\sqrt{2}"),
    ],
)
def test_equal_expressions(answer: str, gold: str) -> None:
    assert kind(answer, gold) is Kind.RIGHT


@pytest.mark.parametrize(
    "left",
    ["2x", "-x", "(-x)", "x^2", "3", "(3)", "1/x", "\\frac{1}{x}", "\\sqrt{x}", "x+1", "xy", "x y", "\\theta x", "|x|", "x!", "2^x",
     "\\sin x", "sin x", "\\log x", "1+\\sqrt{2}", "1+\\sqrt{3}"],
)  # fmt: skip
@pytest.mark.parametrize("gold", ["1+\\sqrt{3}", "x = 1+\\sqrt{3}", "y^2+1"])
def test_equations_that_are_not_solved(left: str, gold: str) -> None:
    value = gold.removeprefix("x = ")
    assert kind(f"x = {value}", gold) is Kind.RIGHT
    assert kind(f"{left} = {value}", gold) is not Kind.RIGHT
    assert kind(f"2x \\equiv {value}", gold) is not Kind.RIGHT


@pytest.mark.parametrize("gold", ["1+\\sqrt{3}", "x+1", "2^{100}"])
@pytest.mark.parametrize(
    "scale",
    [" million", " dozen", " hundred", " percent", " score", " reciprocal", " inverse", " xyz", " theta", " sin", " pairs", " am",
     "\\text{ million}", "\\text{ dozen}", "\\text{ k}", "\\text{M}", "\\text{e3}", "\\text{ pm}", "\\text{万}", "万", "的两倍", "'",
     "t", "c", "ab"],
)  # fmt: skip
def test_scales_and_letters_are_no_units(scale: str, gold: str) -> None:
    assert kind(gold + scale, gold) is not Kind.RIGHT
    assert kind(f"({gold}){scale}", gold) is not Kind.RIGHT


@pytest.mark.parametrize(
    ("answer", "gold"),
    [
        ("1+\\sqrt{3} cm", "1+\\sqrt{3} km"),
        ("1+\\sqrt{3}\\text{ cm}^2", "1+\\sqrt{3}\\text{ cm}"),
        ("x^2 = \\sqrt{3}", "\\sqrt{3}"),
        ("2x = \\sqrt{3}", "\\sqrt{3}"),
        ("1/y = x^2+1", "x^2+1"),
        ("x+2 ms", "x+2"),
        ("\\pi r^2", "\\pi r^2 h"),
        ("2^{100}", "2^{100}t"),
        ("1/2", "\\frac12 g t^2"),
        ("2xz", "2xy"),
        ("2", "2ab"),
        ("ba", "ab"),
        ("BA", "AB"),
        ("2BA", "2AB"),
        ("8mp", "8pm"),
        ("5", "5!"),
        ("119+1", "5!"),
        ("\\log_5 2", "\\log_2 5"),
        ("\\log_2 5 7", "\\log_2 5"),
        ("\\log_2 5 or 3", "\\log_2 5"),
        ("1+\\sqrt{2} and 1", "1+\\sqrt{2}, 1-\\sqrt{2}"),
        ("1+\\sqrt{2} and 1-\\sqrt{2}", "1+\\sqrt{2}"),
        ("1+\\sqrt{2} and not 1-\\sqrt{2}", "1+\\sqrt{2}, 1-\\sqrt{2}"),
        ("1-\\sqrt{2} and 1+\\sqrt{2}", "(1+\\sqrt{2}, 1-\\sqrt{2})"),
    ],
)
def test_another_unit_product_order_or_list(answer: str, gold: str) -> None:
    assert kind(answer, gold) is not Kind.RIGHT


@pytest.mark.parametrize(
    ("answer", "gold", "expected"),
    [
        ("3-4i", "3+4i", Kind.WRONG),
        ("x < 5", "x>5", Kind.WRONG),
        ("1023", "2^{10}", Kind.WRONG),
        ("11", "\\binom{5}{2}", Kind.WRONG),
        ("2.414214", "1+\\sqrt{2}", Kind.WRONG),
        ("2.414213562373095048801688724209698", "1+\\sqrt{2}", Kind.WRONG),
        ("0.333333x", "\\frac{1}{3}x", Kind.WRONG),
        ("x^2 or x^3", "x^2", Kind.HEDGED),
        ("x^2, x^3", "x^2", Kind.HEDGED),
        ("not x^2", "x^2", Kind.HEDGED),
        ("\\sqrt{3}+\\sqrt{3}", "2\\sqrt{3}", Kind.UNFINISHED),
        ("some square of x", "x^2", Kind.UNFINISHED),
        ("", "x^2", Kind.EMPTY),
        ("9^{9^{9^{9}}}", "x", Kind.WRONG),
        ("(10^7)!", "x", Kind.WRONG),
    ],
)
def test_other_expressions(answer: str, gold: str, expected: Kind) -> None:
    assert kind(answer, gold) is expected


def test_literal_golds_never_start_the_worker(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*args: object) -> bool:
        raise AssertionError("the symbolic comparison was asked")

    monkeypatch.setattr(latex, "same_latex", refuse)
    for answer, gold in (("3 + 5", "8"), ("\\frac{16}{2}", "8"), ("x", "1/2"), ("(1, x)", "(1,2)"), ("B", "A")):
        assert kind(answer, gold) is not Kind.RIGHT


@pytest.mark.parametrize(
    "bomb",
    ["9^{9^{9^{9}}}", "9^9^9", "9**9**9", "(10^{7})!", "10^{99999}", "((999)!)!", "\\binom{99999}{777}", "\\sum_{i=1}^{10^9} i",
     "{" * 20, "x" * 500, "1" * 100, "__import__('os')", "$x$ or $y$", ""],
)  # fmt: skip
def test_bombs_are_refused_before_the_worker(bomb: str) -> None:
    assert not latex.may_compare(bomb, "x")
    assert not latex.may_compare("x", bomb)
    assert not latex.same_latex(bomb, "x")


def test_powers_side_by_side_are_no_tower() -> None:
    assert latex.may_compare("x^2+y^2", "\\sin^2 x+\\cos^{2} x")


def test_a_hang_is_killed_and_the_next_call_works(monkeypatch: pytest.MonkeyPatch) -> None:
    assert latex.same_latex("x+2", "2+x")
    with monkeypatch.context() as patch:
        patch.setattr(latex, "may_compare", lambda answer, gold: True)
        start = time.monotonic()
        assert not latex.same_latex("9^{9^{9^{9}}}", "x", 0.5)
        assert time.monotonic() - start < 10
    assert latex.same_latex("x+3", "3+x")


def test_a_dead_worker_is_replaced() -> None:
    assert latex.same_latex("x+4", "4+x")
    worker = latex._worker
    assert worker is not None
    worker.process.kill()
    worker.process.wait()
    assert latex.same_latex("x+5", "5+x")


def test_the_worker_is_reused() -> None:
    assert latex.same_latex("x+6", "6+x")
    first = latex._worker
    assert latex.same_latex("x+7", "7+x")
    assert latex._worker is first


def test_many_threads() -> None:
    verdicts: dict[int, bool] = {}

    def compare(n: int) -> None:
        verdicts[n] = latex.same_latex(f"x+{n}", f"{n}+x") and not latex.same_latex(f"x+{n}", f"{n + 1}+x")

    threads = [threading.Thread(target=compare, args=(n,)) for n in range(100, 112)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert verdicts == dict.fromkeys(range(100, 112), True)


def test_a_forked_child_uses_a_worker_of_its_own() -> None:
    assert latex.same_latex("x+8", "8+x")
    parents = latex._worker
    assert parents is not None
    child = os.fork()
    if child == 0:
        code = 1
        try:
            code = 0 if latex._worker is None and latex.same_latex("x+9", "9+x") else 1
        finally:
            latex.close()
            os._exit(code)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    assert parents.process.poll() is None
    assert latex.same_latex("x+10", "10+x")


def test_a_worker_that_cannot_start_warns_and_counts_as_wrong(monkeypatch: pytest.MonkeyPatch) -> None:
    latex.close()
    monkeypatch.setattr(latex, "_starts_failed", 0)
    with monkeypatch.context() as patch:
        patch.setattr(sys, "executable", "/bin/false")
        with pytest.warns(RuntimeWarning, match="math-verify"):
            assert not latex.same_latex("x+11", "11+x")
    assert latex.same_latex("x+12", "12+x")


def test_math_verify_stays_out_of_the_calling_process() -> None:
    script = (
        "import sys\n"
        "from pipeline_config.contract import ContractConfig\n"
        "from tasks.contract.grading import grade\n"
        "right = grade('w<end_working_out><SOLUTION>(x+1)^2</SOLUTION>', 'x^2+2x+1', ContractConfig()).right\n"
        "heavy = {'math_verify', 'sympy', 'torch', 'transformers'} & set(sys.modules)\n"
        "sys.exit(0 if right and not heavy else 1)\n"
    )
    assert subprocess.run([sys.executable, "-c", script], cwd=ROOT, timeout=120).returncode == 0


def test_the_worker_ends_with_its_parent() -> None:
    script = (
        "import os\n"
        "from tasks.contract import latex\n"
        "assert latex.same_latex('x+1', '1+x')\n"
        "print(latex._worker.process.pid, flush=True)\n"
        "os.kill(os.getpid(), 9)\n"
    )
    done = subprocess.run([sys.executable, "-c", script], cwd=ROOT, timeout=120, capture_output=True, text=True)
    pid = int(done.stdout)
    deadline = time.monotonic() + 15
    while time.monotonic() < deadline and _alive(pid):
        time.sleep(0.1)
    assert not _alive(pid)


def _alive(pid: int) -> bool:
    stat = Path(f"/proc/{pid}/stat")
    try:
        return stat.read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


@pytest.mark.parametrize(
    ("text", "source"),
    [
        ("$\\boxed{x^2}$", "x^2"),
        ("2√3", "2\\sqrt{3}"),
        ("sqrt(x+1)", "\\sqrt{x+1}"),
        ("1+\\sqrt{3}\\text{ cm}^2", "1+\\sqrt{3}"),
        ("2pi", "2\\pi"),
        ("x ≤ 5", "x \\le  5"),
    ],
)
def test_latex_source(text: str, source: str) -> None:
    assert latex_source(text) == source


@pytest.mark.parametrize(
    ("answer", "gold"),
    [
        (r"$\$18$", "18"),
        (r"$\$1{,}200$", "1200"),
        (r"\$18", r"\$18"),
        (r"$\$2.50$.", "5/2"),
        (r"8\,", "8"),
        (r"$8\;$", "8"),
    ],
)
def test_dollars_inside_mathematics_and_thin_spaces(answer: str, gold: str) -> None:
    assert kind(answer, gold) is Kind.RIGHT
    assert kind(answer.replace("8", "9").replace("2", "3"), gold) is not Kind.RIGHT
