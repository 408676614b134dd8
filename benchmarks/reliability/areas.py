"""All areas, in the order in which they are worth running: cheap ones first."""

from benchmarks.reliability import damage
from benchmarks.reliability.area import Area

AREAS: dict[str, Area] = {
    "4-damage": damage.AREA,
}
