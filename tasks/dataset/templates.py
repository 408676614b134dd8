"""Words for the generated problems: stories, names, things and animals."""

from __future__ import annotations

from dataclasses import dataclass

Step = tuple[str, str, str]


@dataclass(frozen=True, slots=True)
class Story:
    """A word problem. Every step is (left, operation, right); `_` on the left is the result of the step before.

    `says[i]` introduces step i in a worked trace.
    """

    text: str
    steps: tuple[Step, ...]
    says: tuple[str, ...]


STORIES = (
    Story(
        "{name} has {a} {things} and gets {b} more. How many {things} does {name} have now?",
        (("a", "+", "b"),),
        ("Add what comes in",),
    ),
    Story(
        "{name} has {a} {things} and gives {b} of them to {other}. How many {things} are left?",
        (("a", "-", "b"),),
        ("Take away what is given",),
    ),
    Story(
        "There are {a} boxes with {b} {things} in each. How many {things} are there?",
        (("a", "*", "b"),),
        ("Boxes times content",),
    ),
    Story(
        "{name} shares {a} {things} equally among {b} friends. How many {things} does each friend get?",
        (("a", "/", "b"),),
        ("Divide by the friends",),
    ),
    Story(
        "A book has {a} pages. {name} has read {b} of them. How many pages remain?",
        (("a", "-", "b"),),
        ("Pages that remain",),
    ),
    Story(
        "{name} has {a} {things}, buys {b} more and then loses {c}. How many {things} does {name} have in the end?",
        (("a", "+", "b"), ("_", "-", "c")),
        ("After buying", "After losing"),
    ),
    Story(
        "A shop sells {things} in packs of {a}. {name} buys {b} packs and already had {c} {things}. "
        "How many {things} does {name} have in all?",
        (("a", "*", "b"), ("_", "+", "c")),
        ("In the packs", "With those from before"),
    ),
    Story(
        "{name} fills {a} bags with {b} {things} each and gives {c} {things} to {other}. How many {things} are left?",
        (("a", "*", "b"), ("_", "-", "c")),
        ("In the bags", "After giving some away"),
    ),
    Story(
        "{a} {things} are shared equally among {b} children. {name}, one of them, then finds {c} more. "
        "How many {things} does {name} have?",
        (("a", "/", "b"), ("_", "+", "c")),
        ("Share of each child", "With those found"),
    ),
    Story(
        "A bus starts with {a} people. At the first stop {b} get on and at the second stop {c} get off. "
        "How many people are on the bus?",
        (("a", "+", "b"), ("_", "-", "c")),
        ("After the first stop", "After the second stop"),
    ),
    Story(
        "{name} saves {a} coins a week for {b} weeks, spends {c} coins and gets {d} coins from {other}. "
        "How many coins does {name} have?",
        (("a", "*", "b"), ("_", "-", "c"), ("_", "+", "d")),
        ("Saved", "After spending", "After the gift"),
    ),
    Story(
        "A library has {a} books on one shelf and {b} on another. {c} are lent out and {d} new ones arrive. "
        "How many books are on the shelves?",
        (("a", "+", "b"), ("_", "-", "c"), ("_", "+", "d")),
        ("On both shelves", "After lending", "After the new ones"),
    ),
    Story(
        "{name} bakes {a} trays of {b} cakes, adds {c} cakes from the day before and sells {d}. How many cakes are left?",
        (("a", "*", "b"), ("_", "+", "c"), ("_", "-", "d")),
        ("Baked", "With those from before", "After selling"),
    ),
)

NAMES = (
    "Ada",
    "Ben",
    "Carla",
    "Dan",
    "Emma",
    "Farid",
    "Grace",
    "Hugo",
    "Ines",
    "Jun",
    "Kofi",
    "Lena",
    "Mei",
    "Nora",
    "Omar",
    "Priya",
)

THINGS = ("apples", "marbles", "pencils", "stickers", "shells", "cards", "buttons", "stones", "nuts", "stamps")

ANIMALS = (
    ("cow", "cows", 4),
    ("duck", "ducks", 2),
    ("dog", "dogs", 4),
    ("hen", "hens", 2),
    ("spider", "spiders", 8),
    ("ant", "ants", 6),
    ("sheep", "sheep", 4),
    ("bee", "bees", 6),
    ("horse", "horses", 4),
    ("goose", "geese", 2),
    ("crab", "crabs", 10),
    ("cat", "cats", 4),
    ("beetle", "beetles", 6),
    ("owl", "owls", 2),
    ("scorpion", "scorpions", 8),
    ("goat", "goats", 4),
)
"""Singular, plural, legs (crabs with their claws, as biology counts them)."""
