"""How fast and how steady deployment is: ``ferry bench deploy``.

Two things are measured: the controller's tick in this process, and the graph of real nodes over
DDS with the loopback robot, at 50 and at 200 Hz. The numbers are this computer's, as busy as it is.
"""

from __future__ import annotations

import dataclasses
import gc
import os
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from deploy.bare_loop import BareLoop
from deploy.bundle import CONTRACT_KEY, DIGEST_KEY, Bundle, parse_bundle, read_bundle
from deploy.controller import Controller
from deploy.evaluation_stamp import EVALUATION_KEY
from deploy.graph import LOOPBACK, Graph, RobotChoice, graph
from deploy.modes import Mode
from deploy.onnx_file import read_onnx, with_metadata, without_metadata
from deploy.policy import OnnxPolicy
from deploy.preflight import require_ros
from deploy.processes import Supervisor
from deploy.punctual import try_priority
from deploy.safety import SafetySettings
from deploy.schedule import Schedule
from real.config import config_path, load_config, save_config
from real.errors import FerryError
from real.robot_config import RobotConfig
from real.signals import RobotState

Array = NDArray[np.float64]
#: Called with (seconds done, seconds in all, what is going on).
Progress = Callable[[float, float, str], None]

RATES = (50, 200)
BUNDLE = Path(__file__).parents[1] / "configs" / "bundles" / "a1_walk.onnx"
#: Silence that ends a run [control periods], the most that the nodes take: a pause of a computer
#: that others use, too, belongs in the numbers and must not end them.
PATIENCE = 50.0
#: A run that a longer pause ended is begun anew so often.
TRIES = 3
#: Share of a run after which memory is counted from: buffers have filled by then.
WARM = 0.3
_MIB = 1024.0 * 1024.0


def bench_deploy(
    *,
    seconds: float = 30.0,
    bundle: Path = BUNDLE,
    rates: Sequence[int] = RATES,
    priority: int = 0,
    progress: Progress | None = None,
) -> dict[str, Any]:
    """Measure; see the module.

    Args:
        seconds: length of each run of the graph [s]; the tick takes a tenth of that, 1 to 10 s,
            before them.
        bundle: the policy to run. Of its contract all but the control period is kept.
        rates: of control, some of :data:`RATES` [Hz]; a run of the graph for each, in turns.
        priority: of real time, for the nodes and the bare loop; 0: none.
        progress: called several times a second.

    Returns:
        ``tick_us`` p50 and p99 of :meth:`Controller.tick`, N = 1 [us]; ``message_to_command_ms``
        by rate: from publishing a state to receiving the command that answers it, both in the
        robot node, with policy and safety node and four DDS messages between [ms];
        ``missed_deadlines`` and ``deadlines`` of the robot's loop by rate, from the first command
        on, as all that is said of the graph; ``period_error_ms_p99`` and ``_max`` of the time
        between two steps of that loop, the worst of the rates [ms]; ``bare`` the same of a loop
        beside it that does nothing else, see :mod:`deploy.bare_loop`: ``missed`` by rate,
        ``period_error_ms_p99`` and ``_max``;
        ``rss_growth_mib`` of all nodes together after warm-up, the largest of the runs [MiB];
        ``safety_stops``: runs that a pause ended and that were begun anew; ``realtime_priority``;
        ``seconds``.

    Raises:
        FerryError: ROS 2 is not installed, a rate is none of :data:`RATES`, the priority is not
            permitted, or the graph does not run through.
    """
    chosen = _chosen(rates)
    try_priority(priority)
    require_ros()
    whole = read_bundle(bundle)
    say = progress or _say_nothing
    tick_s = min(max(0.1 * seconds, 1.0), 10.0)
    say(0.0, tick_s, "controller tick")
    tick = tick_times_us(whole, seconds=tick_s)
    runs = {rate: _run_at(whole, rate, seconds, say, priority) for rate in chosen}
    return {
        "tick_us": {"p50": _percentile(tick, 50), "p99": _percentile(tick, 99)},
        "message_to_command_ms": {
            str(rate): {part: run.robot[f"answer_{part}_ms"] for part in ("p50", "p99", "max")}
            for rate, run in runs.items()
        },
        "missed_deadlines": {str(rate): run.missed for rate, run in runs.items()},
        "deadlines": {str(rate): run.deadlines for rate, run in runs.items()},
        "period_error_ms_p99": max(r.robot["period_error_p99_ms"] for r in runs.values()),
        "period_error_ms_max": max(r.robot["period_error_max_ms"] for r in runs.values()),
        "bare": {
            "missed": {str(rate): run.bare["missed"] for rate, run in runs.items()},
            "period_error_ms_p99": max(r.bare["period_error_p99_ms"] for r in runs.values()),
            "period_error_ms_max": max(r.bare["period_error_max_ms"] for r in runs.values()),
        },
        "rss_growth_mib": max(run.growth_mib for run in runs.values()),
        "safety_stops": sum(run.stops for run in runs.values()),
        "realtime_priority": priority,
        "seconds": seconds,
    }


