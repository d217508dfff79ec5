"""Ant-v5 on ``mujoco.batch``: N worlds of Gymnasium's task, in one call per control step.

The model is Gymnasium's own file, and so are reward, limits and observation; see the documentation
of ``Ant-v5``. It is here to compare the speed of what is under :mod:`sim.mujoco_engine` with other
vector environments on a task that all of them have.
"""

# pyright: reportAttributeAccessIssue=false

from __future__ import annotations

from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path

import mujoco
import numpy as np
from mujoco import batch as mujoco_batch
from numpy.typing import NDArray

from real.errors import FerryError
from sim.streams import make_streams

Array = NDArray[np.float64]
Ids = NDArray[np.intp]

ACTION_DIM = 8
#: 13 of the positions (all but x and y), 14 velocities, 6 contact forces on each of 13 bodies.
OBS_DIM = 105
_SUBSTEPS = 5
_LIMIT = 1000
_HEALTHY_Z_M = (0.2, 1.0)
_START_NOISE = 0.1
_CONTROL_COST, _CONTACT_COST = 0.5, 5e-4
_STAGE_ACC = int(mujoco.mjtStage.mjSTAGE_ACC)
_STAGE_NONE = int(mujoco.mjtStage.mjSTAGE_NONE)


@dataclass(frozen=True)
class AntStep:
    """What one step gave; of worlds that ended, ``obs`` begins the next episode.

    Attributes:
        obs: ``[N, 105]``.
        reward: ``[N]``.
        terminated: ``[N]`` the torso left its heights, or numbers are not finite.
        truncated: ``[N]`` the time limit.
        final_ids: ``[n]`` worlds that ended.
        final_obs: ``[n, 105]`` last observations of what ended.
    """

    obs: Array
    reward: Array
    terminated: NDArray[np.bool_]
    truncated: NDArray[np.bool_]
    final_ids: Ids
    final_obs: Array


class AntWorlds:
    """N ants; worlds that end are reset within the step.

    Args:
        num: N.
        threads: physics threads.
        seed: of the starts.

    Raises:
        FerryError: Gymnasium is not installed.
    """

    def __init__(self, num: int, *, threads: int = 1, seed: int = 0) -> None:
        model = ant_model()
        self.num_envs = num
        self.batch = mujoco_batch.Batch(model, num, threads, persistent=True)
        self._dt = _SUBSTEPS * model.opt.timestep
        self._start = model.qpos0.copy()
        self._rngs = make_streams(seed, num)["start"]
        self._qpos, self._qvel = self.batch.bind("qpos"), self.batch.bind("qvel")
        self._ctrl = self.batch.bind("ctrl")
        # Six numbers for each body, side by side; the first body is the world.
        self._forces = self.batch.bind("cfrc_ext").reshape(num, -1)[:, 6:]
        self._clock = np.zeros(num, dtype=np.int64)
        self.reset()

    def reset(self) -> Array:
        """Begin an episode in every world; the observations ``[N, 105]``."""
        self._reset_rows(np.arange(self.num_envs))
        return self._observe()

    def step(self, actions: NDArray[np.floating]) -> AntStep:
        """Advance all worlds by 0.05 s with motor commands ``[N, 8]`` in [-1, 1]."""
        before = self._qpos[:, 0].copy()
        self._ctrl[:] = actions
        # Forces of the new state; the next step goes on from what this computes of it.
        self.batch.step(nstep=_SUBSTEPS, stage=_STAGE_ACC)
        obs = self._observe()
        height, contact = obs[:, 0], obs[:, -self._forces.shape[1] :]
        low, high = _HEALTHY_Z_M
        healthy = (height >= low) & (height <= high)
        # Most steps break nothing, and one look at all worlds says so.
        if np.count_nonzero(self.batch.warning) or not np.isfinite(np.add.reduce(obs, axis=None)):
            healthy &= np.isfinite(obs).all(axis=1)
            healthy &= ~self.batch.warning.reshape(self.num_envs, -1).any(axis=1)
        # forward + healthy - 0.5 sum a^2 - 5e-4 sum f^2
        reward = (self._qpos[:, 0] - before) / self._dt + healthy
        reward -= _CONTROL_COST * np.einsum("na,na->n", actions, actions)
        reward -= _CONTACT_COST * np.einsum("nf,nf->n", contact, contact)
        self._clock += 1
        terminated = ~healthy
        truncated = (self._clock >= _LIMIT) & healthy
        ended = np.flatnonzero(terminated | truncated)
        final = obs[ended]
        if ended.size:
            self._reset_rows(ended)
            obs[ended] = self._observe(ended)
        return AntStep(obs, reward, terminated, truncated, ended, final)

    def _observe(self, rows: Ids | None = None) -> Array:
        """``[n, 105]`` of worlds ``rows``, all if None, with the contact forces clipped."""
        at = slice(None) if rows is None else rows
        obs = np.concatenate((self._qpos[at, 2:], self._qvel[at], self._forces[at]), axis=1)
        contact = obs[:, -self._forces.shape[1] :]
        np.clip(contact, -1.0, 1.0, out=contact)
        return obs

    def _reset_rows(self, rows: Ids) -> None:
        self.batch.reset(rows, stage=_STAGE_NONE)
        positions, velocities = self._qpos.shape[1], self._qvel.shape[1]
        for row in rows.tolist():
            rng = self._rngs[row]
            noise = rng.uniform(-_START_NOISE, _START_NOISE, positions)
            self._qpos[row] = self._start + noise
            self._qvel[row] = _START_NOISE * rng.standard_normal(velocities)
        self.batch.forward(rows, stage=_STAGE_ACC)
        self._clock[rows] = 0


def ant_model() -> mujoco.MjModel:
    """Gymnasium's ant, with a sensor that makes MuJoCo compute contact forces on bodies.

    Raises:
        FerryError: Gymnasium is not installed.
    """
    found = find_spec("gymnasium")
    if found is None or found.origin is None:
        raise FerryError("the file of Ant-v5 is Gymnasium's; pip install 'ferry[train]'")
    file = Path(found.origin).parent / "envs" / "mujoco" / "assets" / "ant.xml"
    spec = mujoco.MjSpec.from_file(str(file))
    spec.body("torso").add_site(name="forces")
    spec.add_sensor(
        type=mujoco.mjtSensor.mjSENS_FORCE, objtype=mujoco.mjtObj.mjOBJ_SITE, objname="forces"
    )
    return spec.compile()
