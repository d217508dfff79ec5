"""Ferry's command line: the front door. It reads options, calls a room and prints; no more.

Rooms are imported inside the commands, so that a robot computer needs no torch and no MuJoCo.
"""

from __future__ import annotations

import logging
import signal
from pathlib import Path
from typing import Annotated, Literal

import typer
from rich.logging import RichHandler

from deploy import bench_cli, bundle_cli
from deploy.console import (
    FrontDoor,
    JsonFile,
    Overrides,
    commands_of,
    print_grid,
    print_table,
    write_json,
)
from ferry_robot import app as robot_app
from real.errors import FerryError

app = typer.Typer(
    cls=commands_of("training.study_commands", base=FrontDoor),
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode="markdown",
    help="Carries policies from simulation to real robots.",
)
bench_app = typer.Typer(
    cls=commands_of("training.bench_commands"),
    no_args_is_help=True,
    help="Measure speed. Example: `ferry bench sim`",
)
bench_cli.register(bench_app)
app.add_typer(bench_app, name="bench")
bundle_cli.register(app)
bench_cli.register_rehearse(app)
app.add_typer(robot_app, name="robot")


@app.callback()
def _setup(
    verbose: Annotated[bool, typer.Option("--verbose", "-v", help="Log what happens.")] = False,
) -> None:
    from training.progress import TERMINAL

    handler = RichHandler(console=TERMINAL, show_path=False)
    level = logging.INFO if verbose else logging.WARNING
    logging.basicConfig(level=level, format="%(name)s: %(message)s", handlers=[handler])


@app.command()
def demo(
    minutes: Annotated[
        float, typer.Option(min=0.5, max=240.0, help="Total time; less is a worse policy.")
    ] = 15.0,
    json_file: JsonFile = None,
    compare: Annotated[
        bool, typer.Option(help="Also train without randomisation: takes twice the time.")
    ] = False,
    out: Annotated[
        Path | None, typer.Option(help="Folder for everything made; else a new one in runs/.")
    ] = None,
    seed: Annotated[int, typer.Option(min=0, help="Seed of the training run.")] = 0,
) -> None:
    """Train A1 in MuJoCo, then walk it in PyBullet over ROS 2, and write report.html.

    Example: `ferry demo --minutes 5 --json demo.json`
    """
    from training.demo import run_demo
    from training.progress import bar
    from training.run_folder import new_run_dir

    folder = out or new_run_dir("demo")
    result = run_demo(folder, minutes=minutes, compare=compare, seed=seed, stage=bar)
    quiet = write_json(result.as_json(), json_file)
    title = "A1: trained in MuJoCo, walking in PyBullet over ROS 2"
    print_grid(title, result.table_header(), result.table_rows(), to_stderr=quiet)
    # Unlike a table, never wrapped: paths and commands are there to be copied.
    typer.echo(f"report: {result.report}", err=quiet)


@app.command()
def train(
    config: Annotated[str, typer.Argument(help="A task file or shipped name, e.g. a1_walk.")],
    overrides: Overrides = None,
    out: Annotated[Path | None, typer.Option(help="Run folder; else a new one in runs/.")] = None,
    resume: Annotated[bool, typer.Option(help="Go on from the run folder's newest state.")] = False,
    minutes: Annotated[float | None, typer.Option(min=0.0, help="Stop after this long.")] = None,
    steps: Annotated[int | None, typer.Option(min=1, help="Stop after as many env steps.")] = None,
    runtime: Annotated[
        Literal["serial", "ray"],
        typer.Option(help="serial: in turns, repeatable; ray: actors and learner side by side."),
    ] = "serial",
    actors: Annotated[
        int | None, typer.Option(min=1, help="Actors of the ray runtime; else CPUs - 1.")
    ] = None,
    evaluators: Annotated[
        int | None, typer.Option(min=0, help="Evaluators of the ray runtime; else 1.")
    ] = None,
    learners: Annotated[
        int | None, typer.Option(min=1, help="Learners of the ray runtime; else 1.")
    ] = None,
    address: Annotated[
        str | None, typer.Option(metavar="HOST:PORT", help="Join this Ray cluster.")
    ] = None,
) -> None:
    """Train a policy with PPO in randomised simulation.

    Example: `ferry train a1_walk --set training.seed=3 --minutes 10 --out runs/a1`, or
    `ferry train a1_walk --runtime ray --actors 4`
    """
    from training import train as room
    from training.progress import bar

    if resume and out is None:
        raise FerryError("--resume goes on with a run that exists: name its folder with --out")
    if minutes == 0.0:
        raise FerryError("--minutes is 0, expected a number > 0 (stop after this wall time)")
    crew = (("actors", actors), ("evaluators", evaluators), ("learners", learners))
    given = [f"training.runtime.{k}={v}" for k, v in crew if v is not None]
    if given and runtime == "serial":
        raise FerryError("--actors, --evaluators, --learners need the ray runtime: --runtime ray")
    run_config = room.load_any_run_config(config, [*(overrides or []), *given])
    folder = out or room.new_run_dir(run_config.name)
    with bar("training") as progress:
        result = room.train(
            run_config,
            folder,
            resume=resume,
            minutes=minutes,
            steps=steps,
            progress=progress,
            runtime=runtime,
            address=address,
        )
    print_table("Training", result.rows())
    if result.interrupted:
        typer.echo(f"go on: ferry train {folder / 'config.yaml'} --out {folder} --resume")
        raise typer.Exit(130)
    typer.echo(f"next: ferry evaluate {folder}")


