"""Evaluates a bundle and writes the result into it: the step between export and signature."""

from __future__ import annotations

from pathlib import Path

from deploy.bundle import parse_bundle, read_bundle
from deploy.evaluation_stamp import stamp_of, stamped
from deploy.onnx_file import replace_file
from deploy.policy import OnnxPolicy
from real.errors import FerryError
from training.bundle_world import bundle_world
from training.evaluator import Evaluation, evaluate
from training.progress import ProgressFn
from training.run_folder import git_sha


def evaluate_and_stamp(
    path: str | Path,
    *,
    required: float,
    suite: str = "nominal",
    episodes: int | None = None,
    seed: int = 0,
    progress: ProgressFn | None = None,
    actuator: Path | None = None,
) -> Evaluation:
    """Score a bundle and, if it is good enough, write that into it.

    The bytes that were evaluated are those that are written, whatever became of the file meanwhile.
    A signature that the bundle had no longer fits: sign it again.

    Args:
        path: of the bundle.
        required: lowest score to let through.
        suite: see :func:`training.evaluator.evaluate`, as all that follows.
        episodes: how many.
        seed: which set of episodes.
        progress: told how far it is.
        actuator: see :func:`training.bundle_world.bundle_world`. A stamp speaks of the bundle's own
            world, so there is no other task.

    Raises:
        FerryError: no bundle, a score below ``required``, or see
            :func:`training.evaluator.evaluate`.
    """
    if Path(path).is_dir():
        raise FerryError(
            f"{path} is a run folder; only a bundle carries its evaluation: `ferry export {path} "
            "--out policy.onnx` first"
        )
    bundle = read_bundle(path)
    with bundle_world(bundle, actuator=actuator) as world:
        result = evaluate(
            OnnxPolicy(bundle), world, suite=suite, episodes=episodes, seed=seed, progress=progress
        )
    stamp = stamp_of(result.as_json(), digest=bundle.digest, required=required, git_sha=git_sha())
    data = stamped(bundle.model_bytes, stamp)
    parse_bundle(data, source=str(path))
    replace_file(Path(path), data)
    return result
