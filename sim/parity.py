"""A table of how far apart the two engines are: ``python -m sim.parity``.

Prints the table; ``--write docs/engines.md`` puts it into a document. What is measured, and how, is
in :mod:`sim.parity_measures`.
"""

from __future__ import annotations

import argparse
import math
import sys
from collections.abc import Sequence
from pathlib import Path

import configs
from real.spec import load_robot
from sim.document_tables import read_table, write_table
from sim.parity_measures import QUANTITIES

NAME = "sim.parity"

#: Below this a difference is rounding.
_ROUNDING = 1e-9


def shipped_robots() -> list[str]:
    """Names of the robots in ``configs/robots``."""
    folder = Path(next(iter(configs.__path__))) / "robots"
    return sorted(path.stem for path in folder.glob("*.yaml"))


def bound(value: float) -> float:
    """The difference as a table may state it: a fifth more, rounded up to one digit."""
    if value <= _ROUNDING:
        return _ROUNDING
    unit = 10.0 ** math.floor(math.log10(1.2 * value))
    return math.ceil(1.2 * value / unit) * unit


def table(robots: Sequence[str]) -> str:
    """Differences of all quantities on the robots, as a table in Markdown."""
    lines = ["| robot | quantity | differs by at most | unit |", "|---|---|---|---|"]
    for name in robots:
        robot = load_robot(name)
        for quantity in QUANTITIES:
            if quantity.applies(robot):
                value = bound(quantity.measure(robot))
                lines.append(f"| {name} | {quantity.name} | {value:.0e} | {quantity.unit} |")
    return "\n".join(lines)


def documented(text: str) -> dict[tuple[str, str], float]:
    """Bounds by robot and quantity, from a document that has the table."""
    rows = read_table(text, NAME).splitlines()[2:]
    cells = [[cell.strip() for cell in row.strip("|").split("|")] for row in rows]
    return {(robot, quantity): float(value) for robot, quantity, value, _ in cells}


def main(arguments: Sequence[str]) -> None:
    """Print the table, or put it into a document; see the module's description."""
    parser = argparse.ArgumentParser(prog="python -m sim.parity", description=__doc__)
    parser.add_argument("robots", nargs="*", help="names or files; all shipped ones if none")
    parser.add_argument("--write", type=Path, help="document whose table is replaced")
    options = parser.parse_args(arguments)
    text = table(options.robots or shipped_robots())
    if options.write is None:
        sys.stdout.write(text + "\n")
        return
    write_table(options.write, NAME, text)


if __name__ == "__main__":
    main(sys.argv[1:])
