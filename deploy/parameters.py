"""Parameter files of the nodes: ROS's own format, but a misspelt name is an error.

``deploy/share/params.yaml`` names every parameter of every node, and a test holds it to what the
nodes declare. ROS itself passes over a name that no node has, so that a typing error leaves a
watchdog at its default; files are therefore read here before a node starts.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from functools import cache
from pathlib import Path
from typing import Any, cast

from real.config_yaml import read_yaml
from real.errors import ConfigError, FerryError, nearest

#: What ships: all nodes, all parameters, all defaults.
SHIPPED = Path(__file__).parent / "share" / "params.yaml"
#: The key below which ROS keeps the parameters of a node.
SECTION = "ros__parameters"
#: Means every node.
EVERY_NODE = "/**"
#: What rclpy declares by itself for every node.
OF_EVERY_NODE = {"use_sim_time": False, "start_type_description_service": True}


@cache
def shipped() -> Mapping[str, Mapping[str, Any]]:
    """Default of every parameter of every node, by node and name."""
    return {node: dict(_sections(SHIPPED, node, part)) for node, part in _nodes(SHIPPED)}


def read_parameter_file(path: Path) -> dict[str, dict[str, Any]]:
    """Read a parameter file and refuse what no node has.

    Args:
        path: a file in ROS's format: node, ``ros__parameters``, name, value.

    Returns:
        Values by node and name, those for every node (``/**``) with each node that has them.

    Raises:
        FerryError: no such file, not of that format, an unknown node or parameter (with the nearest
            one), or a value of another kind than the default.
    """
    if not path.is_file():
        raise FerryError(f"parameter file {path}: there is no such file")
    known = shipped()
    out: dict[str, dict[str, Any]] = {node: {} for node in known}
    for key, part in _nodes(path):
        nodes = list(known) if key == EVERY_NODE else [key.lstrip("/")]
        if nodes[0] not in known:
            raise FerryError(
                f"{path}: no node {key!r}{nearest(key, known)}; expected {', '.join(known)} or "
                f"{EVERY_NODE}"
            )
        defaults: dict[str, Any] = dict(OF_EVERY_NODE)
        for node in nodes:
            defaults.update(known[node])
        for name, value in _sections(path, key, part):
            if name not in defaults:
                close = nearest(name, defaults)
                raise FerryError(f"{path}: {key} has no parameter {name!r}{close}")
            _check_kind(f"{path}: {key}: {name}", value, defaults[name])
            for node in nodes:
                if name in known[node]:
                    out[node][name] = value
    return out


def usage(node: str, doc: str) -> str:
    """What ``--help`` of a node says.

    Args:
        node: e.g. ``policy_node``.
        doc: the text of its module.
    """
    rows = "".join(f"  {name} (default: {value!r})\n" for name, value in shipped()[node].items())
    return (
        f"usage: ros2 run ferry {node} --ros-args [-p NAME:=VALUE ...] [--params-file FILE]\n\n"
        f"{doc.strip()}\n\nparameters, explained in {SHIPPED}:\n{rows}"
    )


def _nodes(path: Path) -> Iterator[tuple[str, Mapping[str, Any]]]:
    found: Any = read_yaml(path.read_text(encoding="utf-8"), source=str(path))[0]
    yield from _mapping(found, f"{path}: expected a mapping from nodes to {SECTION}").items()


def _sections(path: Path, node: str, part: Any) -> Iterator[tuple[str, Any]]:
    wanted = f"{path}: {node}: expected `{SECTION}:` and below it the parameters"
    inner = _mapping(part, wanted)
    if list(inner) != [SECTION]:
        raise ConfigError(f"{wanted}; found {', '.join(map(repr, inner)) or 'nothing'}")
    yield from _mapping(inner[SECTION], wanted).items()


def _mapping(found: Any, wanted: str) -> Mapping[str, Any]:
    if not isinstance(found, dict):
        raise ConfigError(f"{wanted}; found {found!r}")
    return cast("dict[str, Any]", found)


def _check_kind(where: str, value: Any, default: Any) -> None:
    """A number is a number, a flag a flag; a text may be written as a number, as nodes take it."""
    flag = isinstance(default, bool)
    number = isinstance(default, int | float) and not flag
    fits = isinstance(value, bool) if flag else not isinstance(value, dict | list | type(None))
    if number:
        fits = isinstance(value, int | float) and not isinstance(value, bool)
    if not fits:
        kind = "true or false" if flag else "a number" if number else "a text"
        raise FerryError(f"{where} is {value!r}; expected {kind}")
