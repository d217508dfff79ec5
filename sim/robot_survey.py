"""What can be found out about a robot from its description alone, for a first robot file.

The file is built once with stand-ins for what it lacks, so that positions, inertias and shapes can
be asked of a compiled model; stand-ins never reach the robot file that is written.
"""

# The names of MuJoCo come from compiled modules, which the type checker cannot see.
# pyright: reportAttributeAccessIssue=false

from __future__ import annotations

import logging
import math
import tempfile
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import mujoco
import numpy as np
from numpy.typing import NDArray

from real.config_yaml import write_yaml_file
from real.description import DescribedJoint, Description, is_mjcf, read_description
from real.errors import FerryError
from real.mjcf import Mjcf
from real.spec import RobotSpec, load_robot
from sim.mjcf_hints import Hints, read_hints
from sim.model import MujocoModel, build_mujoco
from sim.robot_pose import highest_point, lowest_points, with_default_pose

log = logging.getLogger(__name__)

Array = NDArray[np.float64]

#: Where nothing is known: a radius of gyration of 5 cm, for the survey alone [m].
_STAND_IN_M = 0.05
#: Shapes that end within this of the lowest point, in shares of the robot's height, are feet.
_FOOT_SHARE = 0.08
#: Shapes of one limb that end within this of its lowest are feet together: corners of a sole [m].
_LEVEL_M = 0.005


@dataclass(frozen=True)
class Survey:
    """A description, looked at.

    Attributes:
        described: joints and links.
        root: the root link.
        floating: whether the base seems to be free.
        why: what that is concluded from, for people.
        locked: joints that others mimic, and where they may stand [rad or m].
        bare: links that move but have no mass, or no inertia.
        dynamics: (damping, friction, armature) of joints that state any.
        end_effector: the last link of the only chain of a fixed robot, or None.
        spec: the robot with stand-ins, default pose included.
        built: the model of it.
        feet: links that touch the ground in the default pose.
        height_m: height of the base in the default pose, lowest point on the ground [m].
        imu_link: the link of the IMU of a floating robot, or None.
        hints: gains, pose and motors of an MJCF.
        not_posed: the key frame that would be the default pose, and the joints that are beyond
            their limits in it; empty if there is none, or none that is.
    """

    described: Description
    root: str
    floating: bool
    why: str
    locked: dict[str, float]
    bare: tuple[str, ...]
    dynamics: dict[str, tuple[float, float, float]]
    end_effector: str | None
    spec: RobotSpec
    built: MujocoModel
    feet: tuple[str, ...]
    height_m: float
    imu_link: str | None
    hints: Hints
    not_posed: str

    @property
    def moving(self) -> list[DescribedJoint]:
        """The joints of the robot file, in the order of the description."""
        return [self.described.joints[name] for name in self.spec.joint_names]


def survey(path: Path) -> Survey:
    """Look at a URDF or MJCF file.

    Raises:
        FerryError: naming the file and what no stand-in can mend.
    """
    described = read_description(path)
    tree = _Tree(path, described)
    locked = {
        joint.mimics: _middle(described.joints[joint.mimics])
        for joint in described.joints.values()
        if joint.mimics in described.joints
    }
    still = {n for n, j in described.joints.items() if j.mimics is not None} | set(locked)
    moving = [joint for name, joint in described.joints.items() if name not in still]
    if not moving:
        raise FerryError(f"{path}: no joint moves by itself; expected at least one")
    floating, why = tree.floating(moving)
    spec = _stand_in(path, tree, moving, locked, floating=floating)
    hints = read_hints(path) if is_mjcf(path) else Hints()
    not_posed = _beyond(spec, hints, described) if hints.key else ""
    if not_posed:
        log.warning("%s: %s; the default pose is another", path, not_posed)
        hints = replace(hints, key="")
    spec = _in_key_frame(spec, hints) if hints.key else with_default_pose(spec)
    built = build_mujoco(spec, floor=False)
    lowest = lowest_points(built)
    bottom = min(lowest.values(), default=0.0)
    height = -bottom if floating else 0.0
    top = highest_point(built)
    near = _FOOT_SHARE * max(top - bottom, 0.05)
    ends = {link: z for link, z in lowest.items() if z <= bottom + near and tree.is_end(link)}
    feet = tree.lowest_of_each(ends) if floating else ()
    chain = tree.only_chain(moving)
    return Survey(
        described=described,
        root=tree.root,
        floating=floating,
        why=why,
        locked=locked,
        bare=tree.bare,
        dynamics=tree.dynamics,
        end_effector=None if floating else chain,
        spec=spec,
        built=built,
        feet=feet,
        height_m=height,
        imu_link=tree.imu() if floating else None,
        hints=hints,
        not_posed=not_posed,
    )


