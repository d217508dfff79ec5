"""What is checked before anything starts: every mistake that can be seen from outside the graph.

The nodes check again what they see (contract on the wire, driver, bundle); this finds it before
five processes run.
"""

from __future__ import annotations

import functools
import importlib.metadata
import signal
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

from deploy.agreement import require_imu
from deploy.bundle import Bundle, read_bundle
from deploy.evaluation_stamp import strictest
from deploy.graph import RobotChoice
from deploy.parameters import read_parameter_file
from deploy.plugin_check import check_plugin, is_installed
from deploy.signing import configured_keys
from deploy.sim_world import WorldWish, in_its_world
from real.config import config_path
from real.contract import RobotContract
from real.errors import ConfigError, FerryError
from real.log_parts import SUFFIX
from real.spec import RobotSpec, load_robot

#: Message packages of the wire.
MESSAGE_PACKAGES = (
    "builtin_interfaces",
    "diagnostic_msgs",
    "geometry_msgs",
    "nav_msgs",
    "rosgraph_msgs",
    "sensor_msgs",
    "std_msgs",
    "std_srvs",
)
#: Distributions of ROS 2 of which there are wheels, and the extra that brings them.
WHEELS = {"jazzy": "ros", "kilted": "ros-kilted"}


@dataclass(frozen=True)
class Cleared:
    """What passed.

    Attributes:
        bundle: the verified policy.
        robot: what the robot file says of the robot.
        choice: the plug-in, with ``simulated`` as its class declares it.
        minimum_score: what the strictest of all who ask wants of the bundle's evaluation; None
            where nobody asks.
        world: what a simulated robot will stand in, for people; empty where nobody says it.
    """

    bundle: Bundle
    robot: RobotContract
    choice: RobotChoice
    minimum_score: float | None = None
    world: str = ""

    def metadata(self, robot: str) -> dict[str, str]:
        """What a recording says of itself, given what was asked for as robot."""
        contract, stamp = self.bundle.contract, self.bundle.evaluation
        return {
            "bundle_sha256": self.bundle.sha256,
            "robot": contract.robot,
            "plugin": robot,
            "config_hash": contract.config_hash,
            "git_sha": contract.git_sha,
            "policy_version": str(contract.policy_version),
            "contract": contract.to_json(),
            # A stand-in for hardware tells no more of its world than hardware would.
            **({"world": self.world} if self.world and not self._hidden else {}),
            **({} if stamp is None else {"evaluation": stamp.to_json()}),
        }

    @property
    def _hidden(self) -> bool:
        return self.choice.options.get("hide_truth") is True


def preflight(
    bundle: Path,
    choice: RobotChoice,
    *,
    robot_name: str | None = None,
    record: Path | None = None,
    trusted_keys: Path | None = None,
    minimum_score: float | None = None,
    params: Path | None = None,
    world: WorldWish | None = None,
    folder: Path | None = None,
) -> Cleared:
    """Check everything that can be checked without starting a node.

    Args:
        bundle: the policy file.
        choice: the robot's plug-in.
        robot_name: robot file; the one that the bundle names if None.
        record: file to record to, or folder to make for the parts of a recording.
        trusted_keys: folder of keys; see :func:`deploy.signing.configured_keys`.
        minimum_score: lowest score of the evaluation that the bundle must carry; None asks for no
            evaluation.
        params: parameter file of the nodes, which may ask for one, too.
        world: what a simulated robot shall stand in; the bundle's own if None.
        folder: where the learned actuator that the bundle carries is written for a simulated robot,
            made if it is needed; None for a new temporary one, which is left to whoever asks.

    Raises:
        FerryError: the first thing that is wrong.
    """
    require_ros()
    policy = read_bundle(bundle, trusted=configured_keys(trusted_keys))
    given = {} if params is None else read_parameter_file(params)
    minimum = strictest(given, minimum=minimum_score)
    policy.require_evaluation(minimum)
    spec = _load_robot(policy, robot_name)
    robot = RobotContract.from_spec(spec)
    policy.contract.require_match(robot)
    require_imu(policy.contract)
    stood = in_its_world(policy, choice, world or WorldWish(), folder=folder)
    unguarded = given.get("robot_node", {}).get("allow_no_firmware_timeout", False)
    checked, words = check_plugin(stood, spec, unguarded=bool(unguarded))
    if record is not None:
        _check_record(record)
    return Cleared(policy, robot, checked, minimum, words)


