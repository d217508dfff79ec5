"""The house rules that the import linter cannot express, checked on the source text itself."""

from __future__ import annotations

import ast
import os
import shutil
import subprocess
import sys
import zipfile
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
PACKAGES = ("real", "sim", "training", "deploy")
SOURCES = sorted(
    path.relative_to(ROOT)
    for path in (
        ROOT / "ferry.py",
        ROOT / "ferry_robot.py",
        *(found for name in PACKAGES for found in (ROOT / name).rglob("*.py")),
    )
)

NODE_FILES = {
    "deploy/convert.py",
    "deploy/node_base.py",
    "deploy/policy_node.py",
    "deploy/safety_node.py",
    "deploy/safety_out.py",
    "deploy/robot_node.py",
    "deploy/recorder_node.py",
    "deploy/operator_node.py",
    "deploy/rehearsal_process.py",
    "deploy/records.py",
    "deploy/ros2_control.py",
    "deploy/ros2_trajectory.py",
    "deploy/state_stream.py",
    "deploy/vitals_wire.py",
    "deploy/state_listener.py",
    "deploy/lifecycle.py",
    "deploy/links.py",
}
LAUNCH_FILES = {"deploy/launch/robot.launch.py"}
# fmt: off
ROS_MESSAGES = [
    "sensor_msgs", "std_msgs", "std_srvs", "geometry_msgs", "nav_msgs", "diagnostic_msgs",
    "rosgraph_msgs", "lifecycle_msgs", "trajectory_msgs", "builtin_interfaces", "rcl_interfaces",
]
# The extras: none may be needed to import what runs on a robot.
NOT_IN_THE_BASE_INSTALL = [
    "torch", "mujoco", "pybullet", "pybullet_data", "ray", "gymnasium", "scipy", "pandas",
    "matplotlib", "onnx", "tensorboard", "safetensors", "imageio", "PIL", "pyarrow", "rclpy",
    "sim", "training", *ROS_MESSAGES,
]
# fmt: on

# Third-party modules that have one room, and the files that are it.
HOMES: dict[str, set[str]] = {
    "ray": {
        "training/cluster.py",
        "training/cluster_learners.py",
        "training/ray_processes.py",
    },
    "mcap": {"real/log.py", "real/log_writer.py"},
    "mcap_ros2": {"real/log.py"},
    "rclpy": NODE_FILES,
    "launch": LAUNCH_FILES,
    "launch_ros": LAUNCH_FILES,
    **dict.fromkeys(ROS_MESSAGES, NODE_FILES),
    # Loading a pickle runs whatever it says, so nothing is ever pickled.
    **{module: set() for module in ("pickle", "dill", "joblib", "shelve", "cloudpickle")},
}

REAL_MAY_IMPORT = {"numpy", "pydantic", "pydantic_core", "annotated_types", "ruamel", "real"}

IMPORT_EVERYTHING = """
import importlib, sys

blocked = set(sys.argv[1].split(","))

class Finder:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in blocked:
            raise ModuleNotFoundError(f"{name} is not part of the base install", name=name)

sys.meta_path.insert(0, Finder())
failed = []
for module in sys.argv[2].split(","):
    try:
        importlib.import_module(module)
    except Exception as error:
        failed.append(f"{module}: {type(error).__name__}: {error}")
print("\\n".join(failed))
sys.exit(bool(failed))
"""


