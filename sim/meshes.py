"""Mesh files of a URDF: found, checked for what engines choke on, made alike for all of them."""

from __future__ import annotations

import functools
import tempfile
from pathlib import Path
from xml.etree import ElementTree

import numpy as np
from numpy.typing import NDArray

from real.errors import FerryError

Array = NDArray[np.float64]

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
        mesh.set("filename", str(_hull_file(found) if kind == "collision" else found))


@functools.cache
def mesh_folder() -> tempfile.TemporaryDirectory[str]:
    """Where this process keeps meshes that it made; removed when it ends."""
    return tempfile.TemporaryDirectory(prefix="ferry_meshes_")


def write_stl(corners: Array, path: Path) -> None:
    """Write triangles ``[F, 3, 3]`` as a binary STL, corners counter-clockwise from outside [m]."""
    rows = np.zeros(
        len(corners), dtype=[("normal", "<f4", 3), ("corners", "<f4", (3, 3)), ("extra", "<u2")]
    )
    rows["corners"] = corners
    path.write_bytes(b"\0" * _STL_HEADER + np.uint32(len(corners)).tobytes() + rows.tobytes())


@functools.cache
def _hull_file(path: Path) -> Path:
    """The convex hull of a mesh, as a file; the mesh itself where its format is not read here.

    MuJoCo touches with the hull of a mesh and PyBullet with the hulls of its parts, after reading
    megabytes of it at every reset. The hull of the whole is the same in both, and small.
    """
    vertices = _vertices(path)
    if vertices is None or len(vertices) < 4:
        return path
    from scipy.spatial import ConvexHull, QhullError  # takes a moment, and needed here alone

    try:
        hull = ConvexHull(vertices)
    except QhullError:  # flat, or otherwise no body: the engines have their own words for it
        return path
    corners = vertices[hull.simplices]  # [F, 3, 3]
    normals = np.cross(corners[:, 1] - corners[:, 0], corners[:, 2] - corners[:, 0])
    inward = np.einsum("fk,fk->f", normals, hull.equations[:, :3]) < 0.0
    corners[inward] = corners[inward][:, [0, 2, 1]]
    made = Path(mesh_folder().name) / f"{len(list(Path(mesh_folder().name).iterdir()))}_{path.stem}"
    made = made.with_suffix(".stl")
    write_stl(corners, made)
    return made


def _vertices(path: Path) -> Array | None:
    """``[V, 3]`` of a Wavefront OBJ or a binary STL, None of other formats."""
    if path.suffix.lower() == ".obj":
        lines = path.read_text(encoding="utf-8", errors="replace").splitlines()
        found = [line.split()[1:] for line in lines if line.startswith("v ")]
        return np.array(found, dtype=np.float64).reshape(len(found), -1)[:, :3]  # colours follow
    if path.suffix.lower() == ".stl":
        body = np.frombuffer(path.read_bytes()[_STL_HEADER + _STL_COUNT :], dtype=np.uint8)
        faces = body[: len(body) // _STL_FACE * _STL_FACE].reshape(-1, _STL_FACE)
        corners = np.ascontiguousarray(faces[:, 12:48]).view("<f4").reshape(-1, 3)
        return np.unique(corners.astype(np.float64), axis=0)
    return None


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
