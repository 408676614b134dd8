"""Problems made here, each with its gold answer and a worked trace.

Item i depends only on (seed, problem, level, i): every item has a random generator of its own, seeded by these four,
so that neighbouring seeds or indices share nothing. Wording and trace style change the text, never the numbers (in word
problems the plain style keeps to one story of each length, which does choose other numbers).
"""

from __future__ import annotations

import random
from functools import lru_cache

from pipeline_config.sources import ArithmeticSource, LegsSource, SumSource, WordSource
from tasks.dataset.problem import Problem
from tasks.dataset.templates import ANIMALS, NAMES, STORIES, THINGS, Story

GeneratorSource = SumSource | ArithmeticSource | WordSource | LegsSource
Expression = list[int | str]

_TEXT = frozenset({"share", "kind", "style", "trace"})
_PLACES = ("Ones", "Tens", "Hundreds", "Thousands", "Ten thousands", "Hundred thousands", "Millions", "Ten millions")
_ASK = (
    "What is {e}?",
    "Calculate {e}.",
    "Work out {e}.",
    "How much is {e}?",
    "Find the value of {e}.",
    "{e} = ?",
    "Compute {e}.",
)
_ASK_SUM = (*_ASK, "Add {l}.", "Find the sum of {l}.", "What do you get when you add {l}?")
_ASK_LEGS = (
    "How many legs in total: {l}?",
    "A meadow is home to {l}. How many legs is that altogether?",
    "Count the legs of {l}.",
    "A painter draws {l}. How many legs must be drawn?",
)


@lru_cache(maxsize=256)
def level_of(source: GeneratorSource) -> str:
    """The settings that decide the numbers, as text: `max_operand=99,max_terms=2,...`."""
    settings = source.model_dump(mode="json", exclude=set(_TEXT) | {"problem"})
    return ",".join(f"{key}={_plain(settings[key])}" for key in sorted(settings))


def generate(source: GeneratorSource, seed: int, index: int) -> Problem:
    """Item `index` of a generated source."""
    level = level_of(source)
    rng = random.Random(f"{seed}/{source.problem}/{level}/{index}")
    match source:
        case SumSource():
            question, gold, working = _sum(source, rng)
        case ArithmeticSource():
            question, gold, working = _arithmetic(source, rng)
        case WordSource():
            question, gold, working = _word(source, rng)
        case LegsSource():
            question, gold, working = _legs(source, rng)
    return Problem(question, str(gold), working, f"generated/{source.problem}", level, f"item {index}")


def _plain(value: object) -> str:
    return "".join(str(item) for item in value) if isinstance(value, list) else str(value)


def _wording(source: GeneratorSource, rng: random.Random, wordings: tuple[str, ...]) -> str:
    choice = rng.choice(wordings)
    return wordings[0] if source.style == "plain" else choice


def listed(items: list[str]) -> str:
    """`a`, `a and b`, `a, b and c`."""
    return items[0] if len(items) == 1 else f"{', '.join(items[:-1])} and {items[-1]}"


# Sums


def _sum(source: SumSource, rng: random.Random) -> tuple[str, int, str]:
    count = rng.randint(source.min_terms, source.max_terms)
    terms = [rng.randint(source.min_operand, source.max_operand) for _ in range(count)]
    wording = _wording(source, rng, _ASK_SUM)
    question = wording.format(e=" + ".join(map(str, terms)), l=listed([str(term) for term in terms]))
    working = {"short": sum_short(terms), "steps": sum_steps(terms), "none": ""}[source.trace]
    return question, sum(terms), working


def columns(terms: list[int]) -> list[tuple[list[int], int]]:
    """Column addition from the right: for every column, what is added (digits, then a carry that is not 0) and the total.

    27 + 35 gives [([7, 5], 12), ([2, 3, 1], 6)]. The result reads: last total, then the last digit of each one before.
    """
    steps: list[tuple[list[int], int]] = []
    carry, place = 0, 0
    width = max(len(str(term)) for term in terms)
    while place < width:
        parts = [int(str(term)[-1 - place]) for term in terms if len(str(term)) > place]
        if carry:
            parts.append(carry)
        steps.append((parts, sum(parts)))
        carry, place = sum(parts) // 10, place + 1
    return steps


