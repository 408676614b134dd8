"""All areas, in the order in which they are worth running: cheap ones first."""

from benchmarks.reliability import cancel, damage, kills, load, overhead, storage
from benchmarks.reliability.area import Area
from benchmarks.reliability.hostile import attacks

AREAS: dict[str, Area] = {
    "3-storage": storage.AREA,
    "4-damage": damage.AREA,
    "5-load": load.AREA,
    "1-kills": kills.AREA,
    "2-cancel": cancel.AREA,
    "7-overhead": overhead.AREA,
    "6-hostile": attacks.AREA,
}
