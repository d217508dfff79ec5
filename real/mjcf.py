"""What an MJCF file states about joints, read with the standard library alone.

MuJoCo itself is the judge of such a file, but a robot computer has none. So only what names and
limits joints is read here: bodies, joints, actuators, default classes, includes, and the unit of
angles. A test compares the result with MuJoCo's own.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from pathlib import Path
from xml.etree import ElementTree

from real.errors import FerryError

Attributes = dict[str, str]
Defaults = dict[str, dict[str, Attributes]]

#: Elements of an MJCF body that make bodies or joints by other means than naming them.
_GENERATED = {"replicate", "attach", "composite", "flexcomp"}

#: All share the attributes of one another's defaults (MuJoCo's XML reference, "default").
_ACTUATORS = ("general", "motor", "position", "velocity", "intvelocity", "damper", "cylinder")


class MjcfJoint:
    """A joint with its attributes, default classes applied.

    Attributes:
        name: its name, ``joint_<i>`` where it has none, i counting all joints from 0.
        kind: ``hinge``, ``slide``, ``ball`` or ``free``.
        body: the body it moves.
        q_min: lower limit [rad or m], -infinity without one.
        q_max: upper limit [rad or m].
        effort: largest effort of its actuators [N m or N], NaN where the file is silent.
    """

    def __init__(self, name: str, kind: str, body: str, q_min: float, q_max: float) -> None:
        self.name, self.kind, self.body = name, kind, body
        self.q_min, self.q_max = q_min, q_max
        self.effort = math.nan


class Mjcf:
    """Joints and named places of an MJCF file, in file order.

    Args:
        path: the file.

    Attributes:
        path: the file.
        joints: all joints, the free one included.
        bodies: their names, ``body_<i>`` where there is none, i counting all bodies from 1.
        frames: names of geoms and sites that are not also a body's; each may serve as a link. A
            geom without a name is ``<body>/<i>``, i counting the geoms of its body from 0.

    Raises:
        FerryError: naming file and place: not readable, or made of elements that generate others.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        root = _read(path)
        _include(root, path, depth=0)
        self._degrees, self._autolimits = True, True
        for compiler in root.findall("compiler"):
            self._degrees = compiler.get("angle", "degree" if self._degrees else "x") == "degree"
            self._autolimits = compiler.get("autolimits", str(self._autolimits).lower()) == "true"
        self._defaults: Defaults = {"main": {}}
        for element in root.findall("default"):
            self._read_default(element, parent=None)
        self.joints: list[MjcfJoint] = []
        self.bodies: list[str] = []
        self._frames: list[str] = []
        self._geoms: dict[str, int] = {}
        for world in root.findall("worldbody"):
            self._walk(world, body=None, inherited="main")
        for section in root.findall("actuator"):
            self._read_actuators(section)
        self.frames: tuple[str, ...] = tuple(
            name for name in dict.fromkeys(self._frames) if name not in self.bodies
        )

    # -------------------------------------------------------------- defaults

    def _read_default(self, element: ElementTree.Element, parent: str | None) -> None:
        name = element.get("class", "main")
        own = {tag: dict(values) for tag, values in self._defaults.get(parent or "", {}).items()}
        own |= self._defaults.get(name, {}) if parent is None else {}
        for part in element:
            if part.tag != "default":
                tag = "actuator" if part.tag in _ACTUATORS else part.tag
                own[tag] = own.get(tag, {}) | dict(part.attrib)
        self._defaults[name] = own
        for part in element.findall("default"):
            self._read_default(part, parent=name)

    def _attributes(self, element: ElementTree.Element, inherited: str) -> Attributes:
        name = element.get("class", inherited)
        if name not in self._defaults:
            raise FerryError(
                f"{self.path}: <{element.tag} name={element.get('name')!r}> is of class {name!r}, "
                f"which is not defined; defined: {', '.join(self._defaults)}"
            )
        tag = "actuator" if element.tag in _ACTUATORS else element.tag
        return self._defaults[name].get(tag, {}) | dict(element.attrib)

    # -------------------------------------------------------------- the tree

    def _walk(self, element: ElementTree.Element, body: str | None, inherited: str) -> None:
        inherited = element.get("childclass", inherited)
        for part in element:
            if part.tag in _GENERATED:
                raise FerryError(
                    f"{self.path}: <{part.tag}> in body {body!r} makes other elements, which is "
                    "not read; save the compiled model (mj_saveLastXML) and use that"
                )
            if part.tag == "body":
                self.bodies.append(part.get("name") or f"body_{len(self.bodies) + 1}")
                self._walk(part, self.bodies[-1], inherited)
            elif part.tag == "frame":
                self._walk(part, body, inherited)
            elif part.tag in {"joint", "freejoint"} and body is not None:
                self.joints.append(self._joint(part, body, inherited))
            elif part.tag == "geom" and body is not None:
                count = self._geoms[body] = self._geoms.get(body, -1) + 1
                self._frames.append(part.get("name") or f"{body}/{count}")
            elif part.tag == "site" and body is not None and part.get("name"):
                self._frames.append(part.get("name", ""))

    def _joint(self, element: ElementTree.Element, body: str, inherited: str) -> MjcfJoint:
        name = element.get("name") or f"joint_{len(self.joints)}"
        if element.tag == "freejoint":
            return MjcfJoint(name, "free", body, -math.inf, math.inf)
        found = self._attributes(element, inherited)
        kind = found.get("type", "hinge")
        low, high = -math.inf, math.inf
        limited = found.get("limited", "auto")
        if "range" in found and (limited == "true" or (limited == "auto" and self._autolimits)):
            low, high = self._pair(found["range"], name)
            if kind == "hinge" and self._degrees:
                low, high = math.radians(low), math.radians(high)
        joint = MjcfJoint(name, kind, body, low, high)
        clamp = found.get("actuatorfrclimited", "auto")
        if "actuatorfrcrange" in found and clamp != "false":
            joint.effort = max(map(abs, self._pair(found["actuatorfrcrange"], name)))
        return joint

    def _read_actuators(self, section: ElementTree.Element) -> None:
        """Take the efforts that actuators give: forcerange, or the controls of a motor, by gear."""
        by_name = {joint.name: joint for joint in self.joints}
        for element in section:
            found = self._attributes(element, "main") if element.tag in _ACTUATORS else {}
            joint = by_name.get(found.get("joint", ""))
            if joint is None:
                continue
            gear = abs(float(found.get("gear", "1").split()[0]))
            effort = math.nan
            if "forcerange" in found and found.get("forcelimited", "auto") != "false":
                effort = gear * max(map(abs, self._pair(found["forcerange"], joint.name)))
            elif element.tag == "motor" and "ctrlrange" in found:
                effort = gear * max(map(abs, self._pair(found["ctrlrange"], joint.name)))
            if not math.isnan(effort):
                known = not math.isnan(joint.effort)
                joint.effort = min(joint.effort, effort) if known else effort

    def _pair(self, text: str, name: str) -> tuple[float, float]:
        try:
            low, high = (float(part) for part in text.split())
        except ValueError as error:
            raise FerryError(
                f"{self.path}: joint {name!r}: {text!r} is not a pair of numbers"
            ) from error
        return low, high


def _read(path: Path) -> ElementTree.Element:
    try:
        return ElementTree.parse(path).getroot()
    except (ElementTree.ParseError, OSError) as error:
        raise FerryError(f"{path}: not readable as XML ({error})") from error


def _include(element: ElementTree.Element, main: Path, *, depth: int) -> None:
    """Put the content of included files in place; paths start from the main file's folder."""
    if depth > 16:
        raise FerryError(f"{main}: includes more than 16 deep; expected no file to include itself")
    for index, part in reversed(list(enumerate(element))):
        if part.tag == "include":
            content = _read(main.parent / part.get("file", ""))
            element.remove(part)
            for place, child in enumerate(content):
                element.insert(index + place, child)
    if any(part.tag == "include" for part in element):
        _include(element, main, depth=depth + 1)
    for part in _sections(element):
        _include(part, main, depth=depth)


def _sections(element: ElementTree.Element) -> Iterator[ElementTree.Element]:
    """Children in which an include can stand."""
    yield from (part for part in element if len(part))