def sum_short(terms: list[int]) -> str:
    """`27+35: 7+5=12, 2+3+1=6, 62`; a column with nothing to add is left out."""
    steps = [f"{'+'.join(map(str, parts))}={total}" for parts, total in columns(terms) if len(parts) > 1]
    return f"{'+'.join(map(str, terms))}: {', '.join([*steps, str(sum(terms))])}"


def sum_steps(terms: list[int]) -> str:
    """One sentence a column: `Ones: 7 + 5 = 12, write 2, carry 1.`, then the sum."""
    lines = []
    worked = columns(terms)
    for place, (parts, total) in enumerate(worked):
        name = _PLACES[place] if place < len(_PLACES) else f"Place {place + 1}"
        added = f"{' + '.join(map(str, parts))} = {total}" if len(parts) > 1 else str(total)
        more = place + 1 < len(worked) and total > 9
        lines.append(f"{name}: {added}" + (f", write {total % 10}, carry {total // 10}." if more else "."))
    return "\n".join([*lines, f"The sum is {sum(terms)}."])


# Mixed arithmetic


def _arithmetic(source: ArithmeticSource, rng: random.Random) -> tuple[str, int, str]:
    tokens = _expression(source, rng)
    wording = _wording(source, rng, _ASK)
    question = wording.format(e=shown(tokens))
    working, value = reduced(tokens, source.trace)
    return question, value, working


def _operand(source: ArithmeticSource, rng: random.Random, low: int = 0) -> int:
    value = rng.randint(low, source.max_operand)
    return -value if source.negative and rng.random() < 0.4 else value


