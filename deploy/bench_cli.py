"""``ferry bench deploy`` and ``ferry rehearse``: no simulator and no learner is imported here."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated

import typer

from deploy import bundle_cli
from deploy.console import AsJson, JsonFile, print_grid, print_table, write_json


def register(bench: typer.Typer) -> None:
    """Add the commands to the group ``ferry bench``."""
    bench.command("deploy")(bench_deploy)


def register_rehearse(app: typer.Typer) -> None:
    """Add ``ferry rehearse``."""
    app.command()(rehearse)


def bench_deploy(
    as_json: AsJson = False,
    seconds: Annotated[
        float, typer.Option(min=1.0, help="Length of each run: at 50 Hz, then at 200 Hz.")
    ] = 30.0,
    rate: Annotated[
        list[int] | None, typer.Option(help="Only at 50 or 200 Hz; may be given twice.")
    ] = None,
    bundle: Annotated[
        Path | None, typer.Option(help="A bundle (.onnx); else the A1 policy that ships.")
    ] = None,
    realtime: Annotated[
        int,
        typer.Option(min=0, max=98, metavar="PRIORITY", help="SCHED_FIFO for the nodes; 0: none."),
    ] = 0,
) -> None:
    """Time of a controller tick; latency, deadlines and memory of the ROS 2 graph at 50 and 200 Hz.

    Example: `ferry bench deploy --json --seconds 600`
    """
    from deploy.bench import BUNDLE, RATES, table_rows
    from deploy.bench import bench_deploy as run

    result = run(seconds=seconds, bundle=bundle or BUNDLE, rates=rate or RATES, priority=realtime)
    if as_json:
        typer.echo(json.dumps(result))
        return
    print_table("Deployment; goals are in the README", table_rows(result))


def rehearse(
    bundle: Annotated[Path, typer.Argument(help="A bundle (.onnx).")],
    robot: Annotated[str, typer.Option(help="sim:pybullet or sim:mujoco.")] = "sim:pybullet",
    latency: Annotated[str, typer.Option(help="Mean delay of each message, e.g. 10ms.")] = "0ms",
    jitter: Annotated[str, typer.Option(help="The delay varies by up to this.")] = "0ms",
    loss: Annotated[str, typer.Option(help="Share of messages lost, e.g. 1%.")] = "0%",
    seconds: Annotated[float, typer.Option(min=1.0, help="Length of each run.")] = 20.0,
    seed: Annotated[int, typer.Option(min=0, help="Of delays, losses, the terrain's tile.")] = 0,
    json_file: JsonFile = None,
    options: bundle_cli.PluginOptions = None,
    task: bundle_cli.WorldTask = None,
    actuator: bundle_cli.WorldActuator = None,
    plane: bundle_cli.OwnPlane = False,
) -> None:
    """Run the ROS 2 nodes in lock-step with a simulator: compared, then with faults injected.

    Example: `ferry rehearse policy.onnx --robot sim:pybullet --latency 10ms --jitter 3ms --loss 1%`
    """
    from deploy.channel import Disturbance
    from deploy.rehearse import HEADER, read_seconds, read_share
    from deploy.rehearse import rehearse as run
    from deploy.sim_world import WorldWish

    how = Disturbance(
        read_seconds(latency, "latency"), read_seconds(jitter, "jitter"), read_share(loss, "loss")
    )
    result = run(
        bundle,
        robot,
        disturbance=how,
        seconds=seconds,
        seed=seed,
        options=options or [],
        world=WorldWish(task, actuator, plane),
    )
    quiet = write_json(result.as_json(), json_file)
    print_grid(f"{bundle} on {robot}", HEADER, result.table_rows(), to_stderr=quiet)
    if not result.equal:
        typer.echo(f"error: {result.verdict()}", err=True)
        raise typer.Exit(1)
    typer.echo(result.verdict(), err=quiet)