def _load_robot(policy: Bundle, robot_name: str | None) -> RobotSpec:
    """The robot file given, or the one that ships under the name in the bundle."""
    name = robot_name or policy.contract.robot
    if robot_name is None:
        try:
            config_path(name, folder="robots")
        except ConfigError as error:
            raise FerryError(
                f"{policy.source} is for the robot {name!r}, whose file is not known here: give it "
                f"with --robot-file FILE.yaml ({error})"
            ) from error
    return load_robot(name, read_limits=False)


def require_ros() -> None:
    """Refuse to go on without a ROS 2 that works.

    Raises:
        FerryError: rclpy or a message package is not installed, or cannot be imported, or wheels of
            two distributions are.
    """
    _require_one_distribution()
    missing = [n for n in ("rclpy", *MESSAGE_PACKAGES) if not is_installed(n)]
    if missing:
        raise FerryError(
            f"ROS 2 is not installed here ({', '.join(missing)} missing): on x86-64 Linux "
            "`pip install 'ferry[ros]'` (Jazzy; or 'ferry[ros-kilted]'), elsewhere source a ROS 2 "
            "installation (Jazzy or later) before starting"
        )

    _require_import()


def _require_one_distribution() -> None:
    """Refuse wheels of two distributions: of modules with one name, some are then of either."""
    found: dict[str, str] = {}
    for distribution in WHEELS:
        for package in ("rclpy", *MESSAGE_PACKAGES):
            wheel = f"ros-{distribution}-{package.replace('_', '-')}"
            try:
                found[distribution] = f"{wheel} {importlib.metadata.version(wheel)}"
            except importlib.metadata.PackageNotFoundError:
                continue
            break
    if len(found) > 1:
        ways = " or ".join(f"'ferry[{WHEELS[d]}]' ({d.capitalize()})" for d in found)
        raise FerryError(
            f"wheels of two ROS 2 distributions are installed: {' and '.join(found.values())}; "
            "they bring the same modules, so those of one have overwritten the other's; make a new "
            f"environment and install one, {ways}"
        )


@functools.cache  # what has worked once works again, and takes half a second
def _require_import() -> None:
    """Import ROS 2 as a node will: a build for another Python is found, and cannot be imported."""
    kinds = {"std_srvs": "srv"}
    messages = [f"{package}.{kinds.get(package, 'msg')}" for package in MESSAGE_PACKAGES]
    names = ", ".join(["rclpy", *messages])
    # A process of its own: ROS 2 belongs to the nodes, and a broken library takes all down with it.
    tried = subprocess.run(
        [sys.executable, "-c", f"import {names}"],
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        check=False,
    )
    if tried.returncode == 0:
        return
    said = tried.stderr.strip().splitlines()
    code = tried.returncode
    why = said[-1] if said else f"killed by {signal.Signals(-code).name}" if code < 0 else "?"
    raise FerryError(
        f"ROS 2 is installed here but cannot be imported by {sys.executable}: {why}; is it a build "
        "for another Python, or was another workspace sourced in this terminal?"
    )


def _check_record(path: Path) -> None:
    if path.exists():
        raise FerryError(f"recording {path} exists already; give another name")
    if not path.absolute().parent.is_dir():
        raise FerryError(f"recording {path}: there is no folder {path.absolute().parent}")
    try:
        # Only trying tells: permissions say nothing about root, read-only and virtual file systems.
        if path.suffix == SUFFIX:
            path.touch(exist_ok=False)
            path.unlink()
        else:
            path.mkdir()
            path.rmdir()
    except OSError as error:
        raise FerryError(
            f"recording {path} cannot be written: {error.strerror or error}; give a name in a "
            "folder you may write to"
        ) from error
