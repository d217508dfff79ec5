"""A bundle rehearsed before it meets a robot: ``ferry rehearse``.

The policy and the safety node run in lock-step with a simulated robot, see
:mod:`deploy.rehearsal_process`. First undisturbed: every command must be the one that
:class:`~deploy.controller.Controller` gives in process for the same states. Then with delays and
losses on the way, and a table says what these did to tracking and falls, or to the poses that an
arm reaches.
"""

from __future__ import annotations

import dataclasses
import json
import math
import os
import re
import signal
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TextIO

from deploy.channel import Disturbance
from deploy.graph import choose_robot, graph
from deploy.options import read_options
from deploy.preflight import Cleared, preflight
from deploy.rehearsal_score import score_rows
from deploy.schedule import arm_tour, tour
from deploy.sim_world import WorldWish
from real.errors import FerryError

HEADER = ("", "undisturbed", "disturbed")
#: Largest difference of a target of graph and controller [rad or m].
TOLERANCE = 1e-6

_UNITS = {"s": 1.0, "ms": 1e-3, "us": 1e-6}


@dataclass(frozen=True)
class RehearsalResult:
    """What two runs showed.

    Attributes:
        plain: of the undisturbed run: ``samples``, ``max_difference`` to the controller in process
            [rad or m], ``falls``, ``stops``, ``rms_error`` of velocities by name, ``poses`` of an
            arm (:class:`~deploy.rehearsal_score.PoseScore`), messages ``lost`` and ``seconds``.
        disturbed: the same of the run with faults, or None if none were asked for.
        disturbance: which.
        world: what the simulated robot stood in at first; empty where nobody says it.
    """

    plain: Mapping[str, Any]
    disturbed: Mapping[str, Any] | None
    disturbance: Disturbance
    world: str = ""

    @property
    def equal(self) -> bool:
        """Whether graph and controller agreed in every sample of the undisturbed run."""
        return self.plain["samples"] > 0 and self.plain["max_difference"] <= TOLERANCE

    def verdict(self) -> str:
        """The comparison in one sentence."""
        apart, count = self.plain["max_difference"], self.plain["samples"]
        words = "equal to" if self.equal else "NOT equal to"
        return f"graph {words} the controller in process: {apart:.1e} at most over {count} commands"

    def as_json(self) -> dict[str, Any]:
        """Everything, for programs."""
        return {
            "equal": self.equal,
            "world": self.world,
            "disturbance": dataclasses.asdict(self.disturbance),
            "undisturbed": _finite(self.plain),
            "disturbed": None if self.disturbed is None else _finite(self.disturbed),
        }

    def table_rows(self) -> list[tuple[str, str, str]]:
        """What the faults did, a row each."""
        runs = (self.plain, self.disturbed)
        rows = [
            ("world", self.world, "-" if self.disturbed is None else "the same"),
            ("commands compared or sent", *(_text(r, "samples") for r in runs)),
            ("stops", *("-" if r is None else str(len(r["stops"])) for r in runs)),
            ("messages lost", *(_text(r, "lost") for r in runs)),
        ]
        if self.plain.get("poses") is None:  # what is bolted to its place does not fall
            rows.insert(2, ("falls", *(_text(r, "falls") for r in runs)))
        rows += [(a, b, c) for a, b, c in score_rows(self.plain, self.disturbed)]
        first = "-" if self.disturbed is None or not self.disturbed["stops"] else ""
        if not first and self.disturbed is not None:
            rows.append(("first stop", "-", str(self.disturbed["stops"][0])))
        return [(a, b, c) for a, b, c in rows[0 if self.world else 1 :]]


def rehearse(
    bundle: Path,
    robot: str,
    *,
    disturbance: Disturbance,
    seconds: float = 20.0,
    seed: int = 0,
    options: Sequence[str] = (),
    world: WorldWish | None = None,
) -> RehearsalResult:
    """Run a bundle undisturbed and, if anything is to be injected, disturbed.

    The robot stands in the world that the policy was trained in, as far as the bundle carries it.
    On terrain each robot that stands in for one that fell begins on a tile of its own draw, the
    same in both runs.

    Args:
        bundle: the policy file.
        robot: ``sim:pybullet`` or ``sim:mujoco``.
        disturbance: of every message on its way, states to the nodes and commands to the robot.
            Simulated time passes in physics steps, so a message arrives at the next one.
        seconds: simulated length of each run, a tour of the command range or, of an arm, of poses
            for 3 s each [s].
        seed: of delays and losses, and of the tile of the terrain where the robot begins.
        options: ``key=value`` for the plug-in, the value in YAML.
        world: what the robot shall stand in; the bundle's own world if None.

    Raises:
        FerryError: the robot is not simulated, or a run failed.
    """
    chosen = choose_robot(robot, options=read_options(options))
    with tempfile.TemporaryDirectory(prefix="ferry-rehearsal-") as name:
        folder = Path(name)
        wish = dataclasses.replace(world or WorldWish(), seed=seed)
        cleared = preflight(bundle, chosen, world=wish, folder=folder / "world")
        plan = _plan(bundle, robot, cleared, folder=folder, seconds=seconds, seed=seed)
        contract = cleared.bundle.contract
        described = graph(bundle, cleared.choice, robot_name=contract.robot)
        plain = _run({**plan, **dataclasses.asdict(Disturbance())}, folder, described.environment)
        disturbed = None
        if disturbance.any:
            faults = dataclasses.asdict(disturbance)
            disturbed = _run({**plan, **faults}, folder, described.environment)
    return RehearsalResult(plain, disturbed, disturbance, cleared.world)


