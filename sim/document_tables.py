"""Tables in documents that a module writes: they stand between two comments with its name."""

from __future__ import annotations

from pathlib import Path

from real.errors import FerryError


def marks(module: str) -> tuple[str, str]:
    """The comments around the table that ``python -m module`` writes."""
    return f"<!-- begin: python -m {module} -->", f"<!-- end: python -m {module} -->"


def read_table(document: str, module: str) -> str:
    """What stands between the comments.

    Raises:
        FerryError: they are not both there.
    """
    begin, end = marks(module)
    if begin not in document or end not in document.split(begin)[1]:
        raise FerryError(f"the document has no table between {begin!r} and {end!r}")
    return document.split(begin)[1].split(end)[0].strip()


def put_table(document: str, module: str, table: str) -> str:
    """The document with another table there.

    Raises:
        FerryError: it has no place for it.
    """
    read_table(document, module)
    begin, end = marks(module)
    before, rest = document.split(begin)
    return f"{before}{begin}\n{table}\n{end}{rest.split(end)[1]}"


def write_table(path: Path, module: str, table: str) -> None:
    """The same in a file.

    Raises:
        FerryError: it cannot be read, or has no place for it.
    """
    try:
        document = path.read_text(encoding="utf-8")
    except OSError as error:
        raise FerryError(f"cannot read {path}: {error.strerror or error}") from error
    path.write_text(put_table(document, module, table), encoding="utf-8")
