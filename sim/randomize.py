"""Domain randomisation: a table of random terms, drawn anew for every episode of every world.

In a task file::

    randomize:
      friction: "=U(0.4, 1.2)"
      mass: "*U(0.8, 1.2)"                             # every body its own
      kp: {value: "*U(0.8, 1.2)", per: world}          # one draw for all joints
      delay: "=U(0.0, 0.02)"                           # s
      push: {value: "=U(-1, 1)", interval_s: [4, 8]}   # m/s, every 4 to 8 s

The notation is that of :mod:`sim.distributions`, the terms are those of :mod:`sim.random_terms`.
A term that could not change anything is refused when the table is read or met with a robot.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Annotated, Any, cast

import numpy as np
from numpy.typing import NDArray
from pydantic import AfterValidator, BeforeValidator, Field

from real.config import Config, parse_config
from real.domain import DomainSample
from real.errors import ConfigError, FerryError, nearest
from sim.distributions import Distribution, Sampler, parse_distribution
from sim.engine import Array, Engine, Ids
from sim.engine_terms import target_maker
from sim.pushes import Pushes
from sim.random_terms import TERMS, Per, Target

State = dict[str, NDArray[np.generic]]
Seconds = Annotated[float, Field(gt=0.0)]


class RandomTermConfig(Config):
    """One random term, where a distribution alone does not say everything."""

    value: str = Field(description='distribution such as "*U(0.8, 1.2)"')
    per: Per | None = Field(default=None, description="what has a draw of its own")
    interval_s: tuple[Seconds, Seconds] | None = Field(
        default=None, description="time between pushes, low and high [s]"
    )


def check_terms(terms: dict[str, str | RandomTermConfig]) -> dict[str, str | RandomTermConfig]:
    """Check what can be checked without a robot: names, distributions, options.

    Raises:
        ConfigError: with what was found and what is expected.
    """
    for name, term in terms.items():
        _read_term(name, term)
    return terms


def _leave_out(terms: Any) -> Any:
    """Drop terms that are null, which is how an override takes one away; a misspelt one is none."""
    if not isinstance(terms, dict):
        return terms
    given: dict[Any, Any] = cast("Any", terms)
    for name in given:
        if given[name] is None and name not in TERMS:
            raise _unknown(str(name))
    return {name: term for name, term in given.items() if term is not None}


RandomizeConfig = Annotated[
    dict[str, str | RandomTermConfig], BeforeValidator(_leave_out), AfterValidator(check_terms)
]
"""The ``randomize`` section of a task: term -> distribution, a mapping with options, or null."""


class _Table(Config):
    randomize: RandomizeConfig = {}


def _read_term(name: str, term: str | RandomTermConfig) -> tuple[Distribution, RandomTermConfig]:
    kind = TERMS.get(name)
    if kind is None:
        raise _unknown(name)
    config = RandomTermConfig(value=term) if isinstance(term, str) else term
    law = _read_law(name, config.value, ops=kind.ops, doc=kind.doc, short=isinstance(term, str))
    if config.per is not None and config.per not in kind.per:
        raise ConfigError(
            f"random term {name!r} cannot be drawn per {config.per}; "
            f"expected {' or '.join(kind.per)}",
            key=(name, "per"),
        )
    timed, at = kind.make is None, (name, "interval_s")
    if timed and config.interval_s is None:
        said = f"random term {name!r} needs interval_s, e.g. interval_s: [4.0, 8.0]"
        raise ConfigError(said, key=(name,))
    if not timed and config.interval_s is not None:
        said = f"random term {name!r} is drawn once per episode; remove interval_s"
        raise ConfigError(said, key=at)
    if config.interval_s is not None and config.interval_s[0] > config.interval_s[1]:
        said = f"random term {name!r}: interval_s {config.interval_s} is empty"
        raise ConfigError(said, key=at)
    if timed and law.low == law.high == 0.0:
        said = f"random term {name!r}: {config.value!r} changes nothing; remove it"
        raise ConfigError(said, key=(name, "value"))
    return law, config


def _read_law(name: str, value: str, *, ops: str, doc: str, short: bool) -> Distribution:
    """The distribution of a term; ``short`` if it stands for the whole term."""
    key = (name,) if short else (name, "value")
    try:
        law = parse_distribution(value)
    except ConfigError as error:
        raise ConfigError(f"random term {name!r}: {error}", key=key) from error
    if law.op not in ops:
        raise ConfigError(
            f"random term {name!r} ({doc}) cannot be given by {law.op!r} as in {value!r}; "
            f"expected one of {', '.join(ops)}",
            key=key,
        )
    if law.low == law.high == {"*": 1.0, "+": 0.0}.get(law.op):
        said = f"random term {name!r}: {value!r} changes nothing; remove it"
        raise ConfigError(said, key=key)
    return law


def _unknown(name: str) -> ConfigError:
    return ConfigError(
        f"there is no random term {name!r}{nearest(name, TERMS)}; known: {', '.join(TERMS)}",
        key=(name,),
    )


def _read_table(terms: Mapping[str, Any]) -> dict[str, tuple[Distribution, RandomTermConfig]]:
    """Terms in the order of :data:`TERMS`, so that the order of the file means nothing."""
    if not all(isinstance(term, str | RandomTermConfig) for term in terms.values()):
        terms = parse_config(_Table, {"randomize": dict(terms)}, source="randomize").randomize
    read = {name: _read_term(name, term) for name, term in terms.items()}
    return {name: read[name] for name in TERMS if name in read}


def delay_max_s(terms: Mapping[str, Any]) -> float:
    """Longest delay that a table can draw [s]: the ``delay_max_s`` its engine needs."""
    table = _read_table(terms)
    return table["delay"][0].high if "delay" in table else 0.0


def least_value(terms: Mapping[str, Any], name: str, nominal: Array) -> Array | None:
    """Least values ``[K]`` that a table can draw for one of its terms; None if it is not there."""
    table = _read_table(terms)
    return table[name][0].bounds(nominal)[0] if name in table else None


class _Term:
    """A term of the table in an engine, with its columns of the draw."""

    def __init__(
        self, name: str, law: Distribution, config: RandomTermConfig, target: Target, start: int
    ) -> None:
        per = config.per or TERMS[name].per[0]
        self.name, self.law, self.target = name, law, target
        alone = per == "world" or len(target.labels) == 1
        self.columns: tuple[str, ...] = (
            (name,) if alone else tuple(f"{name}.{label}" for label in target.labels)
        )
        self.where = slice(start, start + len(self.columns))
        self._check()

    def _check(self) -> None:
        low, high = self.law.bounds(self.target.nominal)
        unit = TERMS[self.name].unit
        if (low == self.target.nominal).all() and (high == self.target.nominal).all():
            raise FerryError(
                f"random term {self.name!r}: {self.law} changes nothing, since the nominal value "
                f"is {self.target.nominal.max():g} {unit}; remove it, or use = or +"
            )
        if low.min() < self.target.low or high.max() > self.target.high:
            hint = "" if self.name != "delay" else "; the engine's delay_max_s sets the upper end"
            raise FerryError(
                f"random term {self.name!r}: {self.law} gives {low.min():g} to {high.max():g} "
                f"{unit}; expected {self.target.low:g} to {self.target.high:g}{hint}"
            )

    def write(self, rows: Ids, draws: Array) -> None:
        nominal = self.target.nominal
        values = self.law.apply(nominal, draws[:, self.where])  # [n, 1 or K] -> [n, K]
        self.target.write(rows, np.broadcast_to(values, (rows.size, nominal.size)))


class Randomizer:
    """Draws random terms for N worlds and writes them into the engine.

    Args:
        terms: the table, as in :data:`RandomizeConfig` or as read from YAML.
        engine: the worlds.
        control_dt_s: control period [s], between two calls of :meth:`before_step`.
        rngs: one generator per world, so that no world's draws depend on another.

    Attributes:
        names: P names, a term or ``term.joint``, of the columns of :meth:`values`.
        columns: where each term stands in them.
        privileged_dim: P.

    Raises:
        ConfigError: a term is unknown or badly written.
        FerryError: a term cannot change anything on this robot, or asks for values that make no
            sense.
    """

    def __init__(
        self,
        terms: Mapping[str, Any],
        engine: Engine,
        *,
        control_dt_s: float,
        rngs: Sequence[np.random.Generator],
    ) -> None:
        if len(rngs) != engine.num:
            raise ValueError(f"{len(rngs)} generators for {engine.num} worlds; expected one each")
        self._engine, self._rngs = engine, rngs
        table = _read_table(terms)
        self._terms: list[_Term] = []
        start, make = 0, target_maker(engine)
        for name, (law, config) in table.items():
            target = make(name)
            if target is not None:
                term = _Term(name, law, config, target, start)
                start = term.where.stop
                self._terms.append(term)
        self.names: tuple[str, ...] = tuple(c for term in self._terms for c in term.columns)
        self.columns: dict[str, slice] = {term.name: term.where for term in self._terms}
        self.privileged_dim: int = len(self.names)
        self._sampler = Sampler([(term.law, len(term.columns)) for term in self._terms])
        self._derives = any(term.target.derives for term in self._terms)
        self._draws: Array = np.zeros((engine.num, self.privileged_dim))
        self._values: Array = np.zeros((engine.num, self.privileged_dim))
        self._pushes: Pushes | None = None
        if "push" in table:
            law, config = table["push"]
            assert config.interval_s is not None  # checked with the table
            self._pushes = Pushes(law, config.interval_s, engine, control_dt_s=control_dt_s)

    def draw(self, rows: Ids) -> None:
        """Draw all terms anew for worlds ``rows``; to be called before they are reset."""
        rngs = [self._rngs[row] for row in rows.tolist()]
        if self._terms:
            self._put(rows, np.stack([self._sampler.draw(rng) for rng in rngs]))
        if self._pushes is not None:
            self._pushes.begin(rows, rngs)

    def before_step(self) -> None:
        """Push the worlds whose time has come; to be called before every control step."""
        if self._pushes is not None:
            self._pushes.step(self._rngs)

    def replay(self, row: int, sample: DomainSample) -> None:
        """Give world ``row`` what another one had; pushes follow its own generator.

        Raises:
            FerryError: the sample is of another table.
        """
        found = {name: len(v) for name, v in sample.values.items() if name != "push"}
        expected = {term.name: len(term.columns) for term in self._terms}
        if found != expected:
            raise FerryError(f"the sample has the terms {found}; expected {expected}")
        draws = np.concatenate([[], *(sample.values[term.name] for term in self._terms)])
        self._put(np.array([row]), draws[None, :])

    def _put(self, rows: Ids, draws: Array) -> None:
        self._draws[rows] = draws
        self._values[rows] = self._sampler.normalize(draws)
        for term in self._terms:
            term.target.restore(rows)
        for term in self._terms:
            term.write(rows, draws)
        if self._derives:
            self._engine.refresh_constants(rows)

    def sample(self, row: int) -> DomainSample:
        """What world ``row`` drew for its episode.

        Draws are as drawn: factors under ``*``, additions under ``+``. ``push`` lists (time since
        the episode began [s], velocity along x, along y [m/s]) of every push so far.
        """
        values = {name: self._draws[row, at].tolist() for name, at in self.columns.items()}
        if self._pushes is not None:
            values["push"] = list(self._pushes.of(row))
        return DomainSample(seed=self.seed_of(row), values=values)

    def drawn(self, rows: Ids) -> tuple[Array, list[list[float]] | None]:
        """Draws ``[n, P]`` of worlds ``rows``, copied, and the live lists of their pushes.

        The lists grow with the episodes and are never emptied; None for a table without pushes.
        """
        pushes = self._pushes
        return self._draws[rows], pushes and [pushes.of(row) for row in rows.tolist()]

    def seed_of(self, row: int) -> int:
        """Root seed of the generator of world ``row``; -1 if it has none."""
        entropy = getattr(self._rngs[row].bit_generator.seed_seq, "entropy", None)
        return entropy if isinstance(entropy, int) else -1

    def values(self) -> Array:
        """``[N, P]`` draws scaled to [-1, 1], for a critic; fixed within an episode, no pushes."""
        return self._values

    def state_dict(self) -> State:
        """Draws and the state of pushes, copied. Engine and generators are saved by their owner."""
        out: State = {"draws": self._draws.copy(), "values": self._values.copy()}
        return out if self._pushes is None else out | self._pushes.state_dict()

    def load_state_dict(self, state: State) -> None:
        """Restore what :meth:`state_dict` gave; the engine's fields are restored by the engine.

        Raises:
            FerryError: the state is of another table or number of worlds.
        """
        if state["draws"].shape != self._draws.shape:
            raise FerryError(
                f"randomiser state has draws {state['draws'].shape}; expected {self._draws.shape}"
            )
        self._draws[...] = state["draws"]
        self._values[...] = state["values"]
        if self._pushes is not None:
            self._pushes.load_state_dict(state)
