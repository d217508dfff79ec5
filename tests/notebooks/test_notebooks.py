"""Every notebook runs from top to bottom, on a run that was really trained, if only briefly."""

from __future__ import annotations

import base64
from pathlib import Path

import nbformat
import pytest
from nbclient import NotebookClient

import training
from training.evaluator import selection_scorer
from training.run_config import load_run_config
from training.train import train

ROOT = Path(training.__file__).parents[1]
NOTEBOOKS = sorted((ROOT / "notebooks").glob("*.ipynb"))
EPISODES = 3


@pytest.fixture(scope="module")
def run_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Six iterations with 8 worlds, evaluated twice."""
    config = load_run_config(
        "a1_walk", ["sim.worlds=8", "sim.threads=1", "training.run.evaluate_every=3"]
    )
    folder = tmp_path_factory.mktemp("run") / "tiny"
    steps = 6 * 8 * config.training.horizon
    train(config, folder, steps=steps, evaluate=selection_scorer(config, episodes=EPISODES))
    return folder


def executed(notebook: Path, run_folder: Path, monkeypatch: pytest.MonkeyPatch):
    """The notebook with the outputs of a fresh kernel, started where a reader starts it."""
    monkeypatch.setenv("FERRY_RUN", str(run_folder))
    monkeypatch.setenv("FERRY_EPISODES", str(EPISODES))
    monkeypatch.setenv("PYTHONPATH", str(ROOT))
    monkeypatch.setenv("MPLBACKEND", "module://matplotlib_inline.backend_inline")
    content = nbformat.read(notebook, as_version=4)
    resources = {"metadata": {"path": str(notebook.parent)}}
    return NotebookClient(content, timeout=200, resources=resources).execute()


def outputs(content, kind: str) -> list[str]:
    return [
        output["data"][kind]
        for cell in content.cells
        for output in cell.get("outputs", [])
        if kind in output.get("data", {})
    ]


def test_there_is_a_notebook_and_it_is_committed_without_outputs():
    assert [n.name for n in NOTEBOOKS] == ["01_evaluate_a_policy.ipynb"]
    for notebook in NOTEBOOKS:
        for cell in nbformat.read(notebook, as_version=4).cells:
            assert not cell.get("outputs")
            assert cell.get("execution_count") is None


@pytest.mark.slow
def test_evaluating_a_policy_shows_its_curves_and_both_engines(run_folder, monkeypatch):
    done = executed(ROOT / "notebooks" / "01_evaluate_a_policy.ipynb", run_folder, monkeypatch)
    pictures = [base64.b64decode(p) for p in outputs(done, "image/png")]
    assert len(pictures) == 3
    assert all(p.startswith(b"\x89PNG") for p in pictures)
    evaluations, meanings, scores = outputs(done, "text/html")
    # Two evaluations of the run, by env steps.
    steps = 3 * 8 * load_run_config("a1_walk").training.horizon
    assert str(steps) in evaluations
    assert str(2 * steps) in evaluations
    assert "ppo/kl" in meanings
    assert "nominal" in scores
    assert "pybullet" in scores
