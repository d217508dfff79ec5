"""The contract of a training run's policy: written down once, from the run's own configuration."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from real.contract import PolicyContract
from real.memory import HiddenState
from real.spec import load_robot
from sim.commands import command_limits
from sim.pose_commands import reach_of
from sim.task import action_spec, observation_spec
from sim.world_config import training_world
from training.gym_run import require_robot
from training.run_config import RunConfig


def run_contract(config: RunConfig, meta: Mapping[str, Any]) -> PolicyContract:
    """The contract of a run's policy.

    Args:
        config: the run's configuration.
        meta: ``config_hash``, ``git_sha``, ``version``, and what goes into the provenance:
            ``command``, ``seed``, ``step``.

    Raises:
        FerryError: the run is of a Gymnasium env, which has no robot, or its learned actuator
            cannot be read.
    """
    require_robot(config)
    robot = load_robot(config.robot)
    gru = config.training.network.gru
    told = {key: str(meta[key]) for key in ("command", "seed", "step", "training_s") if key in meta}
    return PolicyContract.of_robot(
        robot,
        observation=observation_spec(config, robot),
        action=action_spec(config, robot),
        command=command_limits(config.command),
        reach=reach_of(config.command, robot),
        config_hash=str(meta.get("config_hash", "")),
        git_sha=str(meta.get("git_sha", "")),
        policy_version=int(meta.get("version", 0)),
        provenance={"task": config.name, **told},
        state=None if gru is None else HiddenState.zeros(gru.hidden),
        world=training_world(config),
    )
