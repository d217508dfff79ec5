"""`ferry robot new` and `check`: a first robot file, and what both engines make of one."""

from __future__ import annotations

import json
import math
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from real.errors import FerryError
from real.spec import load_robot
from sim.engine import InitialState
from sim.mujoco_engine import MujocoEngine
from sim.robot_check import check_robot
from sim.robot_new import new_robot, propose_gains

ROOT = Path(__file__).resolve().parents[2]
BODY = '<inertial><mass value="{}"/><inertia ixx="{}" iyy="{}" izz="{}"/></inertial>'


def link(name: str, mass: float = 1.0, *, inertia: float = 0.01, shape: str = "") -> str:
    inertial = BODY.format(mass, inertia, inertia, inertia) if mass else ""
    collision = f"<collision><geometry>{shape}</geometry></collision>" if shape else ""
    return f'<link name="{name}">{inertial}{collision}</link>'


LIMIT = '<limit lower="-1" upper="1.5" effort="20" velocity="9"/>'


def joint(
    name: str, parent: str, child: str, xyz: str, *, kind: str = "revolute", more: str = ""
) -> str:
    return (
        f'<joint name="{name}" type="{kind}"><parent link="{parent}"/><child link="{child}"/>'
        f'<origin xyz="{xyz}"/><axis xyz="0 1 0"/>{more or LIMIT}</joint>'
    )


def walker(*, knee: str = "") -> str:
    """A trunk on two legs of thigh, shank and a toe that is fixed to it."""
    parts = [link("trunk", 6.0, inertia=0.1, shape='<box size="0.4 0.2 0.1"/>')]
    for side, y in (("l", 0.15), ("r", -0.15)):
        parts += [
            link(f"thigh_{side}"),
            link(f"shank_{side}", 0.3, shape='<box size="0.02 0.02 0.1"/>'),
            link(f"toe_{side}", 0.05, shape='<sphere radius="0.03"/>'),
            joint(f"hip_{side}", "trunk", f"thigh_{side}", f"0 {y} 0"),
            joint(f"knee_{side}", f"thigh_{side}", f"shank_{side}", "0 0 -0.3", more=knee),
            joint(
                f"fix_{side}", f"shank_{side}", f"toe_{side}", "0 0 -0.3", kind="fixed", more=" "
            ),
        ]
    return f'<robot name="walker">{"".join(parts)}</robot>'


@pytest.fixture
def make(tmp_path: Path):
    def write(urdf: str, name: str = "mine") -> Path:
        (tmp_path / f"{name}.urdf").write_text(urdf)
        out = tmp_path / f"{name}.yaml"
        new_robot(str(tmp_path / f"{name}.urdf"), out)
        return out

    return write


def test_the_file_of_a_walker_loads_and_stands_on_what_were_found_to_be_its_feet(make):
    file = make(walker())
    robot = load_robot(file)
    assert (robot.base, robot.base_link, robot.safe_stop) == ("floating", "trunk", "damp")
    assert robot.joint_names == ("hip_l", "knee_l", "hip_r", "knee_r")
    assert robot.feet == ("toe_l", "toe_r")  # the shank ends near the ground too, but is no end
    assert check_robot(file).ok
    np.testing.assert_array_equal(robot.q_default[:2], robot.q_default[2:])  # legs look alike
    engine = MujocoEngine(robot, 1)
    try:
        engine.reset(np.arange(1), InitialState.default(robot, 1))
        feet = engine.state().foot_position_w[0]
    finally:
        engine.close()
    np.testing.assert_allclose(feet[:, 2], 0.03, atol=2e-3)  # the radius of a toe
    assert np.abs(feet[:, 0]).max() < 0.1  # below the hips
    assert 0.4 < robot.base_height_m < 0.62  # bent


def test_gains_are_those_of_an_oscillator_within_load_and_motor():
    # w = 2 pi / (10 * 0.02) = 31.416 rad/s, w^2 = 986.96
    inertia = np.array([0.1, 0.001, 1.0])
    kp, kd = propose_gains(
        inertia, np.array([1000.0, 1000.0, 50.0]), np.array([1.0, 5.0, 1.0]), control_dt_s=0.02
    )
    # by inertia; by its load, 5 / 0.1; by its motor, 50 / 0.25
    np.testing.assert_allclose(kp, [98.696, 50.0, 200.0], rtol=1e-4)
    np.testing.assert_allclose(kd, 1.4 * np.sqrt(kp * inertia))


def test_an_arm_is_fixed_holds_and_has_an_end_effector(make):
    arm = (
        link("foot", 0.0)
        + link("one")
        + link("two", 0.5)
        + link("tool", 0.0)
        + joint("j1", "foot", "one", "0 0 0.1")
        + joint("j2", "one", "two", "0 0 0.3", more=LIMIT.replace("-1", "0.5").replace("1.5", "1"))
        + joint("fix", "two", "tool", "0 0 0.2", kind="fixed", more=" ")
    )
    robot = load_robot(make(f'<robot name="arm">{arm}</robot>'))
    assert (robot.base, robot.safe_stop, robot.end_effector) == ("fixed", "hold", "tool")
    np.testing.assert_allclose(robot.q_default, [0.25, 0.75])  # the middle of the ranges
    assert robot.feet == ()


