"""Types of flow parameters: what the Prefect UI shows as a form, and the server checks before there is a run."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any

from pydantic import Field, GetCoreSchemaHandler, GetJsonSchemaHandler
from pydantic.json_schema import JsonSchemaValue
from pydantic_core import CoreSchema

from pipeline_config.base import Section
from pipeline_config.contract import ContractConfig
from pipeline_config.data import DataConfig
from pipeline_config.evaluation import EvaluationConfig
from pipeline_config.export import ExportConfig
from pipeline_config.gate import GateSettings, PassRateSettings
from pipeline_config.loading import profiles
from pipeline_config.model import ModelConfig
from pipeline_config.parallel import ParallelConfig
from pipeline_config.preflight import PreflightConfig
from pipeline_config.promotion import PromotionConfig
from pipeline_config.run import RunConfig
from pipeline_config.training import GRPOSettings, SFTSettings, VLLMSettings
from tasks.chain import GROUPS, NAMES


class PartOf:
    """Some keys of a configuration section; every other key, and one that is null, keeps the profile's value.

    The form gets the section's names, bounds and descriptions, but not its defaults: a form sends a default that it
    shows, and that would replace the profile's value. What a section's own rules say of several keys together is
    checked when the profile is known, by `load_config`.
    """

    def __init__(self, section: type[Section]) -> None:
        self.section = section

    def __get_pydantic_core_schema__(self, source: Any, handler: GetCoreSchemaHandler) -> CoreSchema:
        return handler(source)

    def __get_pydantic_json_schema__(self, schema: CoreSchema, handler: GetJsonSchemaHandler) -> JsonSchemaValue:
        whole = handler(self.section.__pydantic_core_schema__)
        _forget_defaults(whole, handler)
        return whole


def given_keys(part: Mapping[str, Any]) -> dict[str, Any]:
    """A part without the keys that a form left blank. (`overrides` such as `grpo.min_p=null` can set a null.)"""
    found = {key: given_keys(value) if isinstance(value, Mapping) else value for key, value in part.items()}
    return {key: value for key, value in found.items() if value is not None and value != {}}


def _forget_defaults(schema: JsonSchemaValue, handler: GetJsonSchemaHandler) -> None:
    """Also of sections inside; not of the items of a list, which replaces the profile's list as a whole."""
    for field in handler.resolve_ref_schema(schema).get("properties", {}).values():
        field.pop("default", None)
        if field.get("type") == "boolean":
            # As a plain boolean it is a switch, which has no third position.
            del field["type"]
            field["anyOf"] = [{"type": "null"}, {"type": "boolean"}]
        if "anyOf" in field:
            # The form begins with the first kind.
            field["anyOf"].sort(key=lambda kind: kind.get("type") != "null")
        if "$ref" in field:
            _forget_defaults(field, handler)


ModelPart = Annotated[dict[str, Any], PartOf(ModelConfig)]
ContractPart = Annotated[dict[str, Any], PartOf(ContractConfig)]
DataPart = Annotated[dict[str, Any], PartOf(DataConfig)]
ParallelPart = Annotated[dict[str, Any], PartOf(ParallelConfig)]
PreflightPart = Annotated[dict[str, Any], PartOf(PreflightConfig)]
SFTPart = Annotated[dict[str, Any], PartOf(SFTSettings)]
GatePart = Annotated[dict[str, Any], PartOf(GateSettings)]
PassRatesPart = Annotated[dict[str, Any], PartOf(PassRateSettings)]
GRPOPart = Annotated[dict[str, Any], PartOf(GRPOSettings)]
EvaluationPart = Annotated[dict[str, Any], PartOf(EvaluationConfig)]
ExportPart = Annotated[dict[str, Any], PartOf(ExportConfig)]
PromotionPart = Annotated[dict[str, Any], PartOf(PromotionConfig)]
VLLMPart = Annotated[dict[str, Any], PartOf(VLLMSettings)]
RunPart = Annotated[dict[str, Any], PartOf(RunConfig)]

ProfileName = Annotated[str, Field(json_schema_extra={"enum": list(profiles())})]
StageName = Annotated[str, Field(json_schema_extra={"enum": [*NAMES, *GROUPS]})]