def _beyond(spec: RobotSpec, hints: Hints, described: Description) -> str:
    """Which joints the file's key frame has beyond their limits, in words; empty if none."""
    found: list[str] = []
    for joint in spec.joints:
        q = round(hints.q.get(joint.name, math.nan), 4)
        if joint.q_min - 1e-4 <= q <= joint.q_max + 1e-4:  # not where NaN
            continue
        known = math.isfinite(described.joints[joint.name].q_min)
        limits = f"{joint.q_min:.4g} to {joint.q_max:.4g}"
        found.append(f"{joint.name!r} at {q:g} ({'limits' if known else 'assumed'}: {limits})")
    return f"key frame {hints.key!r} has joints beyond limits: {', '.join(found)}" if found else ""


def _in_key_frame(spec: RobotSpec, hints: Hints) -> RobotSpec:
    """The robot as the file's key frame has it."""
    q = {joint.name: round(hints.q[joint.name], 4) for joint in spec.joints}
    return replace(
        spec,
        joints=tuple(
            replace(j, q_default=min(max(q[j.name], j.q_min), j.q_max)) for j in spec.joints
        ),
    )


class _Tree:
    """Links of a file and how they hang together; for an MJCF as MuJoCo compiles it."""

    def __init__(self, path: Path, described: Description) -> None:
        self.path = path
        self.dynamics: dict[str, tuple[float, float, float]] = {}
        self.free: bool | None = None
        if is_mjcf(path):
            from sim.mjcf import compile_mjcf, to_urdf

            element = to_urdf(path)
            model = compile_mjcf(path)
            self.free = any(joint.kind == "free" for joint in Mjcf(path).joints)
            for name in described.joints:
                dof = int(model.joint(name).dofadr[0]) if name in _names(model) else -1
                if dof >= 0:
                    values = (model.dof_damping, model.dof_frictionloss, model.dof_armature)
                    found = tuple(round(float(v.flat[dof]), 6) for v in values)
                    self.dynamics[name] = (found[0], found[1], found[2])
        else:
            element = ElementTree.parse(path).getroot()
            for joint in element.findall("joint"):
                given = joint.find("dynamics")
                if given is not None:
                    damping, friction = (
                        float(given.get(key, "0")) for key in ("damping", "friction")
                    )
                    self.dynamics[joint.get("name", "")] = (damping, friction, 0.0)
        self.dynamics = {n: d for n, d in self.dynamics.items() if any(d) and n in described.joints}
        self.links = {link.get("name", ""): link for link in element.findall("link")}
        self.above: dict[str, tuple[str, ElementTree.Element]] = {}
        for joint in element.findall("joint"):
            parent, child = joint.find("parent"), joint.find("child")
            if parent is not None and child is not None:
                self.above[child.get("link", "")] = (parent.get("link", ""), joint)
        roots = [link for link in self.links if link not in self.above]
        if len(roots) != 1:
            raise FerryError(f"{path}: root links {roots}; expected exactly one")
        self.root = roots[0]
        self.carrier = {link: self._carrier(link) for link in self.links}
        masses = {link: _mass(element) for link, element in self.links.items()}
        moments = {link: _moments(element) for link, element in self.links.items()}
        self.masses = masses
        bare = [c for c in dict.fromkeys(self.carrier.values()) if c != self.root]
        rigid = {c: [link for link, at in self.carrier.items() if at == c] for c in bare}
        self.no_mass = {c for c in bare if not sum(masses[link] for link in rigid[c])}
        lacking = {c for c in bare if not sum(moments[link] for link in rigid[c])}
        if masses[self.root] and not moments[self.root]:
            lacking.add(self.root)
        self.bare = tuple(link for link in self.links if link in lacking | self.no_mass)

    def _carrier(self, link: str) -> str:
        for _ in range(len(self.links)):
            if link not in self.above or self.above[link][1].get("type") != "fixed":
                break
            link = self.above[link][0]
        return link

    def floating(self, moving: list[DescribedJoint]) -> tuple[bool, str]:
        """Whether the base seems free, and why."""
        if self.free is not None:
            return self.free, "the file has a free joint" if self.free else "it has no free joint"
        if self.root == "world" or not any(
            self.masses[link] for link, at in self.carrier.items() if at == self.root
        ):
            return False, f"the root link {self.root!r} has no mass"
        limbs = sum(self.carrier[self.above[joint.child][0]] == self.root for joint in moving)
        if limbs > 1:
            return True, f"{limbs} limbs hang on the root link {self.root!r}, which has mass"
        return False, f"one chain hangs on the root link {self.root!r}"

    def only_chain(self, moving: list[DescribedJoint]) -> str | None:
        """The last link of the only chain of joints; None where they branch."""
        below = {self.carrier[self.above[joint.child][0]] for joint in moving}
        ends = [joint.child for joint in moving if joint.child not in below]
        if len(ends) != 1:
            return None
        frames = [link for link, at in self.carrier.items() if at == ends[0]]
        return max(frames, key=self._depth)

    def is_end(self, link: str) -> bool:
        """Whether nothing with a shape hangs on a link, nor by a joint on what it is fixed to."""
        own = self.carrier[link]
        below = [
            child
            for child, (parent, joint) in self.above.items()
            if parent == link or (joint.get("type") != "fixed" and self.carrier[parent] == own)
        ]
        return not any(
            self.links[child].find("collision") is not None or not self.is_end(child)
            for child in below
        )

    def lowest_of_each(self, ends: dict[str, float]) -> tuple[str, ...]:
        """Of the links with a shape at the end of a limb those that are lowest, as they stand."""
        bottom: dict[str, float] = {}
        for link, z in ends.items():
            own = self.carrier[link]
            bottom[own] = min(z, bottom.get(own, math.inf))
        return tuple(n for n, z in ends.items() if z <= bottom[self.carrier[n]] + _LEVEL_M)

    def imu(self) -> str:
        """A link fixed to the root and called after the IMU; else the root, which has to do."""
        fixed = [link for link, at in self.carrier.items() if at == self.root]
        # The frame of a site is nothing that a robot computer reads from an MJCF.
        named = [link for link in fixed if "imu" in link.lower()] if self.free is None else []
        return named[0] if named else self.root

    def _depth(self, link: str) -> int:
        depth = 0
        while link in self.above:
            link, depth = self.above[link][0], depth + 1
        return depth


