"""``ferry plan``, ``ferry ablate``, ``ferry view``: options in, text out.

Imported when one is asked for.
"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from deploy import bundle_cli
from deploy.console import AsJson, Overrides, print_table, stdout_if, write_json

app = typer.Typer(rich_markup_mode="markdown")


@app.command()
def plan(
    cores: Annotated[int, typer.Option(min=2, help="CPU cores of the cluster.")],
    gpus: Annotated[int, typer.Option(min=0, help="GPUs of the cluster.")] = 0,
    config: Annotated[str, typer.Option(help="The task to plan for.")] = "a1_walk",
    overrides: Overrides = None,
    rates: Annotated[
        list[Path] | None,
        typer.Option(
            metavar="FILE",
            help="Rates: JSON of `ferry bench learner`, `async` or by hand; repeatable. The rest "
            "is measured here.",
        ),
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Simulate asynchronous training on a cluster: throughput, lag, and what limits it.

    Example: `ferry plan --cores 6144 --gpus 8`, or, after `ferry bench learner --json > gpu.json`
    on a machine with a GPU, `ferry plan --cores 6144 --gpus 8 --rates gpu.json`
    """
    from training.plan import plan as run
    from training.progress import bar
    from training.rates import gather_rates
    from training.run_config import load_run_config

    run_config = load_run_config(config, overrides or [])
    with bar("planning") as progress:
        measured = gather_rates(rates or [], run_config, progress=progress)
        result = run(cores, gpus, config=run_config, rates=measured)
    quiet = write_json(result.as_json(), stdout_if(as_json))
    print_table(f"{config} on {cores} cores and {gpus} GPUs", result.rows(), to_stderr=quiet)


@app.command()
def ablate(
    config: Annotated[str, typer.Argument(help="A task file or shipped name.")],
    over: Annotated[Path, typer.Option(help="The grid, e.g. configs/ablations/staleness.yaml.")],
    seeds: Annotated[int, typer.Option(min=1, help="Runs of every cell.")] = 3,
    out: Annotated[Path, typer.Option(help="Folder of the runs.")] = Path("runs/ablation"),
    report: Annotated[Path | None, typer.Option(help="Report; else report.md in --out.")] = None,
    overrides: Overrides = None,
) -> None:
    """Train every cell of a grid and report the differences; go on where it stopped.

    Example: `ferry ablate cartpole_balance --over configs/ablations/staleness.yaml --seeds 5`
    """
    from training.ablate import ablate as run
    from training.progress import bar

    with bar("ablation") as progress:
        done = run(
            config,
            over,
            seeds=seeds,
            out=out,
            report=report,
            overrides=overrides or [],
            progress=progress,
        )
    typer.echo(f"{done.finished} of {done.total} runs; report: {done.report}")


@app.command()
def view(
    source: Annotated[str, typer.Argument(help="A run folder, a bundle (.onnx) or a task.")],
    out: Annotated[
        Path | None, typer.Option(metavar="FILE.gif", help="Write this in place of a window.")
    ] = None,
    seconds: Annotated[float, typer.Option(min=0.1, help="Length of the animation.")] = 10.0,
    overrides: Overrides = None,
    task: bundle_cli.WorldTask = None,
    actuator: bundle_cli.WorldActuator = None,
) -> None:
    """Watch a policy, or a task's robot, in MuJoCo's viewer or as an animation.

    Example: `ferry view configs/bundles/a1_walk.onnx --out walk.gif`
    """
    from training.progress import bar, say
    from training.view import view as run

    with bar("viewing") as progress:
        written = run(
            source,
            out=out,
            seconds=seconds,
            overrides=overrides,
            task=task,
            actuator=actuator,
            progress=progress,
            say=say,
        )
    if written is not None:
        typer.echo(f"written: {written}")
