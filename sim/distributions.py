"""Distributions as a user writes them: ``=U(a, b)``, ``*U(a, b)``, ``+U(a, b)`` and relatives.

The first character says what a draw does to the nominal value: ``=`` replaces it, ``*`` scales it,
``+`` is added to it. Then comes what is drawn:

===================  =====================================================================
``U(a, b)``          uniform between a and b
``LogU(a, b)``       uniform in the logarithm between a and b, both > 0
``N(m, s)``          normal with mean m and standard deviation s, cut off at m +- 3 s
``choice(a, b, c)``  one of these numbers, each as likely; two or more
===================  =====================================================================

The cut keeps a rare draw from making a mass negative: what a distribution can give is known when
it is read, and is checked then.
"""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal, cast

import numpy as np
from numpy.typing import NDArray

from real.errors import ConfigError, nearest

Array = NDArray[np.float64]
Op = Literal["=", "*", "+"]
Kind = Literal["U", "LogU", "N", "choice"]

#: A normal is cut off at this many standard deviations; 0.3 % of draws are drawn again.
CUT = 3.0

_KINDS: tuple[Kind, ...] = ("U", "LogU", "N", "choice")
_FORM = re.compile(r"\s*([=*+]?)\s*([A-Za-z_]\w*)\s*\(([^()]*)\)\s*")
_EXAMPLES = '"=U(0.4, 1.2)", "*U(0.8, 1.2)", "+U(-0.02, 0.02)", "*LogU(0.5, 2)" or "*N(1, 0.1)"'


@dataclass(frozen=True)
class Distribution:
    """One random number and what it does to a nominal value.

    Attributes:
        op: ``=`` replaces the nominal value, ``*`` scales it, ``+`` is added to it.
        kind: the law of the draw.
        a: low end of U and LogU, mean of N, least of a choice.
        b: high end of U and LogU, standard deviation of N, largest of a choice.
        options: of a choice, in the order of the text.
    """

    op: Op
    kind: Kind
    a: float
    b: float
    options: tuple[float, ...] = ()

    def __str__(self) -> str:
        """As :func:`parse_distribution` reads it."""
        inside = ", ".join(f"{x:g}" for x in self.options or (self.a, self.b))
        return f"{self.op}{self.kind}({inside})"

    @property
    def low(self) -> float:
        """Smallest draw there can be."""
        return self.a - CUT * self.b if self.kind == "N" else self.a

    @property
    def high(self) -> float:
        """Largest draw there can be."""
        return self.a + CUT * self.b if self.kind == "N" else self.b

    def apply(self, nominal: Array, draw: Array) -> Array:
        """What becomes of nominal values; the two broadcast.

        A draw of 1 under ``*`` and of 0 under ``+`` gives the nominal value back, bit by bit.
        """
        if self.op == "*":
            return nominal * draw
        if self.op == "+":
            return nominal + draw
        return draw if draw.shape[-1:] == nominal.shape else draw + np.zeros_like(nominal)

    def bounds(self, nominal: Array) -> tuple[Array, Array]:
        """Smallest and largest value that a nominal one can become."""
        ends = np.stack([self.apply(nominal, np.array(end)) for end in (self.low, self.high)])
        return ends.min(axis=0), ends.max(axis=0)


def parse_distribution(text: str) -> Distribution:
    """Read a distribution such as ``*U(0.8, 1.2)``.

    Raises:
        ConfigError: saying what was found and what is expected.
    """
    match = _FORM.fullmatch(text)
    if match is None:
        raise ConfigError(f"cannot read the distribution {text!r}; expected e.g. {_EXAMPLES}")
    op, kind, inside = match.groups()
    if not op:
        raise ConfigError(
            f"the distribution {text!r} does not say what it does to the nominal value; expected "
            f"= (replace), * (scale) or + (add) in front, e.g. {_EXAMPLES}"
        )
    if kind not in _KINDS:
        raise ConfigError(
            f"{text!r}: no distribution {kind!r}{nearest(kind, _KINDS)}; expected "
            "U(low, high), LogU(low, high), N(mean, standard deviation) or choice(a, b, c)"
        )
    if kind == "choice":
        options = _numbers(text, inside, at_least=2)
        return Distribution(cast("Op", op), "choice", min(options), max(options), tuple(options))
    a, b = _numbers(text, inside)
    if kind == "N" and b < 0.0:
        raise ConfigError(f"{text!r}: the standard deviation is {b:g}; expected >= 0")
    if kind != "N" and a > b:
        raise ConfigError(f"{text!r}: the low end {a:g} is above the high end {b:g}")
    if kind == "LogU" and a <= 0.0:
        raise ConfigError(f"{text!r}: the low end is {a:g}; a logarithm needs it > 0")
    return Distribution(op=cast("Op", op), kind=cast("Kind", kind), a=a, b=b)


