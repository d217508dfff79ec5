"""``ferry robot``: a robot file from a description, and what both engines make of it."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from deploy.console import print_grid, print_table, writable, write_json

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
    json_file: Annotated[
        Path | None,
        typer.Option(
            "--json", metavar="FILE", help="Also write the numbers; - is stdout.", callback=writable
        ),
    ] = None,
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
