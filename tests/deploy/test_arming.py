"""A1 in both engines, armed by the safety pipeline: the ramp ends where the policy begins."""

from __future__ import annotations

import numpy as np
import pytest

from deploy.graph import SIMULATORS
from deploy.modes import Mode
from deploy.safety import SafetySettings
from deploy.safety_pipeline import SafetyPipeline
from real.robot_io import load_plugin
from real.spec import load_robot
from tests.deploy.stand_bundle import stand_contract
from tests.extras import need

PACKAGES = {"pybullet": "pybullet", "mujoco": "mujoco"}


@pytest.mark.slow
@pytest.mark.parametrize("engine", SIMULATORS)
def test_a1_arrives_in_its_default_pose_well_within_reach_and_runs(engine):
    need(PACKAGES[engine])
    spec, contract = load_robot("a1"), stand_contract()
    settings = SafetySettings()
    pipeline = SafetyPipeline(contract, 1, settings=settings)
    robot = load_plugin(SIMULATORS[engine], spec, options={})
    try:
        state = robot.start()
        now = int(state.stamp_ns[0])
        assert pipeline.arm(now, state) == []
        steps = round(spec.control_dt_s / robot.period_s)
        off = np.zeros(12)
        while pipeline.modes.mode[0] == Mode.RAMP:
            now = int(state.stamp_ns[0])
            off = np.abs(state.q[0] - spec.q_default)
            tick = pipeline.step(now, state, None)
            for _ in range(steps):
                state = robot.exchange(tick.command)
    finally:
        robot.close()
    assert pipeline.modes.mode[0] == Mode.RUN, [str(v) for v in tick.violations]
    assert off.max() < 0.7 * settings.ramp_reach, dict(zip(spec.joint_names, off, strict=True))