def _numbers(text: str, inside: str, *, at_least: int | None = None) -> list[float]:
    """The finite numbers in the brackets: two, or ``at_least`` as many."""
    try:
        values = [float(part) for part in inside.split(",")]
    except ValueError:
        values = []
    enough = len(values) == 2 if at_least is None else len(values) >= at_least
    if not enough or not all(math.isfinite(value) for value in values):
        count = "two" if at_least is None else "two or more"
        raise ConfigError(
            f"{text!r}: expected {count} finite numbers in the brackets, found {inside!r}"
        )
    return values


class Sampler:
    """Draws many numbers of several distributions with few calls of the generator.

    Args:
        parts: each distribution and how many numbers of it there are.

    Attributes:
        size: P, how many numbers one draw has.
    """

    def __init__(self, parts: Sequence[tuple[Distribution, int]]) -> None:
        laws = [law for law, count in parts for _ in range(count)]
        self.size: int = len(laws)
        self._normal: NDArray[np.intp] = np.flatnonzero([law.kind == "N" for law in laws])
        self._uniform: NDArray[np.intp] = np.flatnonzero([law.kind != "N" for law in laws])
        every = self._uniform.size == self.size
        self._uniform_at: slice | NDArray[np.intp] = slice(None) if every else self._uniform
        self._log: NDArray[np.intp] = np.flatnonzero([law.kind == "LogU" for law in laws])
        self._chosen = [(i, np.array(law.options)) for i, law in enumerate(laws) if law.options]
        low = [math.log(law.a) if law.kind == "LogU" else law.a for law in laws]
        high = [math.log(law.b) if law.kind == "LogU" else law.b for law in laws]
        self._low: Array = np.array(low)
        self._width: Array = np.array(high) - self._low
        self._spread: Array = np.array([law.b for law in laws])
        self._least: Array = np.array([law.low for law in laws])
        self._most: Array = np.array([law.high for law in laws])
        # Where a draw lies between the ends, measured as it is drawn.
        ends = np.stack([self._least, self._most])
        ends[:, self._log] = np.log(ends[:, self._log])
        self._middle: Array = 0.5 * (ends[0] + ends[1])
        self._half: Array = 0.5 * (ends[1] - ends[0])
        self._half[self._half == 0.0] = 1.0  # a single point is its own middle

    def draw(self, rng: np.random.Generator) -> Array:
        """``[P]`` numbers, in the order of the distributions."""
        out = np.empty(self.size)
        if self._uniform.size:
            # A slice where all are uniform: faster by far than a list of places.
            where = self._uniform_at
            out[where] = self._low[where] + self._width[where] * rng.random(self._uniform.size)
            if self._log.size:
                out[self._log] = np.exp(out[self._log])
        for at, options in self._chosen:
            # A uniform number between the ends, as a share of them, says which.
            share = (out[at] - self._low[at]) / (self._width[at] or 1.0)
            out[at] = options[min(int(share * options.size), options.size - 1)]
        if self._normal.size:
            where = self._normal
            out[where] = self._low[where] + self._spread[where] * _cut_normal(rng, where.size)
        # Rounding may step over an end by one bit, which what was checked at load does not allow.
        return np.minimum(np.maximum(out, self._least, out=out), self._most, out=out)

    def normalize(self, draws: Array) -> Array:
        """Draws ``[..., P]`` as numbers in [-1, 1], 0 in the middle of what can be drawn.

        LogU is measured in the logarithm.
        """
        if self._log.size:
            draws = draws.copy()
            draws[..., self._log] = np.log(draws[..., self._log])
        return (draws - self._middle) / self._half


def _cut_normal(rng: np.random.Generator, size: int) -> Array:
    """Standard normal numbers within +-CUT; those outside are drawn again."""
    out = rng.standard_normal(size)
    outside = np.flatnonzero(np.abs(out) > CUT)
    while outside.size:
        out[outside] = rng.standard_normal(outside.size)
        outside = outside[np.abs(out[outside]) > CUT]
    return out
