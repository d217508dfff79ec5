"""Mesh files of a URDF: found, made absolute, and checked for what engines choke on."""

from __future__ import annotations

from pathlib import Path
from xml.etree import ElementTree

from real.errors import FerryError

MAX_STL_FACES = 200_000
"""MuJoCo's limit (documentation of ``<mesh>``); PyBullet loads a part of such a file, silently."""

# A binary STL: 80 bytes of header, the number of faces in 4 bytes, then 50 bytes a face.
_STL_HEADER, _STL_COUNT, _STL_FACE = 80, 4, 50


def resolve_meshes(link: ElementTree.Element, name: str, path: Path, kind: str) -> None:
    """Make the mesh paths of a link absolute.

    Args:
        link: the link; changed in place.
        name: its name.
        path: the URDF file, which relative paths start from.
        kind: ``collision`` or ``visual``.

    Raises:
        FerryError: naming file, link and mesh: there is no such file, or engines cannot read it.
    """
    for mesh in link.findall(f"{kind}/geometry/mesh"):
        given = mesh.get("filename", "")
        found = _find(given, path)
        if found is None:
            raise FerryError(
                f"{path}: link {name!r}: {kind} mesh {given!r} was not found; expected a path "
                f"relative to {path.parent}, package://..., or an existing absolute path"
            )
        if found.suffix.lower() == ".stl":
            try:
                check_stl(found)
            except FerryError as error:
                raise FerryError(f"{path}: link {name!r}: {kind} mesh {error}") from error
        mesh.set("filename", str(found))


def check_stl(path: Path) -> int:
    """Number of faces of a binary STL file.

    Raises:
        FerryError: naming the file: it is text, cut off, or has more faces than engines read.
    """
    size = path.stat().st_size
    with path.open("rb") as file:
        start = file.read(_STL_HEADER + _STL_COUNT)
    faces = int.from_bytes(start[_STL_HEADER:], "little")
    # Binary files may begin with "solid", too; only the size tells.
    if size != _STL_HEADER + _STL_COUNT + _STL_FACE * faces:
        if start.lstrip().startswith(b"solid"):
            raise FerryError(f"{path} is an ASCII STL; expected a binary one: convert it")
        raise FerryError(
            f"{path} has {size} bytes; expected {_STL_HEADER + _STL_COUNT + _STL_FACE * faces} "
            f"for the {faces} faces that its header announces"
        )
    if faces > MAX_STL_FACES:
        raise FerryError(
            f"{path} has {faces} faces; expected at most {MAX_STL_FACES}: decimate it, collision "
            "shapes hardly need a thousand"
        )
    return faces


def _find(given: str, path: Path) -> Path | None:
    """Where a mesh lies; ``package://name/rest`` is looked for in the folders above the file."""
    scheme, separator, rest = given.partition("://")
    if not separator:
        candidates = [path.parent / given]
    elif scheme == "file":
        candidates = [Path(rest)]
    else:
        inner = rest.partition("/")[2]
        folders = [path.parent, *path.parent.parents]
        candidates = [folder / r for folder in folders for r in (rest, inner) if r]
    return next((c.resolve() for c in candidates if c.is_file()), None)
