"""The work-pool templates, through the classes that the workers use."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterator
from typing import Any
from uuid import uuid4

import jsonschema
import pytest
from prefect.client.schemas.objects import FlowRun
from prefect.workers.process import ProcessJobConfiguration, ProcessWorker

from flows.ops.setup import TEMPLATES, template

NO_CLIENT: Any = object()
"""Nothing in these templates is looked up on a server."""


@pytest.mark.parametrize("kind", TEMPLATES)
def test_a_template_is_valid_and_every_variable_is_used(kind: str) -> None:
    made = template(kind)
    jsonschema.Draft202012Validator.check_schema(made["variables"])
    text = json.dumps(made["job_configuration"])
    unused = [name for name in made["variables"]["properties"] if "{{ " + name + " }}" not in text]
    assert unused == []
    defaults = {name: field["default"] for name, field in made["variables"]["properties"].items() if "default" in field}
    required = dict.fromkeys(made["variables"].get("required", []), "registry/image:1")
    jsonschema.validate({**defaults, **required}, made["variables"])


def test_the_process_pool_is_prefects_but_for_heartbeat_and_output() -> None:
    made = asyncio.run(
        ProcessJobConfiguration.from_template_and_values(template("process"), {"env": {"A": "1"}}, client=NO_CLIENT)
    )
    assert made.env == {"PREFECT_FLOWS_HEARTBEAT_FREQUENCY": "30", "A": "1"}
    assert made.stream_output is False
    assert (
        template("process")["job_configuration"] == ProcessWorker.get_default_base_job_template()["job_configuration"]
    )


def test_a_pod_has_the_gpu_shared_memory_volume_and_secret() -> None:
    worker = pytest.importorskip("prefect_kubernetes.worker", reason="needs prefect-kubernetes")
    models = pytest.importorskip("kubernetes_asyncio.client.models")
    values = {"image": "registry/grpo:1", "gpus": 2, "shm_size": "8Gi", "node_selector": {"gpu": "yes"}}
    made = asyncio.run(
        worker.KubernetesWorkerJobConfiguration.from_template_and_values(
            template("kubernetes"), values, client=NO_CLIENT
        )
    )
    made.prepare_for_flow_run(FlowRun(id=uuid4(), flow_id=uuid4(), name="night"))
    pod = made.job_manifest["spec"]["template"]["spec"]
    (container,) = pod["containers"]
    assert container["resources"]["limits"] == {"nvidia.com/gpu": 2}
    assert {"name": "PREFECT_FLOWS_HEARTBEAT_FREQUENCY", "value": "30"} in container["env"]
    assert container["envFrom"] == [{"secretRef": {"name": "grpo-pipeline", "optional": True}}]
    assert pod["volumes"][0]["emptyDir"] == {"medium": "Memory", "sizeLimit": "8Gi"}
    assert pod["nodeSelector"] == {"gpu": "yes"} and pod["terminationGracePeriodSeconds"] == 60
    assert made.job_manifest["spec"]["backoffLimit"] == 0
    assert list(unknown(made.job_manifest, "V1Job", models)) == []


def unknown(data: Any, kind: str, models: Any, path: str = "job") -> Iterator[str]:
    """Keys and types of a manifest that Kubernetes' own classes do not have."""
    if kind.startswith("list["):
        for i, item in enumerate(data):
            yield from unknown(item, kind[5:-1], models, f"{path}[{i}]")
    elif hasattr(models, kind):
        names = {json_name: name for name, json_name in getattr(models, kind).attribute_map.items()}
        for key, value in data.items():
            if key in names:
                yield from unknown(value, getattr(models, kind).openapi_types[names[key]], models, f"{path}.{key}")
            elif (kind, key) not in {
                ("V1PodSpec", "completions"),
                ("V1PodSpec", "parallelism"),
            }:  # Prefect asks for them
                yield f"{path}.{key}"
    elif (expected := {"str": str, "int": int, "bool": bool}.get(kind)) and not isinstance(data, expected):
        yield f"{path} is not {kind}"