def _chosen(rates: Sequence[int]) -> list[int]:
    """Each rate once, in the order of :data:`RATES`."""
    wrong = [str(rate) for rate in rates if rate not in RATES]
    if wrong or not rates:
        known = " or ".join(map(str, RATES))
        raise FerryError(f"--rate {', '.join(wrong) or '(none)'}: expected {known} [Hz]")
    return [rate for rate in RATES if rate in rates]


def _say_nothing(_done: float, _total: float, _what: str) -> None:
    pass


def table_rows(result: Mapping[str, Any]) -> dict[str, str]:
    """The numbers for people, with what they are held against."""
    tick, answers = result["tick_us"], result["message_to_command_ms"]
    rows = {"controller tick p50 / p99": f"{tick['p50']:.0f} / {tick['p99']:.0f} us"}
    for rate in answers:
        missed, of = result["missed_deadlines"][rate], result["deadlines"][rate]
        p50, p99, most = (answers[rate][part] for part in ("p50", "p99", "max"))
        rows[f"state to command at {rate} Hz p50 / p99 / max"] = (
            f"{p50:.2f} / {p99:.2f} / {most:.2f} ms"
        )
        bare = result["bare"]["missed"][rate]
        rows[f"missed deadlines at {rate} Hz"] = f"{missed} of {of} (by a bare loop: {bare})"
    bare_p99, bare_max = (result["bare"][f"period_error_ms_{part}"] for part in ("p99", "max"))
    return {
        **rows,
        "period error p99 / max": (
            f"{result['period_error_ms_p99']:.3f} / {result['period_error_ms_max']:.3f} ms"
            f" (of a bare loop: {bare_p99:.3f} / {bare_max:.3f} ms)"
        ),
        "growth of memory": f"{result['rss_growth_mib']:.2f} MiB",
        "stops by long pauses": str(result["safety_stops"]),
        "real-time priority": str(result["realtime_priority"] or "none"),
        "seconds at each rate": f"{result['seconds']:g}",
    }


# ------------------------------------------------------------------ the tick


def tick_times_us(bundle: Bundle, *, seconds: float) -> Array:
    """How long ticks of a running robot take, one after the other [us].

    Each gets a state and a command of its own, near the default pose, as a robot's would be.
    """
    contract = bundle.contract
    controller = Controller(OnnxPolicy(bundle), 1, settings=SafetySettings(ramp_s=0.0))
    rng = np.random.default_rng(0)
    pose = np.array([[j.q_default for j in contract.joints]])
    period_ns = round(contract.control_dt_s * 1e9)
    command = np.zeros((1, contract.command.dim))
    rest = RobotState.zeros(1, len(contract.joints))

    def state(number: int) -> RobotState:
        near = pose + 0.01 * rng.standard_normal(pose.shape)
        stamp = np.array([period_ns * (number + 1)], dtype=np.int64)
        return dataclasses.replace(rest, stamp_ns=stamp, q=near)

    refused = controller.arm(0, dataclasses.replace(rest, q=pose))
    if refused:
        raise FerryError(f"the controller does not arm: {'; '.join(map(str, refused))}")
    times: list[int] = []
    end, number, warm = time.perf_counter() + seconds, 0, 50
    gc.collect()
    while time.perf_counter() < end or number <= warm:
        now = state(number)
        start = time.perf_counter_ns()
        tick = controller.tick(int(now.stamp_ns[0]), now, command)
        taken = time.perf_counter_ns() - start
        number += 1
        if tick.mode[0] != Mode.RUN:
            raise FerryError(f"the controller stopped: {'; '.join(map(str, tick.violations))}")
        if number > warm:
            times.append(taken)
    return np.array(times) * 1e-3


def _percentile(values: Array, percent: float) -> float:
    return float(np.percentile(values, percent))


# ------------------------------------------------------------------ the graph


@dataclass(frozen=True)
class _Run:
    """What one run of the graph showed: summaries of robot node and bare loop, memory, and how
    many runs before it a pause ended.
    """

    robot: Mapping[str, Any]
    bare: Mapping[str, float]
    growth_mib: float
    stops: int

    @property
    def missed(self) -> int:
        """Deadlines missed since the first command came."""
        return int(self.robot["missed_deadlines"] - self.robot["missed_before"])

    @property
    def deadlines(self) -> int:
        """Deadlines since then: those that were kept, and those that were missed."""
        return int(self.robot["steps"] - self.robot["steps_before"]) + self.missed