def _expression(source: ArithmeticSource, rng: random.Random) -> Expression:
    """Numbers and operations in turn. The value of the open product is tracked, so that each division can be exact."""
    operations = [
        rng.choice(source.operations) for _ in range(rng.randint(source.min_operations, source.max_operations))
    ]
    product = _operand(source, rng)
    tokens: Expression = [product]
    single = True  # whether the open product is still one number
    for operation in operations:
        if operation == "/":
            if single:  # choose the number as a multiple of the divisor
                divisor = rng.randint(2, max(2, int(source.max_operand**0.5)))
                product = divisor * rng.randint(1, source.max_operand // divisor) * (-1 if product < 0 else 1)
                tokens[-1] = product
            else:
                divisor = rng.choice([d for d in range(2, min(source.max_operand, 100) + 1) if product % d == 0] or [1])
            if source.negative and rng.random() < 0.2:
                divisor = -divisor
            product //= divisor
            tokens += [operation, divisor]
        else:
            value = _operand(source, rng, low=2 if operation == "*" else 0)
            product = product * value if operation == "*" else value
            tokens += [operation, value]
        single = operation in ("+", "-")
    return tokens


def shown(tokens: Expression, space: str = " ") -> str:
    """The expression as text; a negative number after an operation is put in parentheses."""
    return space.join(
        f"({token})" if i and isinstance(token, int) and token < 0 else str(token) for i, token in enumerate(tokens)
    )


def reduced(tokens: Expression, trace: str = "short") -> tuple[str, int]:
    """Work an expression out one operation at a time, products and quotients first: the trace and the value.

    12 - 3 * 4 gives `12-3*4: 3*4=12, 12-12=0, 0` (short) or one line per step and the rest of the expression (steps).
    """
    rest = list(tokens)
    short, lines = [], []
    while len(rest) > 1:
        at = next((i for i, token in enumerate(rest) if token in ("*", "/")), 1)
        left, operation, right = rest[at - 1 : at + 2]
        value = apply(int(left), str(operation), int(right))
        short.append(f"{shown([left, operation, right], '')}={value}")
        lines.append(f"{shown([left, operation, right])} = {value}")
        rest[at - 1 : at + 2] = [value]
        if len(rest) > 1:
            lines[-1] += f", so we have {shown(rest)}."
        else:
            lines[-1] += "."
    value = int(rest[0])
    if trace == "none":
        return "", value
    if trace == "short":
        return f"{shown(tokens, '')}: {', '.join([*short, str(value)])}", value
    return "\n".join(lines), value


def apply(left: int, operation: str, right: int) -> int:
    """One exact operation; a division with a remainder raises ValueError."""
    match operation:
        case "+":
            return left + right
        case "-":
            return left - right
        case "*":
            return left * right
    if left % right:
        raise ValueError(f"{left} / {right} is not a whole number")
    return left // right


# Word problems


def _word(source: WordSource, rng: random.Random) -> tuple[str, int, str]:
    fitting = [story for story in STORIES if source.min_steps <= len(story.steps) <= source.max_steps]
    # `plain` keeps to the first story of every length, so that there is one wording for each.
    first = {len(story.steps): story for story in reversed(fitting)}
    story = rng.choice(fitting)
    if source.style == "plain":
        story = first[len(story.steps)]
    numbers = story_numbers(story, source.max_operand, rng)
    name, other = rng.sample(NAMES, 2)
    question = story.text.format(name=name, other=other, things=rng.choice(THINGS), **numbers)
    working, value = story_working(story, numbers, source.trace)
    return question, value, working


def story_numbers(story: Story, limit: int, rng: random.Random) -> dict[str, int]:
    """Numbers for a story: nothing negative on the way, every division exact, none above the limit."""
    numbers: dict[str, int] = {}
    value = 0
    for i, (left, operation, right) in enumerate(story.steps):
        if i == 0 and operation == "/":
            divisor = rng.randint(2, max(2, min(10, limit // 2)))
            numbers[left] = divisor * rng.randint(1, limit // divisor)
            numbers[right] = divisor
        elif i == 0:
            numbers[left] = rng.randint(2, limit)
            numbers[right] = rng.randint(1 if operation == "-" else 2, numbers[left] if operation == "-" else limit)
        else:
            numbers[right] = (
                rng.randint(0 if value == 0 else 1, min(limit, value)) if operation == "-" else rng.randint(2, limit)
            )
        value = apply(numbers[left] if i == 0 else value, operation, numbers[right])
    return numbers


def story_working(story: Story, numbers: dict[str, int], trace: str) -> tuple[str, int]:
    """The trace and the answer of a story whose numbers are known."""
    value = 0
    short, lines = [], []
    for i, (left, operation, right) in enumerate(story.steps):
        start = numbers[left] if i == 0 else value
        value = apply(start, operation, numbers[right])
        short.append(f"{start}{operation}{numbers[right]}={value}")
        lines.append(f"{story.says[i]}: {start} {operation} {numbers[right]} = {value}.")
    if trace == "none":
        return "", value
    return (", ".join([*short, str(value)]) if trace == "short" else "\n".join(lines)), value


# Legs


def _legs(source: LegsSource, rng: random.Random) -> tuple[str, int, str]:
    kinds = rng.sample(ANIMALS, rng.randint(source.min_kinds, source.max_kinds))
    counts = [rng.randint(1, source.max_count) for _ in kinds]
    herd = [(count, *kind) for count, kind in zip(counts, kinds, strict=True)]
    wording = _wording(source, rng, _ASK_LEGS)
    names = [f"{count} {one if count == 1 else many}" for count, one, many, _ in herd]
    return wording.format(l=listed(names)), *legs_working(herd, source.trace)


def legs_working(herd: list[tuple[int, str, str, int]], trace: str) -> tuple[int, str]:
    """Answer and trace for (count, singular, plural, legs) of every kind.

    3 cows and 2 ducks give `3*4=12, 2*2=4, 12+4=16, 16` (short) or a sentence for each kind and one for the sum (steps).
    """
    products = [count * legs for count, _, _, legs in herd]
    total = sum(products)
    if trace == "none":
        return total, ""
    if trace == "short":
        parts = [f"{count}*{legs}={count * legs}" for count, _, _, legs in herd]
        if len(products) > 1:
            parts.append(f"{'+'.join(map(str, products))}={total}")
        return total, ", ".join([*parts, str(total)])
    lines = [
        f"{_article(one)} {one} has {legs} legs: {count} * {legs} = {count * legs}." for count, one, _, legs in herd
    ]
    if len(products) > 1:
        lines.append(f"In total: {' + '.join(map(str, products))} = {total}.")
    return total, "\n".join(lines)


def _article(noun: str) -> str:
    return "An" if noun[0] in "aeiou" else "A"
