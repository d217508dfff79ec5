"""``ferry robot``: a robot file from a description, and what both engines make of it."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from deploy.console import JsonFile, print_grid, print_table, write_json

app = typer.Typer(
    no_args_is_help=True, help="Bring your own robot. Example: `ferry robot check a1`"
)


@app.command()
def new(
    description: Annotated[str, typer.Argument(help="URDF or MJCF: a file or menagerie:NAME.")],
    out: Annotated[Path, typer.Option(help="The robot file to write.")],
    name: Annotated[str | None, typer.Option(help="Of the robot; else that of --out.")] = None,
) -> None:
    """Write a commented robot file: base, joints, limits, feet, default pose and gains proposed.

    Example: `ferry robot new my.urdf --out configs/robots/my.yaml`
    """
    from sim.robot_new import new_robot

    found = new_robot(description, out, name=name)
    rows = {
        "file": str(out),
        "base": f"{'floating' if found.floating else 'fixed'}: {found.why}",
        "joints": ", ".join(found.spec.joint_names),
        "feet": ", ".join(found.feet) or "none",
    }
    if found.locked:
        rows["locked"] = ", ".join(found.locked)
    print_table("Robot file", rows)
    typer.echo(f"next: ferry robot check {out}")


@app.command()
def check(
    robot: Annotated[str, typer.Argument(help="A robot file or shipped name, e.g. a1.")],
    json_file: JsonFile = None,
) -> None:
    """Show what both engines make of a robot file, and what is missing; exit 2 if it cannot run.

    Example: `ferry robot check configs/robots/my.yaml`
    """
    from sim.robot_check import check_robot

    result = check_robot(robot)
    quiet = write_json(result.as_json(), json_file)
    print_table(robot, result.summary(), to_stderr=quiet)
    if result.engines:
        print_grid("Joints", result.header(), result.rows(), to_stderr=quiet)
    for note in result.notes:
        typer.echo(f"note: {note}", err=True)
    for problem in result.problems:
        typer.echo(f"error: {problem}", err=True)
    if not result.ok:
        raise typer.Exit(2)


@app.command()
def actuator(
    network: Annotated[Path, typer.Argument(help="ONNX file of a learned actuator.")],
    robot: Annotated[str, typer.Argument(help="A robot file or shipped name, e.g. a1.")],
) -> None:
    """Show what a learned actuator brakes with, and refuse one of another robot (exit 2).

    Example: `ferry robot actuator a1_motors.onnx a1`
    """
    from real.spec import load_robot
    from sim.actuator_check import ActuatorReport
    from sim.actuator_file import load_actuators

    spec = load_robot(robot)
    report = ActuatorReport(load_actuators(network, spec), spec)
    print_table("Actuator", report.summary())
    print_grid("Joints", report.header(), report.rows())


@app.command()
def fit(
    robot: Annotated[str, typer.Argument(help="A robot file or shipped name, e.g. a1.")],
    logs: Annotated[list[Path], typer.Argument(help="MCAP logs with joint states and commands.")],
    out: Annotated[Path, typer.Option(help="The ONNX file to write.")],
    history: Annotated[int, typer.Option(min=1, help="Samples that a torque depends on.")] = 6,
    linear: Annotated[
        bool, typer.Option("--linear", help="A filter for each joint, no network for all.")
    ] = False,
) -> None:
    """Fit a learned actuator to logs of the robot; train with it by `actuators.network: FILE`.

    Example: `ferry robot fit a1 walk.mcap --out a1_motors.onnx`
    """
    from real.log import read_log
    from real.spec import load_robot
    from sim.actuator_check import ActuatorReport
    from sim.actuator_file import load_actuators
    from sim.actuator_samples import COMMANDS, STATES, read_samples

    spec, topics = load_robot(robot), [STATES, COMMANDS]
    samples = [s for log in logs for s in read_samples(read_log(log, topics=topics), spec)]
    if linear:
        from sim.actuator_export import fit_linear

        found = fit_linear(samples, history=history)
    else:
        from training.actuator_fit import fit_network

        found = fit_network(samples, history=history)
    seconds = sum(len(piece.q) for piece in samples) * spec.physics_dt_s
    source = f"{seconds:.0f} s of {', '.join(log.name for log in logs)}"
    found.write(spec, out, source=source)
    report = ActuatorReport(load_actuators(out, spec), spec, explained=found.explained)
    print_table("Actuator", report.summary())
    print_grid("Joints", report.header(), report.rows())
