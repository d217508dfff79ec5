"""The commands of ``ferry bench``: options in, numbers out. Imported when one is asked for."""

from __future__ import annotations

import json
import sys
from contextlib import redirect_stdout
from importlib.util import find_spec
from pathlib import Path
from typing import Annotated, Any

import typer

from deploy.console import AsJson, print_grid, print_table, stdout_if, write_json
from real.errors import FerryError

app = typer.Typer(rich_markup_mode="markdown")


@app.command("sim")
def bench_sim(
    as_json: AsJson = False,
    config: Annotated[str, typer.Option(help="The task to run.")] = "a1_walk",
    worlds: Annotated[int | None, typer.Option(min=1, help="Parallel worlds.")] = None,
    threads: Annotated[int | None, typer.Option(min=1, help="Physics threads.")] = None,
    seconds: Annotated[float, typer.Option(min=1.0, help="About how long to measure.")] = 20.0,
    sweep: Annotated[
        bool, typer.Option("--sweep", help="Also: time per world-step of 64 to 4096 worlds.")
    ] = False,
    peers: Annotated[
        bool, typer.Option("--peers", help="Also: Ant-v5, against EnvPool and Gymnasium.")
    ] = False,
) -> None:
    """Control steps per second of the full env, and of raw mujoco.batch replaying the same run.

    Example: `ferry bench sim --json`, or `ferry bench sim --sweep --peers`
    """
    from training.bench import bench_sim as run
    from training.progress import bar

    with bar("benchmark") as progress:
        result: dict[str, Any] = dict(
            run(config, worlds=worlds, threads=threads, seconds=seconds, progress=progress)
        )
    if sweep:
        from sim.sweep import sweep as run_sweep

        with bar("64 to 4096 worlds") as progress:
            tell = progress
            result |= run_sweep(
                config, threads=threads or 0, seconds=seconds, progress=lambda d, t: tell(d, t)
            )
    if peers:
        from training.ant_bench import bench_ant

        with bar("Ant-v5") as progress:
            result |= bench_ant(
                worlds=worlds or 256, threads=threads, seconds=seconds, progress=progress
            )
    if as_json:
        typer.echo(json.dumps(result))
        return
    print_table("Simulation speed", flat_rows(result))


@app.command("train")
def bench_train(
    as_json: AsJson = False,
    peers: Annotated[
        bool, typer.Option("--peers", help="Also Stable-Baselines3 and rsl_rl, if installed.")
    ] = False,
    seeds: Annotated[int, typer.Option(min=1, help="Runs of each learner.")] = 3,
    minutes: Annotated[
        float, typer.Option(min=0.1, help="How long each run may take, evaluation included.")
    ] = 15.0,
    config: Annotated[str, typer.Option(help="The task to learn.")] = "a1_walk",
) -> None:
    """Wall time until A1 tracks at 0.9, without the time of evaluation; an hour with --peers.

    Example: `ferry bench train --peers --json`
    """
    from training.progress import bar
    from training.train_bench import bench_train as run

    with bar("training") as progress:
        times = run(peers=peers, seeds=seeds, minutes=minutes, config=config, progress=progress)
    quiet = write_json(times.as_json(), stdout_if(as_json))
    print_table("Time until A1 tracks at 0.9", times.rows(), to_stderr=quiet)


@app.command("robots")
def bench_robots(
    out: Annotated[Path, typer.Option(help="Folder for the runs; new or empty.")],
    as_json: AsJson = False,
    tasks: Annotated[
        list[str] | None, typer.Argument(help="Tasks by name or file; all that ship if none.")
    ] = None,
    minutes: Annotated[float, typer.Option(min=0.1, help="The most that each run may take.")] = 6.0,
    seed: Annotated[int, typer.Option(min=0, help="Root seed of every run.")] = 0,
    episodes: Annotated[
        int | None, typer.Option(min=1, help="Of each report; as the suites have it if none.")
    ] = None,
) -> None:
    """Train every shipped task to its goal: time, steps, and scores in both engines.

    Example: `ferry bench robots --out runs/robots`
    """
    from training.progress import bar
    from training.robots_bench import HEADER, TASKS, Failed
    from training.robots_bench import bench_robots as run

    if out.exists() and any(out.iterdir()):
        raise FerryError(f"{out} is not empty; give --out a new folder")
    with bar("robots") as progress:
        found = run(
            out,
            tasks=tasks or TASKS,
            minutes=minutes,
            seed=seed,
            episodes=episodes,
            progress=progress,
        )
    result = {name: each.as_json() for name, each in found.items()}
    quiet = write_json(result, stdout_if(as_json))
    rows = [[name, *each.row()] for name, each in found.items()]
    print_grid("Shipped tasks", HEADER, rows, to_stderr=quiet)
    if any(isinstance(each, Failed) for each in found.values()):
        raise typer.Exit(1)


