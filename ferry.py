"""Ferry's command line: the front door. It reads options, calls a room and prints; no more.

Rooms are imported inside the commands, so that a robot computer without torch and MuJoCo can run
``ferry deploy``, and ``ferry --help`` is quick.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any, Literal

import typer
from rich.logging import RichHandler
from typer.core import TyperGroup

from deploy.console import print_grid, print_table, writable, write_json
from real.errors import FerryError

#: Packages that the base install leaves out, by the pip extra that brings them.
EXTRAS: Mapping[str, str] = {
    "train": "torch mujoco onnx gymnasium safetensors tensorboard scipy matplotlib PIL",
    "pybullet": "pybullet pybullet_data",
    "ros": "rclpy builtin_interfaces diagnostic_msgs geometry_msgs nav_msgs rosgraph_msgs "
    "sensor_msgs std_msgs std_srvs",
    "cluster": "ray",
}


class _FrontDoor(TyperGroup):
    """Turns a mistake that the user can mend into one sentence and exit code 2."""

    def invoke(self, ctx: Any) -> Any:
        try:
            return super().invoke(ctx)
        except FerryError as error:
            typer.echo(f"error: {error}", err=True)
            raise typer.Exit(2) from error
        except ModuleNotFoundError as error:
            hint = missing_package((error.name or "").partition(".")[0])
            if hint is None:
                raise
            typer.echo(f"error: {hint}", err=True)
            raise typer.Exit(2) from error


def missing_package(package: str) -> str | None:
    """What to install for a package that is not there; None if no extra brings it."""
    for extra, packages in EXTRAS.items():
        if package in packages.split():
            return (
                f"{package} is not installed; this command needs it: pip install 'ferry[{extra}]'"
            )
    return None


app = typer.Typer(
    cls=_FrontDoor,
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode="markdown",
    help="Carries policies from simulation to real robots.",
)
bench_app = typer.Typer(no_args_is_help=True, help="Measure speed. Example: `ferry bench sim`")
app.add_typer(bench_app, name="bench")

Overrides = Annotated[
    list[str] | None,
    typer.Option("--set", metavar="A.B=C", help="Replace one value of the config; repeatable."),
]
JsonFile = Annotated[
    Path | None,
    typer.Option(
        "--json",
        metavar="FILE",
        help="Also write the numbers here; - is stdout.",
        callback=writable,
    ),
]


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
) -> None:
    """Train a policy with PPO in randomised simulation.

    Example: `ferry train a1_walk --set training.seed=3 --minutes 10 --out runs/a1`
    """
    from training.evaluator import selection_scorer
    from training.progress import bar
    from training.train import load_run_config, new_run_dir
    from training.train import train as run

    if resume and out is None:
        raise FerryError("--resume goes on with a run that exists: name its folder with --out")
    if minutes == 0.0:
        raise FerryError("--minutes is 0, expected a number > 0 (stop after this wall time)")
    run_config = load_run_config(config, overrides or [])
    folder = out or new_run_dir(run_config.name)
    with bar("training") as progress:
        result = run(
            run_config,
            folder,
            resume=resume,
            minutes=minutes,
            steps=steps,
            evaluate=selection_scorer(run_config),
            progress=progress,
        )
    print_table(
        "Training",
        {
            "run folder": str(result.run_dir),
            "time": f"{result.training_s:.0f} s",
            "env steps": f"{result.steps:,}",
            "best tracking": "-" if result.best_score is None else f"{result.best_score:.3f}",
        },
    )
    if result.interrupted:
        typer.echo(f"go on: ferry train {folder / 'config.yaml'} --out {folder} --resume")
        raise typer.Exit(130)
    typer.echo(f"next: ferry evaluate {folder} --suite pybullet")


@app.command()
def evaluate(
    policy: Annotated[Path, typer.Argument(help="A run folder or a bundle (.onnx).")],
    suite: Annotated[str, typer.Option(help="nominal (MuJoCo) or pybullet.")] = "nominal",
    episodes: Annotated[int | None, typer.Option(min=1, help="How many episodes.")] = None,
    seed: Annotated[int, typer.Option(min=0, help="Which of the report seeds.")] = 0,
    which: Annotated[
        Literal["best", "latest"], typer.Option(help="Which checkpoint of a run folder.")
    ] = "best",
    json_file: JsonFile = None,
) -> None:
    """Score a policy on seeds that training never used, through the robot's own controller code.

    Example: `ferry evaluate configs/bundles/a1_walk.onnx --suite pybullet --json score.json`
    """
    from training.evaluator import evaluate_path
    from training.progress import bar

    with bar(f"evaluating: {suite}") as progress:
        result = evaluate_path(
            policy, which=which, suite=suite, episodes=episodes, seed=seed, progress=progress
        )
    to_stderr = write_json(result.as_json(), json_file)
    tracking, falls = result.tracking, result.falls_per_minute
    print_table(
        f"{policy} ({which}) on {result.suite}" if policy.is_dir() else f"{policy} on {suite}",
        {
            "episodes": str(result.episodes),
            "seed": str(result.seed),
            "tracking (95 %)": f"{tracking.mean:.3f} [{tracking.low:.3f}, {tracking.high:.3f}]",
            "falls per minute (95 %)": f"{falls.mean:.2f} [{falls.low:.2f}, {falls.high:.2f}]",
            "commands clamped": f"{100.0 * result.clamped_share:.1f} %",
        },
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
        },
    )
    typer.echo(f"next: ferry deploy {report.path} --robot sim:pybullet --seconds 60")


@app.command()
def inspect(
    bundle: Annotated[Path, typer.Argument(help="A bundle (.onnx).")],
) -> None:
    """Show what a bundle was trained for, after verifying it.

    Example: `ferry inspect configs/bundles/a1_walk.onnx`
    """
    from deploy.bundle import read_bundle

    read = read_bundle(bundle)
    contract, command = read.contract, read.contract.command
    ranges = zip(command.names, command.low, command.high, command.units, strict=True)
    print_table(
        str(bundle),
        {
            "robot": contract.robot,
            "control period": f"{contract.control_dt_s} s",
            "joints": ", ".join(contract.joint_names),
            "observation": ", ".join(f"{t.name}[{t.dim}]" for t in contract.observation.terms),
            "action": f"{contract.action.kind}[{contract.action.dim}]",
            "takes": ", ".join(f"{n} {low:g}..{high:g} {u}" for n, low, high, u in ranges),
            "policy version": str(contract.policy_version),
            "commit": contract.git_sha,
            "config hash": contract.config_hash,
            **contract.provenance,
            "sha256": read.sha256,
        },
    )


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
        Path | None, typer.Option(metavar="FILE.mcap", help="Log every topic here.")
    ] = None,
    robot_file: Annotated[
        str | None, typer.Option(metavar="FILE", help="Your robot's YAML; else the bundle's.")
    ] = None,
    options: Annotated[
        list[str] | None,
        typer.Option("--option", metavar="KEY=VALUE", help="For your RobotIO class; repeatable."),
    ] = None,
    safety: Annotated[
        list[str] | None,
        typer.Option(metavar="KEY=VALUE", help="Replace a safety setting; repeatable."),
    ] = None,
) -> None:
    """Start the ROS 2 graph: policy, safety filter and robot. Ctrl-C stops it safely.

    Example: `ferry deploy policy.onnx --robot sim:pybullet --seconds 60 --record walk.mcap`
    """
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
        )
    print_table(f"{bundle} on {robot}", result.rows())
    if not result.ok:
        raise typer.Exit(1)


@bench_app.command("sim")
def bench_sim(
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON on stdout.")] = False,
    config: Annotated[str, typer.Option(help="The task to run.")] = "a1_walk",
    worlds: Annotated[int | None, typer.Option(min=1, help="Parallel worlds.")] = None,
    threads: Annotated[int | None, typer.Option(min=1, help="Physics threads.")] = None,
    seconds: Annotated[float, typer.Option(min=1.0, help="About how long to measure.")] = 20.0,
) -> None:
    """Control steps per second of the full env, and of raw mujoco.batch replaying the same run.

    Example: `ferry bench sim --json`
    """
    from training.bench import bench_sim as run
    from training.progress import bar

    with bar("benchmark") as progress:
        result = run(config, worlds=worlds, threads=threads, seconds=seconds, progress=progress)
    if as_json:
        print(json.dumps(result))
        return
    shown = {k: f"{v:,.3f}" if isinstance(v, float) else str(v) for k, v in result.items()}
    print_table("Simulation speed", shown)


def main() -> None:
    """Entry point of the ``ferry`` command."""
    app(prog_name="ferry")


if __name__ == "__main__":
    main()