@app.command()
def evaluate(
    policy: Annotated[Path, typer.Argument(help="A run folder or a bundle (.onnx).")],
    suite: Annotated[
        str,
        typer.Option(
            help="nominal, pybullet, randomized, pybullet_randomized, terrain or pybullet_terrain."
        ),
    ] = "nominal",
    episodes: Annotated[int | None, typer.Option(min=1, help="How many episodes.")] = None,
    seed: Annotated[int, typer.Option(min=0, help="Which of the report seeds.")] = 0,
    which: Annotated[
        Literal["best", "latest"], typer.Option(help="Which checkpoint of a run folder.")
    ] = "best",
    json_file: JsonFile = None,
    stamp: Annotated[
        float | None,
        typer.Option(metavar="SCORE", help="Write it into a bundle that scores this or more."),
    ] = None,
    task: bundle_cli.WorldTask = None,
    actuator: bundle_cli.WorldActuator = None,
) -> None:
    """Score a policy on seeds that training never used, through the robot's own controller code.

    Example: `ferry evaluate configs/bundles/a1_walk.onnx --suite pybullet --json score.json`
    """
    from training.evaluator import evaluate_path
    from training.progress import bar
    from training.stamping import evaluate_and_stamp

    if stamp is not None and task is not None:
        raise FerryError("--stamp says how good a bundle is in its own world: leave out --task")
    with bar(f"evaluating: {suite}") as progress:
        chosen = {"suite": suite, "episodes": episodes, "seed": seed, "progress": progress}
        chosen["actuator"] = actuator
        if stamp is None:
            result = evaluate_path(policy, which=which, task=task, **chosen)
        else:
            result = evaluate_and_stamp(policy, required=stamp, **chosen)
    to_stderr = write_json(result.as_json(), json_file)
    print_table(
        f"{policy} ({which}) on {result.suite}" if policy.is_dir() else f"{policy} on {suite}",
        result.rows(),
        to_stderr=to_stderr,
    )


@app.command()
def export(
    run: Annotated[Path, typer.Argument(help="A run folder.")],
    out: Annotated[Path, typer.Option(help="The bundle to write.")],
    which: Annotated[Literal["best", "latest"], typer.Option(help="Which checkpoint.")] = "best",
) -> None:
    """Write a run's policy as one ONNX bundle, refused if torch and ONNX Runtime differ.

    Example: `ferry export runs/a1 --out policy.onnx`
    """
    from training.export import export_run

    report = export_run(run, out, which=which)
    print_table(
        "Bundle",
        {
            "file": str(report.path),
            "size": f"{report.size_bytes / 1024:.0f} KiB",
            "sha256": report.sha256,
            "torch - ONNX": f"{report.max_error:.1e} at most, {report.observations} observations",
            **({"learned actuator": report.actuator} if report.actuator else {}),
        },
    )
    typer.echo(f"next: ferry deploy {report.path} --robot sim:pybullet --seconds 60")


@app.command()
def deploy(
    bundle: Annotated[Path, typer.Argument(help="A bundle (.onnx).")],
    robot: Annotated[
        str, typer.Option(help="sim:pybullet, sim:mujoco, or module:Class of a RobotIO.")
    ],
    seconds: Annotated[
        float | None, typer.Option(min=0.1, help="Stop after this long; else at Ctrl-C.")
    ] = None,
    record: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE.mcap", help="Log every topic here; a folder gets several files."
        ),
    ] = None,
    robot_file: Annotated[
        str | None, typer.Option(metavar="FILE", help="Your robot's YAML; else the bundle's.")
    ] = None,
    options: bundle_cli.PluginOptions = None,
    safety: Annotated[
        list[str] | None,
        typer.Option(metavar="KEY=VALUE", help="Replace a safety setting; repeatable."),
    ] = None,
    params: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help="Parameters of the nodes; a misspelt one is refused."),
    ] = None,
    trusted_keys: bundle_cli.TrustedFolder = None,
    minimum_score: Annotated[
        float | None,
        typer.Option(min=0.0, max=1.0, help="Refuse a bundle not evaluated to this or better."),
    ] = None,
    task: bundle_cli.WorldTask = None,
    actuator: bundle_cli.WorldActuator = None,
    plane: bundle_cli.OwnPlane = False,
) -> None:
    """Start the ROS 2 graph: policy, safety filter and robot. Ctrl-C stops it safely.

    Example: `ferry deploy policy.onnx --robot sim:pybullet --seconds 60 --record walk.mcap`
    """
    from deploy.sim_world import WorldWish
    from deploy.supervisor import deploy as run
    from training.progress import bar, say

    with bar(f"running {robot}") as progress:
        result = run(
            bundle,
            robot,
            seconds=seconds,
            record=record,
            on_status=say,
            progress=progress,
            robot_name=robot_file,
            options=options or [],
            safety=safety or [],
            params=params,
            trusted_keys=trusted_keys,
            minimum_score=minimum_score,
            world=WorldWish(task, actuator, plane),
        )
    print_table(f"{bundle} on {robot}", result.rows())
    if not result.ok:
        raise typer.Exit(1)


def main() -> None:
    """Entry point of the ``ferry`` command."""
    # SIGTERM as Ctrl-C: what was begun is ended, folders that were made are removed.
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    app(prog_name="ferry")


if __name__ == "__main__":
    main()
