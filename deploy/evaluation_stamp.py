"""The evaluation that let a bundle through, written into the bundle itself.

The order is: export, evaluate, stamp, sign. A stamp names the digest of graph and contract that was
evaluated; since it is not part of that digest, stamping does not change what it speaks of. A
signature covers the whole file, the stamp included.
"""

from __future__ import annotations

import dataclasses
import json
import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, cast

from deploy.onnx_file import BundleError, with_metadata, without_metadata
from real.errors import FerryError

#: Key in the metadata; one of :data:`deploy.onnx_file.STAMPS`.
EVALUATION_KEY = "ferry_evaluation"


@dataclass(frozen=True)
class EvaluationStamp:
    """What a bundle was evaluated on, and how it did.

    Attributes:
        digest: of the graph and contract that were evaluated (hex).
        suite: key of the evaluation suites.
        episodes: how many.
        seed: which set of episodes.
        measure: what ``score`` is, e.g. ``tracking``.
        score: mean over episodes.
        score_low: lower end of its 95 % interval.
        score_high: upper end.
        falls_per_minute: how often it fell.
        clamped_share: commands that the safety filter changed.
        required: lowest score that was asked for; 0 where nobody asked.
        git_sha: commit of the code that evaluated.
    """

    digest: str
    suite: str
    episodes: int
    seed: int
    measure: str
    score: float
    score_low: float
    score_high: float
    falls_per_minute: float
    clamped_share: float
    required: float
    git_sha: str

    def to_json(self) -> str:
        """JSON text."""
        return json.dumps(dataclasses.asdict(self), allow_nan=False)

    @staticmethod
    def from_json(text: str, *, digest: str) -> EvaluationStamp:
        """Read what :meth:`to_json` wrote.

        Args:
            text: the stamp.
            digest: of the bundle that carries it.

        Raises:
            BundleError: it is none, or of another graph or contract.
        """
        body: Any = json.loads(text)
        fields = {f.name: f.type for f in dataclasses.fields(EvaluationStamp)}
        if not isinstance(body, dict) or set(cast("dict[str, Any]", body)) != set(fields):
            raise BundleError(f"evaluation stamp: expected {', '.join(fields)}")
        values = cast("dict[str, Any]", body)
        kinds = {"str": str, "int": int, "float": (int, float)}
        wrong = [
            name
            for name, kind in fields.items()
            if not isinstance(values[name], kinds[str(kind)]) or isinstance(values[name], bool)
        ]
        numbers = [n for n, v in values.items() if isinstance(v, float) and not math.isfinite(v)]
        if wrong or numbers:
            raise BundleError(f"evaluation stamp: no usable value of {', '.join(wrong + numbers)}")
        if values["digest"] != digest:
            raise BundleError(
                "its evaluation stamp is of another graph or contract: evaluate this one and stamp "
                "it again"
            )
        return EvaluationStamp(**values)

    def rows(self) -> dict[str, str]:
        """What it says, for people."""
        asked = f", at least {self.required:g} asked" if self.required else ""
        return {
            "evaluated on": f"{self.suite}, {self.episodes} episodes, seed {self.seed}",
            "score": f"{self.measure} {self.score:.3f} "
            f"[{self.score_low:.3f}, {self.score_high:.3f}]{asked}",
            "falls per minute": f"{self.falls_per_minute:.2f}",
            "evaluated by": self.git_sha or "unknown commit",
        }


def stamp_of(
    result: Mapping[str, Any], *, digest: str, required: float = 0.0, git_sha: str = ""
) -> EvaluationStamp:
    """The stamp of an evaluation's JSON.

    Args:
        result: as ``ferry evaluate --json`` writes it.
        digest: of the bundle that was evaluated.
        required: lowest score to let through.
        git_sha: commit of the code that evaluated.

    Raises:
        FerryError: the score is below ``required``.
    """
    measure = str(result["measure"])
    score = result[measure]
    if not float(score["mean"]) >= required:  # also where it is NaN
        raise FerryError(
            f"{measure} is {score['mean']:.3f} on {result['suite']}; at least {required:g} was "
            "asked for: the bundle is not stamped"
        )
    return EvaluationStamp(
        digest=digest,
        suite=str(result["suite"]),
        episodes=int(result["episodes"]),
        seed=int(result["seed"]),
        measure=measure,
        score=float(score["mean"]),
        score_low=float(score["low"]),
        score_high=float(score["high"]),
        falls_per_minute=float(result["falls_per_minute"]),
        clamped_share=float(result["clamped_share"]),
        required=float(required),
        git_sha=git_sha,
    )


def stamped(data: bytes, stamp: EvaluationStamp) -> bytes:
    """A bundle's bytes with this stamp in place of any it had."""
    return with_metadata(without_metadata(data, EVALUATION_KEY), {EVALUATION_KEY: stamp.to_json()})


def required_score(asked: bool, minimum: float) -> float | None:
    """What ``require_evaluation`` and ``minimum_score`` of a node ask of a bundle.

    Returns:
        The lowest score, or None where no evaluation is asked for. A minimum above zero asks for
        one by itself: a score that nobody checks would be a trap.
    """
    return minimum if asked or minimum > 0.0 else None


def strictest(
    given: Mapping[str, Mapping[str, Any]], *, minimum: float | None = None
) -> float | None:
    """The lowest score that all who ask for one accept.

    Args:
        given: parameters by node, as :func:`deploy.parameters.read_parameter_file` reads them.
        minimum: what is asked for elsewhere, e.g. on the command line.
    """
    asked = [
        required_score(
            bool(values.get("require_evaluation", False)), float(values.get("minimum_score", 0.0))
        )
        for values in given.values()
    ]
    return max((score for score in [minimum, *asked] if score is not None), default=None)


def require_score(stamp: EvaluationStamp | None, minimum: float | None, *, source: str) -> None:
    """Refuse a bundle that nothing, or too little, speaks for.

    Args:
        stamp: that the bundle carries.
        minimum: lowest score; None asks for no evaluation.
        source: what to call the bundle.

    Raises:
        BundleError: it carries no evaluation, or its score is below ``minimum``.
    """
    if minimum is None:
        return
    if stamp is None:
        raise BundleError(
            f"{source}: it carries no evaluation, and this robot requires one: `ferry evaluate "
            f"{source} --stamp {minimum:g}`, then sign it again"
        )
    if not stamp.score >= minimum:
        raise BundleError(
            f"{source}: its evaluation says {stamp.measure} {stamp.score:.3f} on {stamp.suite}; "
            f"this robot requires at least {minimum:g}"
        )