@app.command("learner")
def bench_learner(
    as_json: AsJson = False,
    seconds: Annotated[float, typer.Option(min=1.0, help="About how long to measure.")] = 20.0,
    compiled: Annotated[
        bool, typer.Option(help="Also with torch.compile; needs a C++ compiler and a minute.")
    ] = False,
) -> None:
    """Sample passes per second of a learner's update, and of others' PPO on the same batch.

    Example: `ferry bench learner --json`
    """
    from training.learner_bench import bench_learner as run
    from training.learner_bench import table_rows
    from training.progress import bar

    with bar("learners take turns") as progress:
        result = run(seconds=seconds, compiled=compiled, progress=progress)
    quiet = write_json(result, stdout_if(as_json))
    print_table("Learner speed, sample passes per second", table_rows(result), to_stderr=quiet)


@app.command("async")
def bench_async(
    as_json: AsJson = False,
    quick: Annotated[bool, typer.Option("--quick", help="Shorter and rougher.")] = False,
    soak: Annotated[
        bool,
        typer.Option("--soak", help="Instead: is memory flat while actors outrun the learner?"),
    ] = False,
    soak_minutes: Annotated[
        float, typer.Option(min=0.1, help="How long --soak lasts, after its start.")
    ] = 5.0,
    a1: Annotated[
        bool, typer.Option("--a1", help="Instead: time until A1 tracks, ray against serial.")
    ] = False,
    a1_minutes: Annotated[
        float, typer.Option(min=0.1, help="How long each run of --a1 may take.")
    ] = 10.0,
    seeds: Annotated[int, typer.Option(min=1, help="Runs of --a1 in each runtime.")] = 1,
) -> None:
    """What actors, learner and evaluator do to each other: scaling, idling, lag, disturbances.

    Example: `ferry bench async --json`
    """
    from training.async_result import HEADER
    from training.progress import bar

    if find_spec("ray") is None:  # before a bar says that something is measured
        raise ModuleNotFoundError("No module named 'ray'", name="ray")
    # While something is measured stdout is stderr: Ray's warnings must not stand before the JSON.
    if soak and a1:
        raise FerryError("--soak and --a1 are measured one at a time; give one of them")
    if soak:
        from training.soak import soak as measure_memory

        with bar("soak") as progress, redirect_stdout(sys.stderr):
            memory = measure_memory(soak_minutes, progress=progress)
        quiet = write_json(memory.as_json(), stdout_if(as_json))
        print_table("Memory while actors are 10 times faster", memory.rows(), to_stderr=quiet)
        return
    if a1:
        from training.a1_bench import bench_a1

        with bar("A1") as progress, redirect_stdout(sys.stderr):
            times = bench_a1(minutes=a1_minutes, seeds=seeds, progress=progress)
        quiet = write_json(times.as_json(), stdout_if(as_json))
        print_table("Time until A1 tracks at 0.85", times.rows(), to_stderr=quiet)
        return
    from training.async_bench import QUICK
    from training.async_bench import bench_async as run

    with bar("asynchronous runtime") as progress, redirect_stdout(sys.stderr):
        result = run(lengths=QUICK if quick else None, progress=progress)
    quiet = write_json(result.as_json(), stdout_if(as_json))
    print_grid("Asynchronous runtime", HEADER, result.table_rows(), to_stderr=quiet)


def flat_rows(result: dict[str, Any]) -> dict[str, str]:
    """Numbers for a table; what is nested has its keys joined by a space."""
    rows: dict[str, str] = {}
    for key, value in result.items():
        if isinstance(value, dict):
            rows |= {f"{key} {name}": text for name, text in flat_rows(value).items()}
        else:
            rows[key] = f"{value:,.3f}" if isinstance(value, float) else str(value)
    return rows