def _names(model: mujoco.MjModel) -> set[str]:
    return {model.joint(j).name for j in range(model.njnt)}


def _mass(link: ElementTree.Element) -> float:
    found = link.find("inertial/mass")
    return 0.0 if found is None else float(found.get("value", "0"))


def _moments(link: ElementTree.Element) -> float:
    found = link.find("inertial/inertia")
    return 0.0 if found is None else sum(float(found.get(k, "0")) for k in ("ixx", "iyy", "izz"))


def _middle(joint: DescribedJoint) -> float:
    ends = (joint.q_min, joint.q_max)
    return round(0.5 * sum(ends), 4) if all(map(math.isfinite, ends)) else 0.0


def _stand_in(
    path: Path,
    tree: _Tree,
    moving: list[DescribedJoint],
    locked: dict[str, float],
    *,
    floating: bool,
) -> RobotSpec:
    """The robot with made-up numbers wherever the file has none."""

    def limits(joint: DescribedJoint) -> dict[str, Any]:
        made: dict[str, Any] = {"source": "stand-in"}
        if math.isnan(joint.q_min) or math.isnan(joint.q_max):
            made |= {"q_min": -math.pi, "q_max": math.pi}
        for key in ("dq_max", "tau_max"):
            if not getattr(joint, key) > 0.0:
                made[key] = 1e6
        return made

    def default(joint: DescribedJoint) -> float:
        # Limbs get theirs later; the middle of its range is where an arm can go anywhere from.
        return _middle(joint)

    links: dict[str, Any] = {}
    for link in tree.bare:
        mass = tree.masses[link] or 1.0
        moment = mass * _STAND_IN_M**2
        links[link] = {"mass": mass, "inertia": [moment] * 3 + [0.0] * 3, "source": "stand-in"}
    config = {
        "schema_version": 1,
        "name": "survey",
        "description": str(path.resolve()),
        "base": {"kind": "floating" if floating else "fixed", "link": tree.root},
        "imu_link": None,
        "control_dt_s": 0.02,
        "physics_dt_s": 0.005,
        "safe_stop": "damp",
        "damping_kd": 0.0,
        "defaults": {"kp": 1.0, "kd": 0.1, "action_scale": 1.0},
        "joints": {j.name: {"q_default": default(j), "limits": limits(j)} for j in moving},
        "locked": locked,
        "links": links,
    }
    with tempfile.TemporaryDirectory(prefix="ferry_") as folder:
        file = Path(folder) / "survey.yaml"
        write_yaml_file(config, file)
        return replace(load_robot(file), source=str(path))
