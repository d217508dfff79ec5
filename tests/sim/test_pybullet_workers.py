"""PyBullet worlds in processes of their own: equal to worlds here; never a hang or an orphan."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from real.errors import FerryError
from real.spec import RobotSpec, load_robot
from sim.engine import InitialState
from sim.pybullet_block import state_arrays
from sim.pybullet_engine import PyBulletEngine

ROOT = Path(__file__).resolve().parents[2]
N = 5
OFFSETS = np.array([[0.1, 0.2], [-0.1, 0.3]])


@pytest.fixture(scope="module")
def robot() -> RobotSpec:
    """Cart-pole: quick to load."""
    return load_robot("cartpole")


@pytest.fixture(scope="module")
def shared(robot) -> Iterator[PyBulletEngine]:
    """As `workers`, for tests after which all is well; none relies on where it stands."""
    engine = PyBulletEngine(robot, N, processes=2, delay_max_s=0.02, timeout_s=20.0)
    yield engine
    engine.close()


@pytest.fixture
def workers(robot) -> Iterator[PyBulletEngine]:
    """Five worlds, two in one process and three in another."""
    engine = PyBulletEngine(robot, N, processes=2, delay_max_s=0.02, timeout_s=20.0)
    yield engine
    engine.close()


def gone(pid: int, *, within_s: float = 20.0) -> bool:
    """Whether a process ends, or only its entry for whoever waits for it is left."""
    deadline = time.monotonic() + within_s
    while time.monotonic() < deadline:
        try:
            if Path(f"/proc/{pid}/stat").read_text().split()[2] == "Z":
                return True
        except (FileNotFoundError, ProcessLookupError):
            return True
        time.sleep(0.02)
    return False


def live(engine: PyBulletEngine, steps: range) -> None:
    """Drive, push, reset and change worlds, each otherwise than the others."""
    robot = engine.robot
    for step in steps:
        target = 0.1 * np.sin(step + np.arange(N))[:, None]
        engine.step(np.tile(target, (1, len(robot.actuated))))
        if step % 4 == 1:
            rows = np.array([4, 1])  # of both processes, not in order
            start = InitialState.default(robot, 2)
            engine.set_parameter("kp_scale", rows, np.array([[0.9], [1.1]]))
            engine.set_parameter("delay_s", rows, np.array([[0.02], [0.01]]))
            engine.reset(rows, replace(start, q=start.q + OFFSETS))
        if step % 4 == 3:  # within an episode
            engine.set_parameter("damping", np.array([0, 3]), np.array([[0.1, 0.2], [0.3, 0.0]]))


def assert_equal(left: PyBulletEngine, right: PyBulletEngine) -> None:
    for name, values in state_arrays(left.state()).items():
        np.testing.assert_array_equal(values, state_arrays(right.state())[name], err_msg=name)


@pytest.mark.slow
def test_worlds_are_the_same_in_any_number_of_processes_and_resume_in_another(robot, shared):
    here = PyBulletEngine(robot, N, delay_max_s=0.02)
    shared.load_state_dict(here.state_dict())
    for engine in (shared, here):
        live(engine, range(10))
    assert_equal(shared, here)
    kept = shared.state_dict()
    assert all(isinstance(v, np.ndarray) and v.dtype != object for v in kept.values())
    for engine in (shared, here):
        live(engine, range(10, 20))
    assert_equal(shared, here)
    assert np.ptp(here.state().robot.q[:, 0]) > 0.01  # the worlds are not one another
    here.load_state_dict(kept)
    live(here, range(10, 20))
    assert_equal(shared, here)
    here.close()


def test_the_state_just_after_loading_is_the_one_that_was_saved(shared):
    live(shared, range(6))
    before = {name: v.copy() for name, v in state_arrays(shared.state()).items()}
    kept = shared.state_dict()
    live(shared, range(6, 9))
    shared.load_state_dict(kept)
    for name, values in state_arrays(shared.state()).items():
        np.testing.assert_array_equal(values, before[name], err_msg=name)


def test_a_state_of_another_size_is_refused(robot, shared):
    with pytest.raises(FerryError, match=r"shape \(3, .*expected \(5, .*5 PyBullet worlds"):
        shared.load_state_dict(PyBulletEngine(robot, 3, delay_max_s=0.02).state_dict())
    with pytest.raises(FerryError, match="shape None; expected"):
        shared.load_state_dict({"state": np.zeros(3)})  # MuJoCo's has no such part


def test_a_worker_that_dies_is_named_with_its_worlds_and_takes_the_others_along(workers):
    first, second = workers.pids
    os.kill(second, signal.SIGKILL)
    message = r"PyBullet worker 1 \(worlds 3 to 4\) died during 'run', killed by SIGKILL"
    with pytest.raises(FerryError, match=message):
        live(workers, range(3))
    assert gone(first) and gone(second)
    with pytest.raises(FerryError, match="used after close"):
        live(workers, range(1))


@pytest.mark.slow
def test_a_worker_that_hangs_is_named_and_ended(robot):
    engine = PyBulletEngine(robot, 3, processes=1, timeout_s=1.0)
    (pid,) = engine.pids
    os.kill(pid, signal.SIGSTOP)
    with pytest.raises(FerryError, match=r"worlds 0 to 2\) did not answer to 'run' within 1 s"):
        engine.step(np.zeros((3, 1)))
    assert gone(pid)


def test_closing_leaves_no_process_and_twice_is_fine(workers):
    pids = workers.pids
    assert len(pids) == 2
    workers.close()
    workers.close()
    assert workers.pids == []
    assert all(gone(pid) for pid in pids)


@pytest.mark.slow
def test_what_a_worker_refuses_reads_as_if_it_had_happened_here(robot, tmp_path):
    # Of 1.1 kg the cart loses all its speed within a step of 2 us.
    joints = tuple(replace(j, kd=5e5 if j.actuated else j.kd) for j in robot.joints)
    heavy = replace(robot, joints=joints)
    with pytest.raises(FerryError) as here:
        PyBulletEngine(heavy, 2)
    with pytest.raises(FerryError) as there:
        PyBulletEngine(heavy, 2, processes=1)
    assert str(there.value) == str(here.value)
    assert "joint 'slider_to_cart': damping gain 500000" in str(here.value)


@pytest.mark.slow
def test_workers_end_when_their_owner_is_killed_also_in_the_middle_of_a_call():
    script = (
        "import numpy as np\nfrom real.spec import load_robot\n"
        "from sim.pybullet_engine import PyBulletEngine\n"
        "engine = PyBulletEngine(load_robot('cartpole'), 2, processes=2)\n"
        "print(*engine.pids, flush=True)\n"
        "while True:\n    engine.step(np.zeros((2, 1)))\n"
    )
    owner = subprocess.Popen(
        [sys.executable, "-c", script],
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        stdout=subprocess.PIPE,
        text=True,
    )
    assert owner.stdout is not None
    pids = [int(word) for word in owner.stdout.readline().split()]
    owner.kill()
    owner.wait()
    owner.stdout.close()
    assert len(pids) == 2
    assert all(gone(pid) for pid in pids)


def test_workers_leave_an_interrupt_to_their_owner(shared):
    for pid in shared.pids:
        for number in (signal.SIGINT, signal.SIGTERM):
            os.kill(pid, number)
    live(shared, range(2))  # they answer
