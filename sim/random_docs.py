"""The table of random terms in ``docs/randomisation.md``: ``python -m sim.random_docs FILE``.

Made from the registry, so that it cannot say what is not so; a test compares the two.
"""

from __future__ import annotations

import sys
from pathlib import Path

from sim.document_tables import write_table
from sim.engine_terms import PYBULLET
from sim.random_terms import REFUSED, TERMS
from sim.sensors import SensorConfig, SignalConfig

NAME = "sim.random_docs"


def table() -> str:
    """Random terms, refused names and sensor errors, in Markdown."""
    lines = [
        "| term | what it is | unit | may be given by | per | `interval_s` | changes | PyBullet |",
        "|---|---|---|---|---|---|---|---|",
    ]
    for name, kind in TERMS.items():
        ops = " ".join(f"`{op}`" for op in kind.ops)
        within = "needed" if name == "push" else "yes" if kind.within else "no"
        how = PYBULLET[name].how if name in PYBULLET else "refused"
        cells = (name, kind.doc, kind.unit, ops, " or ".join(kind.per), within, kind.changes, how)
        lines.append(f"| {' | '.join(cells)} |")
    lines += ["", *(f"`{name}` is refused: {why}." for name, why in REFUSED.items())]
    lines += ["", "| error of a sensor | what it is |", "|---|---|"]
    for name, field in SignalConfig.model_fields.items():
        lines.append(f"| `{name}` | {field.description} |")
    imu = SensorConfig.model_fields["imu_frame"].description
    return "\n".join([*lines, f"| `imu_frame` (of `sensors`) | {imu} |"])


if __name__ == "__main__":
    write_table(Path(sys.argv[1]), NAME, table())
