"""The world that a policy was trained in, as its contract keeps it: sections of the task file.

A contract says what a policy and its robot must share. This says what else it takes to evaluate
the policy where it was trained. No robot looks at it; the simulator reads the sections again by the
models that it reads task files with (:mod:`sim.world_config`), so nothing is defined twice.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

#: What every learned actuator is read by: the metadata that say what it was fitted for, as JSON,
#: and the names of its inputs, ``[N, H, A]``, and of its output, ``[N, A]``.
ACTUATOR_CARD_KEY = "ferry.actuator"
ACTUATOR_INPUTS, ACTUATOR_OUTPUT = ("error", "velocity"), "torque"

#: Plain name of a file, in letters that are a byte each: no file system takes more than 255 bytes.
_NAME = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.+-]{0,99}")
_SHA256 = re.compile(r"[0-9a-f]{64}")


@dataclass(frozen=True)
class ActuatorFile:
    """Which learned actuator moved the joints.

    Attributes:
        name: of its file, without a folder.
        sha256: of its content (hex).
    """

    name: str
    sha256: str

    @staticmethod
    def of(name: str, data: bytes) -> ActuatorFile:
        """Of a file's content; whatever a name must not have becomes ``_``."""
        plain = "".join(c if _NAME.fullmatch("_" + c) else "_" for c in name)[:100]
        if not _NAME.fullmatch(plain):
            plain = "_" + plain[1:]
        return ActuatorFile(plain, hashlib.sha256(data).hexdigest())

    def is_of(self, data: bytes) -> bool:
        """Whether this is the content."""
        return hashlib.sha256(data).hexdigest() == self.sha256


@dataclass(frozen=True)
class TrainingWorld:
    """Sections of the task file, as JSON holds them.

    Attributes:
        start: how far initial states are spread.
        randomize: the table of random terms.
        sensors: errors of the sensors; None for perfect ones.
        terrain: the table of the ground; None for a plane.
        actuator: the learned actuator; None for servos.
    """

    start: Mapping[str, Any]
    randomize: Mapping[str, Any]
    sensors: Mapping[str, Any] | None = None
    terrain: Mapping[str, Any] | None = None
    actuator: ActuatorFile | None = None

    def problems(self) -> list[str]:
        """What is wrong with it whatever a simulator makes of its sections."""
        bad: list[str] = []
        tiles: object = (self.terrain or {}).get("tiles", {})
        if not isinstance(tiles, Mapping):
            bad.append(f"world.terrain.tiles {tiles!r:.60} is not a table of tiles")
        found = self.actuator
        if found is None:
            return bad
        # It becomes the name of a file.
        if not _NAME.fullmatch(found.name):
            bad.append(f"world.actuator.name {found.name!r:.60} is not the plain name of a file")
        if not _SHA256.fullmatch(found.sha256):
            bad.append("world.actuator.sha256 is no SHA-256 in hexadecimal digits")
        return bad

    def rows(self) -> dict[str, str]:
        """What it is, for people."""
        ground = "a plane"
        if self.terrain is not None:
            tiles: Mapping[str, Any] = self.terrain.get("tiles", {})
            ground = f"terrain of {', '.join(tiles)}"
        moved = "servos" if self.actuator is None else f"learned actuator {self.actuator.name}"
        random = ", ".join(self.randomize) or "nothing"
        return {"trained on": f"{ground}; {moved}", "randomised": random}
