"""``ferry bench deploy``: options in, numbers out; needs no simulator and no learner."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated

import typer

from deploy.console import print_table


def register(bench: typer.Typer) -> None:
    """Add the commands to the group ``ferry bench``."""
    bench.command("deploy")(bench_deploy)


def bench_deploy(
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON on stdout.")] = False,
    seconds: Annotated[
        float, typer.Option(min=1.0, help="Length of each run: at 50 Hz, then at 200 Hz.")
    ] = 30.0,
    bundle: Annotated[
        Path | None, typer.Option(help="A bundle (.onnx); else the A1 policy that ships.")
    ] = None,
) -> None:
    """Time of a controller tick; latency, deadlines and memory of the ROS 2 graph at 50 and 200 Hz.

    Example: `ferry bench deploy --json --seconds 600`
    """
    from deploy.bench import BUNDLE, table_rows
    from deploy.bench import bench_deploy as run

    result = run(seconds=seconds, bundle=bundle or BUNDLE)
    if as_json:
        typer.echo(json.dumps(result))
        return
    print_table("Deployment; goals are in the README", table_rows(result))
