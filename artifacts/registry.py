"""The registry of promoted models: one append-only log of events per model name. No database.

`registry/<name>/<number>.json`, from 000001. Every event holds the whole state after it (who is candidate, who is in
production), so the state is the newest event, and a pointer moves by the creation of one file. A file is created whole
and only if its number is free: of two that write at once one succeeds, and the other looks again.
"""

from __future__ import annotations

import getpass
import re
import secrets
import socket
from collections.abc import Callable, Iterator
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from artifacts.manifest import JsonObject, Moment, Parent
from tasks.errors import ConfigError, Retryable, StoreError

if TYPE_CHECKING:
    from artifacts.store import Store

FOLDER = "registry"
POINTERS = ("candidate", "production")
NAME = re.compile(r"[a-z0-9][a-z0-9._-]{0,63}")
ATTEMPTS = 20
KEPT_VERSIONS = 5
"""Former production versions of each model that gc keeps, newest first."""

WITHDRAWN = 200
"""Models that were rolled back and are remembered as such."""

_NUMBER = re.compile(r"(\d{6,})\.json")


class _Closed(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid", use_attribute_docstrings=True)


class Version(_Closed):
    """What a pointer points to: the artifacts of one trained and exported model."""

    export: Parent
    """GGUF files with their proof."""
    model: Parent
    """The trained, merged 16-bit weights."""
    evaluation: Parent
    """How the 16-bit model answered the frozen held-out problems."""
    run_id: str | None = None
    """The run that it came from, if known."""

    def same_model(self, other: Version | None) -> bool:
        """Whether both are the same files, however they were evaluated."""
        return other is not None and (self.export.content_digest, self.model.content_digest) == (
            other.export.content_digest,
            other.model.content_digest,
        )

    def artifacts(self) -> list[tuple[str, str]]:
        """(stage, fingerprint) of each."""
        return [(item.stage, item.fingerprint) for item in (self.export, self.model, self.evaluation)]


class State(_Closed):
    """Where the pointers of a model name are."""

    candidate: Version | None = None
    """Proposed and not (yet) promoted."""
    production: Version | None = None
    promoted_by: int | None = None
    """Number of the event by which `production` was promoted."""
    anchor: Version | None = None
    """The newest version that was shown to be better, not just not worse: a row of small losses is measured from it."""
    withdrawn: tuple[str, ...] = Field((), max_length=WITHDRAWN)
    """Content digests of models that were rolled back: no rule promotes them again."""


class Event(State):
    """One line of the history, with the state after it."""

    schema_version: Literal[1] = 1
    number: int = Field(ge=1)
    id: str = Field(default_factory=lambda: secrets.token_hex(8))
    """Tells this event from another that some other process wrote under the same number."""
    kind: Literal["proposed", "promoted", "refused", "rolled_back"]
    subject: Version
    """The version that the event is about; of a rollback, the one that left production."""
    replaced: int | None = None
    """Of a promotion: `promoted_by` before it."""
    decision: JsonObject = Field(default_factory=dict)
    """Outcome, reason, rule and evidence; of a rollback, the reason given."""
    at: Moment = Field(default_factory=lambda: datetime.now(UTC))
    by: str = Field(default_factory=lambda: _who())
    """User and host."""


def check_name(name: str) -> str:
    """Return a model name that can be a folder's.

    Raises:
        ConfigError: it cannot.
    """
    if not NAME.fullmatch(name):
        raise ConfigError(
            f"{name!r} cannot be the name of a model",
            where="model name",
            fix="use up to 64 lower-case letters, digits, '.', '_' and '-', the first a letter or digit",
        )
    return name


def names(store: Store) -> list[str]:
    """Names that have at least one event, sorted."""
    found = {path.split("/")[1] for path in store.list_records(FOLDER) if path.count("/") == 2}
    return sorted(name for name in found if NAME.fullmatch(name))


def current(store: Store, name: str) -> Event | None:
    """The newest event, whose pointers are the state; None for a name without events.

    Raises:
        StoreError: it cannot be read (cause `registry_damaged`), or a newer version of the pipeline wrote it.
    """
    numbers = _numbers(store, name)
    return event(store, name, numbers[-1]) if numbers else None


def history(store: Store, name: str) -> Iterator[Event]:
    """All events, newest first."""
    for number in reversed(_numbers(store, name)):
        yield event(store, name, number)


def event(store: Store, name: str, number: int) -> Event:
    """The event with this number. StoreError if there is none or it cannot be read."""
    path = _path(name, number)
    where = f"{store.url}/{path}"
    record = store.read_record(path)
    if record is None:
        raise StoreError("the event is not there", where=where, fix="grpo-pipeline models show lists them")
    if isinstance(record.get("schema_version"), int) and record["schema_version"] > 1:
        raise StoreError("a newer version of the pipeline wrote this event", where=where, fix="update the pipeline")
    try:
        found = Event.model_validate(record)
        problem = "" if found.number == number else f"it says that it is event {found.number}"
    except ValidationError as error:
        first = error.errors(include_url=False, include_input=False)[0]
        problem = f"{'.'.join(map(str, first['loc']))}: {first['msg']}"
    if problem:
        raise StoreError(
            f"the event is damaged: {problem}",
            where=where,
            fix="restore the file; deleting it goes back to the state before it",
            cause="registry_damaged",
        )
    return found


def change(store: Store, name: str, make: Callable[[Event | None], Event | None]) -> Event | None:
    """Add an event; the state that it was made from is the one that it follows.

    Args:
        make: gets the newest event and returns the next one, or None to leave things as they are. It is called again
            with the newer state when another process was faster, so it must decide from its argument alone.

    Returns:
        The event that was added, or None when `make` returned None.

    Raises:
        StoreError: an artifact that the event points to is gone.
        Retryable: others kept being faster.
    """
    check_name(name)
    for _ in range(ATTEMPTS):
        newest = current(store, name)
        made = make(newest)
        if made is None:
            return None
        needs = {
            key
            for new, old in (
                (made.candidate, newest and newest.candidate),
                (made.production, newest and newest.production),
            )
            if new is not None and new != old
            for key in new.artifacts()
        }
        if store.create_record(_path(name, made.number), made.model_dump(mode="json"), needs=sorted(needs)):
            return made
    raise Retryable(f"others changed {name} {ATTEMPTS} times in a row", where=store.url, fix="run again")


def following(newest: Event | None, **fields: object) -> Event:
    """The event after `newest`: its state, with `fields` changed."""
    state = {name: getattr(newest, name) for name in State.model_fields} if newest else {}
    return Event.model_validate({**state, "number": newest.number + 1 if newest else 1, **fields})


def restored(store: Store, name: str, newest: Event) -> Event | None:
    """The event of the promotion that a rollback goes back to, or None if production never was anything else."""
    promotion = event(store, name, newest.promoted_by) if newest.promoted_by else None
    return event(store, name, promotion.replaced) if promotion is not None and promotion.replaced else None


def pointer(store: Store, text: str) -> Version:
    """The version that `production`, `candidate`, `<name>:production` or `<name>:candidate` names.

    Raises:
        StoreError: there is no such name or nothing under the pointer, or no name is given and there are several.
    """
    name, _, which = text.rpartition(":")
    known = names(store)
    if not name and len(known) != 1:
        raise StoreError(
            f"{text!r} could be of {len(known)} models" if known else "no model was ever promoted",
            where=store.url,
            fix=f"say which: {', '.join(f'{one}:{which}' for one in known)}"
            if known
            else "grpo-pipeline models promote",
            cause="no_such_version",
        )
    name = name or known[0]
    newest = current(store, name)
    version: Version | None = getattr(newest, which) if newest is not None else None
    if version is None:
        raise StoreError(
            f"{name} has no {which} version" if newest is not None else f"there is no model {name!r}",
            where=store.url,
            fix=f"models: {', '.join(known) or 'none'}; grpo-pipeline models show NAME",
            cause="no_such_version",
        )
    return version


def referenced(store: Store, kept_versions: int = KEPT_VERSIONS) -> set[tuple[str, str]]:
    """(stage, fingerprint) of what pointers refer to, and of the newest `kept_versions` former productions per name.

    Raises:
        StoreError: an event cannot be read; then nobody can say what may be deleted.
    """
    found: set[tuple[str, str]] = set()
    for name in names(store):
        newest = current(store, name)
        if newest is None:
            continue
        for version in (newest.candidate, newest.production, newest.anchor):
            found |= set(version.artifacts()) if version is not None else set()
        number = newest.promoted_by
        for _ in range(kept_versions + 1):
            if number is None:
                break
            promotion = event(store, name, number)
            found |= set(promotion.subject.artifacts())
            number = promotion.replaced
    return found


def _numbers(store: Store, name: str) -> list[int]:
    paths = store.list_records(f"{FOLDER}/{check_name(name)}")
    return sorted(int(match[1]) for path in paths if (match := _NUMBER.fullmatch(path.rsplit("/", 1)[-1])))


def _path(name: str, number: int) -> str:
    return f"{FOLDER}/{name}/{number:06d}.json"


def _who() -> str:
    try:
        user = getpass.getuser()
    except (OSError, KeyError):  # no name for this user id, as in a container
        user = "unknown"
    return f"{user}@{socket.gethostname()}"
