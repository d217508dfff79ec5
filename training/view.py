"""Watch a task: in MuJoCo's viewer where there is a display, else as an animation in a file.

The world is nominal and MuJoCo's. A run or a bundle acts; a task alone stands in its default pose.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from deploy.bundle import Bundle, read_bundle
from deploy.policy import OnnxPolicy
from real.config import Config
from real.contract import RobotContract
from real.errors import FerryError
from sim.env import VecEnv, make_env
from sim.render import Poses, render_frames, save_gif
from sim.task import EnvConfig, load_env_config
from training.bundle_world import bundle_world, require_bundle
from training.contract import run_contract
from training.gym_run import load_any_run_config, require_robot
from training.progress import ProgressFn, silent
from training.run_folder import load_policy
from training.torch_policy import TorchPolicy
from training.window import Window, why_no_window

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


@contextlib.contextmanager
def load_scene(
    source: str,
    *,
    overrides: list[str] | None = None,
    task: str | None = None,
    actuator: Path | None = None,
) -> Iterator[Scene]:
    """A run folder, a bundle (.onnx), or a task by name or file.

    A bundle is watched in the world that it was trained in, as far as it says it; rewards and
    lengths of episodes, which nobody sees, are those of the task that it names.

    Args:
        source: which of them.
        overrides: settings ``"a.b=value"`` of the task.
        task: of a bundle, see :func:`training.bundle_world.bundle_world`.
        actuator: of a bundle, as well.

    Yields:
        What is watched; envs of it are made before the context closes.

    Raises:
        FerryError: it is none of them, has no robot, or the bundle's task is not here.
    """
    path = Path(source)
    settings = ["sim.engine=mujoco"]
    if path.suffix != ".onnx":
        require_bundle(path, task=task, actuator=actuator)
        policy: TorchPolicy | None = None
        if (path / "config.yaml").is_file():
            loaded = load_policy(path)
            policy = TorchPolicy(loaded.module, run_contract(loaded.config, loaded.meta))
            source = str(path / "config.yaml")
        else:
            require_robot(load_any_run_config(source))
        yield Scene(load_env_config(source, [*settings, *(overrides or [])]).nominal(), policy)
        return
    bundle = read_bundle(path)
    named = task or bundle.contract.provenance.get("task", "")
    if not named:
        raise FerryError(f"{path} does not name its task; name it with --task")
    with bundle_world(bundle, task=task, actuator=actuator) as world:
        if world is not None:
            used = world.actuators
            settings += [
                "curriculum=null",
                f"start={world.start.model_dump_json()}",
                "randomize={}",
                "sensors=null",
                f"terrain={_json(world.terrain)}",
                f"actuators={_json(used)}",
            ]
        config = _task_of(bundle, named, [*settings, *(overrides or [])])
        yield Scene(config.nominal(), OnnxPolicy(bundle))


def _task_of(bundle: Bundle, named: str, overrides: list[str]) -> EnvConfig:
    try:
        return load_env_config(named, overrides)
    except FerryError as error:
        raise FerryError(
            f"{bundle.source} is of task {named!r}, which cannot be read here (name it with "
            f"--task): {error}"
        ) from error


def _json(section: Config | None) -> str:
    """A section as the value of an override; levels follow a success that nobody measures here."""
    if section is None:
        return "null"
    return section.model_dump_json(exclude={"curriculum"})


def view(
    source: str,
    *,
    out: Path | None = None,
    seconds: float = 10.0,
    overrides: list[str] | None = None,
    task: str | None = None,
    actuator: Path | None = None,
    progress: ProgressFn = silent,
    say: Callable[[str], None] = lambda _: None,
) -> Path | None:
    """Show it in a window, or write an animation where there is no display.

    Args:
        source: run folder, bundle or task.
        out: a ``.gif`` to write; None opens the viewer until it is closed, or writes ``view.gif``
            where no window opens.
        seconds: length of the animation [s].
        overrides: settings ``"a.b=value"`` of the task.
        task: of a bundle, see :func:`training.bundle_world.bundle_world`.
        actuator: of a bundle, as well.
        progress: told how much of the animation is done.
        say: told why there is no window.

    Returns:
        The file, or None after the viewer was closed.

    Raises:
        FerryError: nothing can render, the file cannot be written, or see :func:`load_scene`.
    """
    if out is not None and out.suffix.lower() != ".gif":
        raise FerryError(f"--out {out} is no animation that is written here; expected FILE.gif")
    with load_scene(source, overrides=overrides, task=task, actuator=actuator) as scene:
        env = make_env(scene.config, num=1, threads=1, randomize=False)
    try:
        if out is None:
            reason = why_no_window()
            if not reason:
                _show(env, scene)
                return None
            out = _free_name()
            say(f"{reason}: writing {out} in place of a window")
        poses = record(env, scene, seconds=seconds, progress=progress)
        ground = scene.config.terrain
        progress(0, 0, "drawing")
        frames = render_frames(env.robot, poses, width=480, height=360, fps=_FPS, terrain=ground)
    finally:
        env.close()
    if frames is None or save_gif(frames, out, fps=_FPS) is None:
        raise FerryError(f"{out} could not be written; `ferry -v view ...` says why")
    progress(1, 1, "written")
    return out


def _free_name() -> Path:
    """``view.gif``, or the first of ``view-2.gif``... that does not exist."""
    path, number = Path("view.gif"), 1
    while path.exists():
        number += 1
        path = Path(f"view-{number}.gif")
    return path


def record(env: VecEnv, scene: Scene, *, seconds: float, progress: ProgressFn = silent) -> Poses:
    """Where the only world's robot was, from its start on; it begins anew when its episode ends."""
    dt = env.robot.control_dt_s
    steps = max(1, round(seconds / dt))
    states: list[tuple[NDArray[np.float64], ...]] = []
    for pose, step in zip(_poses(env, scene), range(steps), strict=False):
        states.append(pose)
        progress(step + 1, steps, "acting")
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
    policy.contract.require_match(RobotContract.from_spec(env.robot))
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
    terrain = env.engine.terrain
    with Window(env.robot, field=None if terrain is None else terrain.field) as window:
        for position, quat, q in _poses(env, scene):
            if not window.show(position, quat, q, period_s=env.robot.control_dt_s):
                return