def _run_at(bundle: Bundle, rate: int, seconds: float, say: Progress, priority: int) -> _Run:
    why = ""
    for tries in range(TRIES):
        with tempfile.TemporaryDirectory(prefix="ferry-bench-") as folder:
            described = at_rate(bundle, rate, Path(folder), seconds=seconds, priority=priority)
            done = _run(described, Path(folder), BareLoop(rate, priority=priority), seconds, say)
        if isinstance(done, str):
            why = done
            continue
        return dataclasses.replace(done, stops=tries)
    raise FerryError(
        f"the graph did not run through at {rate} Hz, {TRIES} times; at last: {why}; is the "
        "computer busy with other things?"
    )


def at_rate(bundle: Bundle, rate: int, folder: Path, *, seconds: float, priority: int = 0) -> Graph:
    """The graph of a bundle and the loopback robot with a control rate of one's choice.

    Args:
        bundle: the policy; a copy with the other control period is written.
        rate: of control and of the robot's loop [Hz].
        folder: for the files that the nodes read.
        seconds: how long the operator keeps the robot running [s].
        priority: of real time, of the three nodes that have one.
    """
    contract = dataclasses.replace(bundle.contract, control_dt_s=1.0 / rate)
    bare = bundle.model_bytes
    for key in (CONTRACT_KEY, DIGEST_KEY, EVALUATION_KEY):
        bare = without_metadata(bare, key)
    data = with_metadata(bare, {CONTRACT_KEY: contract.to_json()})
    data = with_metadata(data, {DIGEST_KEY: read_onnx(data).digest})
    parse_bundle(data, source=f"{bundle.source} at {rate} Hz")
    policy = folder / "policy.onnx"
    policy.write_bytes(data)
    shipped = config_path(contract.robot, folder="robots")
    periods = [f"control_dt_s={1.0 / rate}", f"physics_dt_s={1.0 / rate}"]
    robot = folder / "robot.yaml"
    save_config(load_config(RobotConfig, shipped, overrides=periods), robot)
    settings = folder / "safety.yaml"
    settings.write_text("ramp_s: 0.0\n")
    still = np.zeros((max(1, round(seconds / 0.1)), contract.command.dim))
    schedule = folder / "schedule.json"
    Schedule(0.1, contract.command.names, still).save(schedule)
    params = folder / "params.yaml"
    params.write_text(f"/**: {{ros__parameters: {{realtime_priority: {float(priority)}}}}}\n")
    return graph(
        policy,
        RobotChoice(LOOPBACK, simulated=True, options={"period_s": 1.0 / rate}),
        robot_name=str(robot),
        schedule=schedule,
        safety_settings=settings,
        watchdog_periods=PATIENCE,
        params=params,
    )


def _run(
    described: Graph, folder: Path, beside: BareLoop, seconds: float, say: Progress
) -> _Run | str:
    """Run it once; why it did not run through, if so."""
    began, sizes = 0.0, list[tuple[float, int]]()
    with beside as bare, Supervisor(described, log_dir=folder) as run:
        while (ended := run.ended()) is None:
            happened = run.poll(0.1)
            now = time.monotonic()
            if happened is not None and happened[1].get("event") == "playing":
                began = now
                bare.count_anew()
            if began and (not sizes or now - sizes[-1][0] >= 0.5):
                sizes.append((now, _resident(run)))
            say(min(now - began, seconds) if began else 0.0, seconds, f"{beside.rate} Hz")
        node, code = ended
        failure = "" if node.finishes and code == 0 else run.why_ended(node, code)
    if failure:
        return failure
    if "robot_node" not in run.summaries:
        return "robot_node ended without its summary"
    if not bare.result:
        return "the bare loop beside it ended without saying what it saw"
    return _Run(run.summaries["robot_node"], bare.result, _growth_mib(sizes), 0)


def _resident(run: Supervisor) -> int:
    """Resident memory of all nodes that stay [bytes]; of /proc, whose second number is pages."""
    page = os.sysconf("SC_PAGE_SIZE")
    total = 0
    for node in run.graph.nodes:
        if not node.finishes:
            text = Path(f"/proc/{run.processes[node.name].pid}/statm").read_text()
            total += int(text.split()[1]) * page
    return total


def _growth_mib(sizes: list[tuple[float, int]]) -> float:
    """From the first tenth after warm-up to the last tenth, medians of both [MiB]."""
    kept = np.array([size for _, size in sizes[int(WARM * len(sizes)) :]], dtype=np.float64)
    part = max(1, kept.shape[0] // 10)
    return float(np.median(kept[-part:]) - np.median(kept[:part])) / _MIB if kept.size else 0.0