def test_what_the_file_lacks_is_asked_for_and_never_made_up(make):
    file = make(walker(knee="<dynamics damping='0.2' friction='0.1'/>"))
    text = file.read_text()
    assert "# limits: {q_min: ?, q_max: ?, dq_max: ?, tau_max: ?, source: ?}" in text
    robot = load_robot(file)
    knee = robot.joints[1]
    assert all(math.isnan(v) for v in (knee.q_min, knee.q_max, knee.dq_max, knee.tau_max))
    assert (knee.damping, knee.friction) == (0.2, 0.1)
    result = check_robot(file)
    assert not result.ok
    assert "joint 'knee_r': tau_max is not given" in result.problems[0]


def test_links_without_inertia_are_named_with_where_to_state_them(make):
    file = make(walker().replace(link("thigh_l"), link("thigh_l", inertia=0.0)))
    assert "#   thigh_l: {mass: ?, inertia:" in file.read_text()
    (problem,) = check_robot(file).problems
    assert "link 'thigh_l' moves with a mass of 1.0 kg but no inertia" in problem
    assert "links.thigh_l.inertia" in problem


def test_fingers_that_mimic_are_locked_with_their_leader(make):
    knee = '<joint name="knee_r" type="revolute">'
    robot = load_robot(make(walker().replace(knee, f'{knee}<mimic joint="knee_l"/>')))
    assert robot.joint_names == ("hip_l", "hip_r")
    assert robot.locked == (("knee_l", 0.25),)


def test_an_existing_file_is_never_written_over(make, tmp_path):
    file = make(walker())
    before = file.read_text()
    with pytest.raises(FerryError, match=r"mine\.yaml exists"):
        new_robot(str(tmp_path / "mine.urdf"), file)
    assert file.read_text() == before


def test_shipped_robots_pass_the_check_with_equal_numbers_from_both_engines():
    for name in ("a1", "panda"):
        result = check_robot(name)
        assert result.ok, result.problems
        one, two = result.engines.values()
        assert one.mass == pytest.approx(two.mass, rel=1e-6)
        assert set(one.order) == set(two.order)
        rows = result.rows()
        assert [row[0] for row in rows] == list(result.robot.joint_names)
        assert len(result.header()) == len(rows[0])
        json.dumps(result.as_json(), allow_nan=False)


def test_a_robot_that_does_not_even_load_is_a_problem_and_no_exception(tmp_path):
    result = check_robot(tmp_path / "nowhere.yaml")
    assert not result.ok
    assert "nowhere" in result.problems[0]
    assert result.summary() == {"file": str(tmp_path / "nowhere.yaml")}
    assert result.rows() == []


def test_what_the_loader_changed_is_a_note_and_not_printed(make, caplog):
    # 0.005 + 0.006 falls short of 0.0115 by 4 %
    skewed = BODY.format(1.0, 0.005, 0.006, 0.0115)
    file = make(walker().replace(link("thigh_l"), f'<link name="thigh_l">{skewed}</link>'))
    caplog.clear()
    result = check_robot(file)
    assert result.ok
    assert any("link 'thigh_l': principal moments" in note for note in result.notes)
    assert not caplog.records


@pytest.mark.slow
def test_the_command_line_writes_and_checks_and_exits_2_where_it_cannot_run(tmp_path):
    def ferry(*arguments: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [sys.executable, str(ROOT / "ferry.py"), "robot", *arguments],
            capture_output=True,
            text=True,
            cwd=tmp_path,
            timeout=120,
        )

    (tmp_path / "mine.urdf").write_text(walker(knee="<dynamics damping='0.2'/>"))
    made = ferry("new", "mine.urdf", "--out", "mine.yaml")
    assert made.returncode == 0, made.stderr
    assert "ferry robot check mine.yaml" in made.stdout
    checked = ferry("check", "mine.yaml")
    assert checked.returncode == 2
    assert "joint 'knee_l': dq_max is not given" in checked.stderr
    assert "Traceback" not in checked.stderr
    good = ferry("check", "a1", "--json", "-")
    assert good.returncode == 0
    assert json.loads(good.stdout[good.stdout.index("{") :])["ok"]
    again = ferry("new", "mine.urdf", "--out", "mine.yaml")
    assert again.returncode == 2
    assert "mine.yaml exists" in again.stderr


def test_a_file_that_xacro_has_not_been_through_is_told_so(make):
    placed = walker().replace('<origin xyz="0 0.15 0"/>', '<origin xyz="$(optenv HIP 0 0.15 0)"/>')
    with pytest.raises(FerryError, match=r"joint 'hip_l': <origin xyz=.* is for xacro to replace"):
        make(placed)
