"""The automations that `ops setup` makes: runs whose process is gone become Crashed, and notifications."""

from __future__ import annotations

from datetime import timedelta
from uuid import UUID

from prefect.client.schemas.objects import StateType
from prefect.events.actions import ChangeFlowRunState, SendNotification
from prefect.events.schemas.automations import AutomationCore, EventTrigger, Posture
from prefect.events.schemas.events import ResourceSpecification

from flows.notify import KINDS, PREFIX

FLOWS = ["grpo-pipeline", "grpo-nightly"]
PREPARED = "grpo-pipeline: "
ZOMBIES = f"{PREPARED}no heartbeat"
SILENCE_S = 150
"""Five heartbeats of the work pool's 30 s: fewer, and a short stall of the server or the network would look like a death."""

_OURS = ResourceSpecification({"prefect.resource.role": "flow", "prefect.resource.name": FLOWS})


def zombies() -> AutomationCore:
    """A flow run without a sign of life becomes Crashed: its process, or its machine, is gone."""
    return AutomationCore(
        name=ZOMBIES,
        description="Marks flow runs as Crashed when their process or machine is gone. Made by `grpo-pipeline ops setup`.",
        trigger=EventTrigger(
            after={"prefect.flow-run.heartbeat"},
            # Any event of the run is a sign of life or its end, under whatever state name.
            expect={"prefect.flow-run.*"},
            match=ResourceSpecification({"prefect.resource.id": "prefect.flow-run.*"}),
            match_related=_OURS,
            for_each={"prefect.resource.id"},
            posture=Posture.Proactive,
            threshold=1,
            within=timedelta(seconds=SILENCE_S),
        ),
        actions=[
            ChangeFlowRunState(
                state=StateType.CRASHED,
                message=f"no sign of life for {SILENCE_S} s: its process or its machine is gone",
            )
        ],
    )


def notifications(block: UUID) -> list[AutomationCore]:
    """One automation per kind of event, so that each can be switched off in the UI; and one for crashes."""
    made = [
        _notification(
            kind,
            EventTrigger(expect={PREFIX + kind}, posture=Posture.Reactive, threshold=1),
            SendNotification(
                block_document_id=block, subject="{{ event.payload.subject }}", body="{{ event.payload.text }}"
            ),
        )
        for kind in KINDS
    ]
    crash = EventTrigger(
        expect={"prefect.flow-run.Crashed"}, match_related=_OURS, posture=Posture.Reactive, threshold=1
    )
    action = SendNotification(
        block_document_id=block,
        subject="The run crashed: {{ flow_run.name }}",
        body="{{ flow_run.state.message }}\nwhat to do: start it again; it goes on from its newest complete checkpoint",
    )
    return [*made, _notification("crashed", crash, action)]


def _notification(kind: str, trigger: EventTrigger, action: SendNotification) -> AutomationCore:
    text = "Made by `grpo-pipeline ops setup --notify`."
    return AutomationCore(name=f"{PREPARED}notify {kind}", description=text, trigger=trigger, actions=[action])
