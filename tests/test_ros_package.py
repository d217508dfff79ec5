"""Installed, the project is a ROS 2 package: by pip and by colcon, found by ROS's own index.

`ros2 run` looks for executables in lib/<package> and `ros2 launch` for launch files in
share/<package>, both below the prefix that the index names; that is what is looked at here, since
those two commands are on no package index.
"""

from __future__ import annotations

import os
import runpy
import shutil
import subprocess
import sys
from pathlib import Path
from xml.etree import ElementTree

import pytest

from deploy.parameters import shipped

ROOT = Path(__file__).resolve().parents[1]
SITE = Path("lib", f"python{sys.version_info.major}.{sys.version_info.minor}", "site-packages")
NODES = set(shipped())
LOOK = """
import sys
from pathlib import Path
from ament_index_python.packages import get_package_prefix, get_package_share_directory
import deploy
for found in (get_package_prefix("ferry"), get_package_share_directory("ferry"), deploy.__file__):
    print(Path(found).resolve())
"""


def run(argv, *, seconds, **options):
    done = subprocess.run(
        argv, capture_output=True, text=True, timeout=seconds, check=False, **options
    )
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-3000:]
    return done.stdout


@pytest.fixture(scope="module")
def tree(tmp_path_factory):
    """What a build sees: it leaves its traces there, and none in the clone."""
    out = tmp_path_factory.mktemp("source") / "ferry"
    out.mkdir()
    for name in ("real", "sim", "training", "deploy", "configs"):
        shutil.copytree(ROOT / name, out / name, ignore=shutil.ignore_patterns("__pycache__"))
    for name in ("pyproject.toml", "setup.py", "package.xml", "README.md", "LICENSE"):
        shutil.copy(ROOT / name, out / name)
    for path in ROOT.glob("ferry*.py"):
        shutil.copy(path, out / path.name)
    return out


def check(prefix, environment):
    """What ROS sees under a prefix, in an environment that names it and not this clone."""
    prefix = prefix.resolve()
    assert (prefix / "share/ament_index/resource_index/packages/ferry").read_text() == ""
    manifest = ElementTree.parse(prefix / "share/ferry/package.xml")
    assert manifest.findtext("name") == "ferry"
    assert (prefix / "share/ferry/launch/robot.launch.py").is_file()
    params = prefix / "share/ferry/config/params.yaml"
    assert params.read_bytes() == (ROOT / "deploy/share/params.yaml").read_bytes()
    executables = {p.name for p in (prefix / "lib/ferry").iterdir() if os.access(p, os.X_OK)}
    assert executables == NODES
    if shutil.which("python3", path=environment["PATH"]) and has_ros():
        # A test of its own would build all of it once more.
        found = run([sys.executable, "-c", LOOK], seconds=60, env=environment, cwd=prefix)
        assert found.split() == [
            str(prefix),
            str(prefix / "share/ferry"),
            str(prefix / SITE / "deploy/__init__.py"),
        ]
        said = run(
            [str(prefix / "lib/ferry/safety_node"), "--help"],
            seconds=120,
            env=environment,
            cwd=prefix,
        )
        assert said.startswith("usage: ros2 run ferry safety_node")
        assert "  watchdog_periods (default: 0.0)" in said


def has_ros():
    try:
        import ament_index_python  # noqa: F401
        import rclpy  # noqa: F401
    except ImportError:
        return False
    return True


def clean(**variables):
    """An environment with nothing of this clone; its Python is the one that runs the tests."""
    kept = {k: v for k, v in os.environ.items() if k not in {"PYTHONPATH", "AMENT_PREFIX_PATH"}}
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    return {**kept, "PATH": path, **variables}


@pytest.mark.slow
def test_pip_registers_the_package_with_its_nodes_launch_file_and_parameters(tree, tmp_path):
    install = [sys.executable, "-m", "pip", "install", "--quiet", "--no-deps", "--no-index"]
    options = ["--no-build-isolation", "--ignore-installed", "--prefix", str(tmp_path)]
    run([*install, *options, str(tree)], seconds=180)
    check(tmp_path, clean(PYTHONPATH=str(tmp_path / SITE), AMENT_PREFIX_PATH=str(tmp_path)))


@pytest.mark.slow
def test_colcon_builds_it_and_its_setup_file_makes_it_known(tree, tmp_path):
    here = Path(sys.executable).parent
    colcon = shutil.which("colcon", path=f"{here}{os.pathsep}{os.environ['PATH']}")
    if colcon is None:
        pytest.skip("colcon is not installed")
    # By this Python, whose site-packages the layout is made for.
    build = [sys.executable, colcon, "--log-base", "log", "build", "--base-paths", str(tree)]
    run(build, seconds=240, cwd=tmp_path)
    script = ". install/local_setup.sh && env"
    lines = run(["sh", "-c", script], seconds=60, cwd=tmp_path, env=clean()).splitlines()
    sourced = dict(line.split("=", 1) for line in lines if "=" in line)
    prefix = tmp_path / "install" / "ferry"
    assert Path(sourced["AMENT_PREFIX_PATH"]).resolve() == prefix.resolve()
    check(prefix, sourced)


def test_the_manifest_says_what_the_project_file_says():
    import tomllib

    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    manifest = ElementTree.parse(ROOT / "package.xml")
    for name in ("name", "version", "description", "license"):
        assert manifest.findtext(name) == project[name]
    assert manifest.findtext("export/build_type") == "ament_python"
    # Every message package that a node imports is a dependency there.
    from deploy.preflight import MESSAGE_PACKAGES

    needed = {element.text for element in manifest.iter("exec_depend")}
    assert {"rclpy", *MESSAGE_PACKAGES} <= needed


def test_every_start_script_is_the_same_and_executable():
    scripts = sorted((ROOT / "deploy" / "share" / "nodes").iterdir())
    assert {s.name for s in scripts} == NODES
    assert len({s.read_text() for s in scripts}) == 1
    assert all(os.access(s, os.X_OK) for s in scripts)


@pytest.mark.skipif(sys.platform != "linux", reason="ROS 2 by wheels is for Linux")
def test_the_installed_launch_file_finds_the_packages_of_its_prefix(tmp_path, monkeypatch):
    """`ros2` runs under a Python that knows nothing of the environment with Ferry in it."""
    share = tmp_path / "share" / "ferry" / "launch"
    share.mkdir(parents=True)
    source = (ROOT / "deploy" / "launch" / "robot.launch.py").read_text()
    start = source.index("# Where the Python of `ros2`")
    end = source.index("from deploy.")
    head = "import importlib.util\nimport sys\nfrom pathlib import Path\n"
    (share / "robot.launch.py").write_text(head + source[start:end])
    site = tmp_path / SITE
    (site / "deploy").mkdir(parents=True)
    (site / "deploy" / "graph.py").write_text("")
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    monkeypatch.setattr(sys, "path", [*sys.path])
    runpy.run_path(str(share / "robot.launch.py"))
    assert sys.path[-1] == str(site)
