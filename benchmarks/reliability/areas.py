"""All areas, in the order in which they are worth running: cheap ones first."""

from benchmarks.reliability import damage, hostile, load, storage
from benchmarks.reliability.area import Area

AREAS: dict[str, Area] = {
    "3-storage": storage.AREA,
    "4-damage": damage.AREA,
    "5-load": load.AREA,
    "6-hostile": hostile.AREA,
}
