"""Watch a task: in MuJoCo's viewer where there is a display, else as an animation in a file.

The world is nominal and MuJoCo's. A run or a bundle acts; a task alone stands in its default pose.
"""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from deploy.bundle import read_bundle
from deploy.policy import OnnxPolicy
from real.errors import FerryError
from sim.env import VecEnv, make_env
from sim.render import Poses, render_frames, save_gif
from sim.task import EnvConfig, load_env_config
from training.contract import run_contract
from training.evaluator import TorchPolicy
from training.gym_run import load_any_run_config, require_robot
from training.run_folder import load_policy

Act = Callable[[NDArray[np.float32]], NDArray[np.floating]]

_FPS = 20.0


@dataclass(frozen=True)
class Scene:
    """What is watched.

    Attributes:
        config: the task, nominal and in MuJoCo.
        policy: who acts; None for nobody.
    """

    config: EnvConfig
    policy: TorchPolicy | OnnxPolicy | None


def load_scene(source: str, *, overrides: list[str] | None = None) -> Scene:
    """A run folder, a bundle (.onnx), or a task by name or file.

    Raises:
        FerryError: it is none of them, has no robot, or the bundle's task is not here.
    """
    path = Path(source)
    policy: TorchPolicy | OnnxPolicy | None = None
    if (path / "config.yaml").is_file():
        loaded = load_policy(path)
        policy = TorchPolicy(loaded.module, run_contract(loaded.config, loaded.meta))
        source = str(path / "config.yaml")
    elif path.suffix == ".onnx":
        policy = OnnxPolicy(read_bundle(path))
        source = policy.contract.provenance.get("task", "")
        if not source:
            raise FerryError(f"{path} does not name its task; give the task or run in its place")
    else:
        require_robot(load_any_run_config(source))
    config = load_env_config(source, ["sim.engine=mujoco", *(overrides or [])]).nominal()
    return Scene(config, policy)


def view(
    source: str,
    *,
    out: Path | None = None,
    seconds: float = 10.0,
    overrides: list[str] | None = None,
) -> Path | None:
    """Show it, or write an animation.

    Args:
        source: run folder, bundle or task.
        out: a ``.gif`` to write; None opens the viewer until it is closed.
        seconds: length of the animation [s].
        overrides: settings ``"a.b=value"`` of the task.

    Returns:
        The file, or None after the viewer was closed.

    Raises:
        FerryError: there is no display and no ``out``, nothing can render, or see
            :func:`load_scene`.
    """
    if out is not None and out.suffix.lower() != ".gif":
        raise FerryError(f"--out {out} is no animation that is written here; expected FILE.gif")
    if out is None and not has_display():
        raise FerryError(
            "there is no display to open a viewer on; write a file with --out FILE.gif"
        )
    scene = load_scene(source, overrides=overrides)
    env = make_env(scene.config, num=1, threads=1, randomize=False)
    try:
        if out is None:
            _show(env, scene)
            return None
        poses, ground = record(env, scene, seconds=seconds), scene.config.terrain
        frames = render_frames(env.robot, poses, width=480, height=360, fps=_FPS, terrain=ground)
    finally:
        env.close()
    if frames is None or save_gif(frames, out, fps=_FPS) is None:
        raise FerryError(f"{out} could not be written; `ferry -v view ...` says why")
    return out


def has_display() -> bool:
    """Whether a window can open: always but on Linux without a display server."""
    return not sys.platform.startswith("linux") or any(
        os.environ.get(name) for name in ("DISPLAY", "WAYLAND_DISPLAY")
    )


def record(env: VecEnv, scene: Scene, *, seconds: float) -> Poses:
    """Where the only world's robot was, from its start on; it begins anew when its episode ends."""
    dt = env.robot.control_dt_s
    steps = max(1, round(seconds / dt))
    states = [pose for pose, _ in zip(_poses(env, scene), range(steps), strict=False)]
    position, quat, q = (np.array(part) for part in zip(*states, strict=True))
    return Poses(
        time_s=dt * np.arange(steps, dtype=np.float64), position_w=position, quat_wb=quat, q=q
    )


def _poses(env: VecEnv, scene: Scene) -> Iterator[tuple[NDArray[np.float64], ...]]:
    """Base position, orientation and joints before every step, without an end."""
    obs, act = env.reset(0)["policy"], _acting(scene, env)
    while True:
        world = env.engine.state()
        yield world.position_w[0], world.robot.quat_wb[0], world.robot.q[0]
        result = env.step(act(obs))
        obs = result.obs["policy"]
        if result.final_ids.size:
            act = _acting(scene, env)


def _acting(scene: Scene, env: VecEnv) -> Act:
    """From observation to action, with an empty memory."""
    policy = scene.policy
    if policy is None:
        return lambda _: np.zeros((1, env.action_dim))
    if policy.contract.observation != env.observation_spec:
        raise FerryError(
            f"the policy was trained for other observations than task {scene.config.name!r} has; "
            "watch its run folder in its place"
        )
    state = policy.contract.state
    if state is None:
        return lambda obs: policy.infer(obs)[0]
    hidden = np.array([state.initial], dtype=np.float32)  # [1, H]

    def act(obs: NDArray[np.float32]) -> NDArray[np.floating]:
        nonlocal hidden
        mean, _, hidden = policy.advance(obs, hidden)
        return mean

    return act


def _show(env: VecEnv, scene: Scene) -> None:
    """MuJoCo's own viewer, in real time, until it is closed."""
    import mujoco
    import mujoco.viewer

    from sim.model import build_mujoco

    field = None if env.engine.terrain is None else env.engine.terrain.field
    built = build_mujoco(env.robot, visuals=True, field=field)
    data, base = mujoco.MjData(built.model), built.base_qpos_adr
    with mujoco.viewer.launch_passive(built.model, data) as window:
        due = time.monotonic()
        for position, quat, q in _poses(env, scene):
            if not window.is_running():
                return
            if base >= 0:
                data.qpos[base : base + 3], data.qpos[base + 3 : base + 7] = position, quat
            data.qpos[built.joint_qpos_adr] = q
            mujoco.mj_forward(built.model, data)
            window.sync()
            due += env.robot.control_dt_s
            time.sleep(max(0.0, due - time.monotonic()))
