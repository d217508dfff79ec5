"""What the command line prints: tables for people, JSON for programs."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import typer
from rich.console import Console
from rich.table import Table

from real.errors import FerryError


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


def print_grid(
    title: str, header: Sequence[str], rows: Iterable[Sequence[str]], *, to_stderr: bool = False
) -> None:
    """A table with a heading over each column."""
    table = Table(title=title)
    for heading in header:
        table.add_column(heading)
    for row in rows:
        table.add_row(*row)
    Console(stderr=to_stderr).print(table)


def print_table(title: str, rows: Mapping[str, str], *, to_stderr: bool = False) -> None:
    """Names and values, a row each."""
    table = Table(title=title, show_header=False)
    table.add_column(no_wrap=True)
    table.add_column(overflow="fold")
    for name, value in rows.items():
        table.add_row(name, value)
    Console(stderr=to_stderr).print(table)


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
