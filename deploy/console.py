"""The command line's manners: how mistakes are told, tables for people, JSON for programs."""

from __future__ import annotations

import json
import os
from collections.abc import Iterable, Mapping, Sequence
from importlib import import_module
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.markup import escape
from rich.table import Table
from typer.core import TyperGroup
from typer.main import get_group

from real.errors import FerryError

#: Packages that the base install leaves out, by the pip extra that brings them.
EXTRAS: Mapping[str, str] = {
    "train": "torch mujoco onnx gymnasium safetensors tensorboard scipy matplotlib PIL",
    "pybullet": "pybullet pybullet_data",
    "ros": "rclpy builtin_interfaces diagnostic_msgs geometry_msgs nav_msgs rosgraph_msgs "
    "sensor_msgs std_msgs std_srvs trajectory_msgs",
    "cluster": "ray",
}


def writable(file: Path | None) -> Path | None:
    """Refuse a file that cannot be written, before any work is done for it."""
    if file is None or file == Path("-"):
        return file
    try:
        file.parent.mkdir(parents=True, exist_ok=True)
        existed = file.exists()
        with file.open("a"):
            pass
        if not existed:
            file.unlink()
    except OSError as error:
        raise _cannot_write(file, error) from error
    return file


def _cannot_write(file: Path, error: OSError) -> FerryError:
    return FerryError(
        f"cannot write {file}: {error.strerror or error}; give --json a file in a folder you may "
        "write to, or - for stdout"
    )


Overrides = Annotated[
    list[str] | None,
    typer.Option("--set", metavar="A.B=C", help="Replace one value of the config; repeatable."),
]
#: Numbers beside the table, for programs.
JsonFile = Annotated[
    Path | None,
    typer.Option(
        "--json", metavar="FILE", help="Also write the numbers; - is stdout.", callback=writable
    ),
]
#: No table that is piped is wider [characters].
_WIDEST = 200

#: Numbers in place of the table.
AsJson = Annotated[bool, typer.Option("--json", help="Print JSON on stdout.")]


class FrontDoor(TyperGroup):
    """Turns a mistake that the user can mend into one sentence and exit code 2."""

    def invoke(self, ctx: Any) -> Any:
        """Run the command; exit with 2 where the user can do something about it."""
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


def commands_of(module: str, *, base: type[TyperGroup] = TyperGroup) -> type[TyperGroup]:
    """A group that has the commands of another room's ``app`` too, imported when asked for.

    Args:
        module: where the Typer ``app`` is. It imports nothing heavy before a command runs.
        base: what the group is besides.
    """

    class WithRoom(base):
        _loaded = False

        def _load(self) -> None:
            if not self._loaded:
                self._loaded = True
                self.commands.update(get_group(import_module(module).app).commands)

        def list_commands(self, ctx: Any) -> list[str]:
            """Names of both kinds, its own first."""
            self._load()
            return super().list_commands(ctx)

        def get_command(self, ctx: Any, cmd_name: str) -> Any:
            """The one of that name; None if there is none."""
            if cmd_name not in self.commands:
                self._load()
            return super().get_command(ctx, cmd_name)

    return WithRoom


def missing_package(package: str) -> str | None:
    """What to install for a package that is not there; None if no extra brings it."""
    for extra, packages in EXTRAS.items():
        if package in packages.split():
            return (
                f"{package} is not installed; this command needs it: pip install 'ferry[{extra}]'"
            )
    return None


def print_grid(
    title: str, header: Sequence[str], rows: Iterable[Sequence[str]], *, to_stderr: bool = False
) -> None:
    """A table with a heading over each column."""
    table = Table(title=escape(title))
    for heading in header:
        table.add_column(heading, overflow="fold")
    for row in rows:
        table.add_row(*map(escape, row))
    _show(table, to_stderr)


def print_table(title: str, rows: Mapping[str, str], *, to_stderr: bool = False) -> None:
    """Names and values, a row each."""
    table = Table(title=escape(title), show_header=False)
    table.add_column(no_wrap=True)
    table.add_column(overflow="fold")
    for name, value in rows.items():
        table.add_row(escape(name), escape(value))
    _show(table, to_stderr)


def _show(table: Table, to_stderr: bool) -> None:
    """Print it; in a pipe or a file as wide as it is, so that nothing of it is cut in two."""
    console = Console(stderr=to_stderr)
    if not console.is_terminal and "COLUMNS" not in os.environ:
        wide = Console(width=_WIDEST)
        console.width = max(console.width, wide.measure(table).maximum)
    console.print(table)


def stdout_if(as_json: bool) -> Path | None:
    """The file of :func:`write_json` where numbers stand in place of the table."""
    return Path("-") if as_json else None


def write_json(data: Mapping[str, Any], file: Path | None) -> bool:
    """Write the numbers where they are wanted; whether that is stdout, which then is theirs."""
    text = json.dumps(data, indent=2)
    if file == Path("-"):
        typer.echo(text)
        return True
    if file is not None:
        try:
            file.write_text(text + "\n")
        except OSError as error:
            raise _cannot_write(file, error) from error
    return False