def _plan(
    bundle: Path, robot: str, cleared: Cleared, *, folder: Path, seconds: float, seed: int
) -> dict[str, Any]:
    """What every run is told, with its files written."""
    if not cleared.choice.simulated:
        raise FerryError(
            f"robot {robot!r} is not simulated: a rehearsal stops time; expected sim:pybullet or "
            "sim:mujoco"
        )
    contract = cleared.bundle.contract
    played = (
        tour(contract.command, seconds=seconds)
        if contract.reach is None
        else arm_tour(contract, seconds=seconds)
    )
    played.save(folder / "schedule.json")
    (folder / "safety.yaml").write_text("ramp_s: 0.0\n")  # it stands in the default pose
    return {
        "bundle": str(bundle.absolute()),
        "robot": contract.robot,
        "plugin": cleared.choice.plugin,
        "options": dict(cleared.choice.options),
        "schedule": str(folder / "schedule.json"),
        "safety_settings": str(folder / "safety.yaml"),
        "report": str(folder / "report.json"),
        "seed": seed,
    }


def read_seconds(text: str, name: str) -> float:
    """A duration such as ``10ms`` or ``0.01s`` [s].

    Raises:
        FerryError: it is none.
    """
    found = re.fullmatch(r"([0-9.]+)\s*(us|ms|s)", text.strip())
    try:
        if found:
            return float(found.group(1)) * _UNITS[found.group(2)]
    except ValueError:
        pass
    raise FerryError(f"--{name} {text}: expected a duration with its unit, such as 10ms or 0.01s")


def read_share(text: str, name: str) -> float:
    """A share such as ``1%`` or ``0.01``.

    Raises:
        FerryError: it is none.
    """
    number, percent, rest = text.strip().partition("%")
    try:
        if not rest:
            return float(number) * (0.01 if percent else 1.0)
    except ValueError:
        pass
    raise FerryError(f"--{name} {text}: expected a share such as 1% or 0.01")


def _run(plan: Mapping[str, Any], folder: Path, environment: Mapping[str, str]) -> dict[str, Any]:
    file, report = folder / "plan.json", Path(plan["report"])
    file.write_text(json.dumps(dict(plan)))
    report.unlink(missing_ok=True)
    with (folder / "said.txt").open("w+") as said:
        code = _wait_for(
            [sys.executable, "-m", "deploy.rehearsal_process", str(file)],
            env={**os.environ, **environment, "ROS_LOG_DIR": str(folder / "ros")},
            stderr=said,
        )
        said.seek(0)
        last = said.read().strip().splitlines()[-3:]
    if code or not report.is_file():
        how = f"was killed by {signal.Signals(-code).name}" if code < 0 else f"ended ({code})"
        raise FerryError("rehearsal " + how + ": " + "\n  ".join(last))
    return json.loads(report.read_text())


def _wait_for(command: Sequence[str], *, env: Mapping[str, str], stderr: TextIO) -> int:
    """Run a process to its end and return its exit code; it never outlives this one.

    It ends with its standard input, which is a pipe of ours: also where we are killed.
    """
    with subprocess.Popen(
        command, env=dict(env), stdin=subprocess.PIPE, stdout=subprocess.DEVNULL, stderr=stderr
    ) as process:
        try:
            return process.wait()
        finally:
            process.kill()  # nothing, where it has ended


def _text(run: Mapping[str, Any] | None, name: str) -> str:
    return "-" if run is None else str(run[name])


def _finite(run: Mapping[str, Any]) -> dict[str, Any]:
    """JSON has no infinity: a stop of one side alone is told as null."""
    apart = run["max_difference"]
    return {**run, "max_difference": apart if math.isfinite(apart) else None}