def imported_modules(source: str) -> Iterator[tuple[str, int]]:
    """The top-level module and line of every import, also inside functions and by name."""
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Import):
            yield from ((alias.name.partition(".")[0], node.lineno) for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
            yield node.module.partition(".")[0], node.lineno
        elif isinstance(node, ast.Call) and node.args:
            called = ast.unparse(node.func).rpartition(".")[2]
            first = node.args[0]
            if called in {"import_module", "__import__"} and isinstance(first, ast.Constant):
                yield str(first.value).partition(".")[0], node.lineno


def oversized_functions(source: str, *, lines: int) -> list[str]:
    """Functions longer than a screen, docstring not counted."""
    found = []
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            body = node.body
            documented = ast.get_docstring(node, clean=False) is not None
            docstring = (body[0].end_lineno or 0) - body[0].lineno + 1 if documented else 0
            length = (node.end_lineno or 0) - node.lineno + 1 - docstring
            if length > lines:
                found.append(f"{node.name} at line {node.lineno}: {length} lines")
    return found


def text(path: Path) -> str:
    if not (ROOT / path).exists():
        pytest.fail(f"{path} is missing")
    return (ROOT / path).read_text(encoding="utf-8")


def test_the_scan_sees_imports_at_the_top_inside_functions_and_by_name():
    source = (
        "import ray.util as r\n"
        "from mcap.reader import make_reader\n"
        "from . import neighbour\n"
        "def f():\n"
        "    import torch, rclpy\n"
        "    importlib.import_module('pickle')\n"
    )
    assert sorted(imported_modules(source), key=lambda found: found[1]) == [
        ("ray", 1),
        ("mcap", 2),
        ("torch", 5),
        ("rclpy", 5),
        ("pickle", 6),
    ]


def test_the_length_of_a_function_leaves_out_its_docstring():
    source = 'def f():\n    """One.\n\n    Two.\n    """\n    a = 1\n    b = 2\n    return a + b\n'
    assert oversized_functions(source, lines=4) == []
    assert oversized_functions(source, lines=3) == ["f at line 1: 4 lines"]


@pytest.mark.parametrize("path", SOURCES, ids=str)
def test_modules_with_one_room_are_imported_only_there(path):
    strays = [
        f"{path}:{line}: {module} belongs in {', '.join(sorted(HOMES[module])) or 'no file'}"
        for module, line in imported_modules(text(path))
        if module in HOMES and path.as_posix() not in HOMES[module]
    ]
    assert not strays, "\n".join(strays)


@pytest.mark.parametrize("path", [path for path in SOURCES if path.parts[0] == "real"], ids=str)
def test_the_ground_floor_imports_arrays_and_configuration_only(path):
    allowed = REAL_MAY_IMPORT | set(sys.stdlib_module_names)
    strays = [
        f"{path}:{line}: {module}"
        for module, line in imported_modules(text(path))
        if module not in allowed and path.as_posix() not in HOMES.get(module, set())
    ]
    assert not strays, "\n".join(strays)


@pytest.mark.parametrize("path", SOURCES, ids=str)
def test_a_file_is_short_and_its_functions_fit_a_screen(path):
    source = text(path)
    length = len(source.splitlines())
    assert length <= 350, f"{path} has {length} lines: split it by idea"
    assert oversized_functions(source, lines=60) == []


@pytest.mark.parametrize("path", SOURCES, ids=str)
def test_a_file_is_named_after_what_is_in_it(path):
    words = {part.removesuffix(".py") for part in path.parts}
    assert not words & {"utils", "util", "common", "helpers", "helper", "misc"}


@pytest.mark.slow
def test_everything_a_robot_runs_imports_with_the_base_install_alone():
    modules = [
        ".".join(path.with_suffix("").parts).removesuffix(".__init__")
        for path in SOURCES
        if path.parts[0] in {"real", "deploy", "ferry.py"}
        and path.as_posix() not in NODE_FILES | LAUNCH_FILES
    ]
    assert {"ferry", "real.config", "deploy"} <= set(modules)
    lists = (",".join(NOT_IN_THE_BASE_INSTALL), ",".join(modules))
    result = subprocess.run(
        [sys.executable, "-c", IMPORT_EVERYTHING, *lists],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert result.returncode == 0, result.stdout + result.stderr


@pytest.mark.slow
def test_two_test_processes_never_share_a_ros_graph():
    # The child is made to look for a domain where this process began to look for its own.
    code = (
        "import os, runpy, sys\n"
        "os.getpid = lambda: int(sys.argv[1])\n"
        "runpy.run_path(sys.argv[2])\n"
        "print(os.environ['ROS_DOMAIN_ID'], os.environ['ROS_AUTOMATIC_DISCOVERY_RANGE'])\n"
    )
    child = subprocess.run(
        [sys.executable, "-c", code, str(os.getpid()), str(ROOT / "tests" / "conftest.py")],
        capture_output=True,
        text=True,
        timeout=60,
        check=True,
    )
    domain, reach = child.stdout.split()
    assert domain != os.environ["ROS_DOMAIN_ID"]
    assert {int(domain), int(os.environ["ROS_DOMAIN_ID"])} <= set(range(1, 102))
    assert reach == os.environ["ROS_AUTOMATIC_DISCOVERY_RANGE"] == "LOCALHOST"


@pytest.mark.slow
def test_the_wheel_holds_the_packages_the_front_door_and_every_shipped_configuration(tmp_path):
    tree = tmp_path / "tree"
    tree.mkdir()
    for name in (*PACKAGES, "configs"):
        shutil.copytree(ROOT / name, tree / name, ignore=shutil.ignore_patterns("__pycache__"))
    files = ("pyproject.toml", "setup.py", "package.xml", "README.md", "LICENSE")
    for name in (*files, "ferry.py", "ferry_robot.py"):
        shutil.copy(ROOT / name, tree / name)
    build = [sys.executable, "-m", "pip", "wheel", ".", "--no-deps", "--no-build-isolation"]
    subprocess.run(
        [*build, "--quiet", "--wheel-dir", str(tmp_path)], cwd=tree, check=True, timeout=120
    )

    (wheel,) = tmp_path.glob("ferry-*.whl")
    held = set(zipfile.ZipFile(wheel).namelist())
    shipped = {
        path.relative_to(ROOT).as_posix()
        for pattern in ("configs/**/*.yaml", "configs/**/*.onnx", "deploy/launch/*.py")
        for path in ROOT.glob(pattern)
    }
    assert {path.as_posix() for path in SOURCES} | shipped <= held
    assert "configs/robots/a1.yaml" in shipped
    assert not {name for name in held if name.startswith(("tests/", "notebooks/"))}
