"""Domain randomisation: random terms drawn for every episode of every world, written and kept.

The table is read by :mod:`sim.random_table`, its notation by :mod:`sim.distributions`; what terms
there are says :mod:`sim.random_terms`. A term that could not change anything is refused when the
table is read or met with a robot.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from real.domain import DomainSample
from real.errors import FerryError
from real.signals import RobotState
from sim.curriculum import Curriculum, CurriculumConfig, Range
from sim.distributions import Distribution, Sampler
from sim.engine import Array, Engine, Ids
from sim.engine_terms import delay_room, delay_setter, target_maker
from sim.pushes import Pushes
from sim.random_table import (
    RandomizeConfig,
    RandomTermConfig,
    delay_max_s,
    least_value,
    observed_max_s,
    read_table,
)
from sim.random_terms import TERMS, Target
from sim.redraws import Redraws
from sim.signal_errors import SIGNAL_TERMS, SignalErrors
from sim.state import Stateful

__all__ = ["RandomTermConfig", "RandomizeConfig", "Randomizer", "delay_max_s", "least_value"]

State = dict[str, NDArray[np.generic]]


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

    def write(self, rows: Ids, draws: Array) -> Array:
        """Put draws ``[n, P]`` in force; gives values ``[n, K]``."""
        nominal = self.target.nominal
        values = self.law.apply(nominal, draws[:, self.where])  # [n, 1 or K] -> [n, K]
        if values.shape != (rows.size, nominal.size):
            values = np.broadcast_to(values, (rows.size, nominal.size))
        self.target.write(rows, values)
        return values


class Randomizer:
    """Draws random terms for N worlds and writes them into the engine.

    Args:
        terms: the table, as in :data:`RandomizeConfig` or as read from YAML.
        engine: the worlds.
        control_dt_s: control period [s], between two calls of :meth:`before_step`.
        rngs: one generator per world, so that no world's draws depend on another.
        curriculum: when ranges grow; None for whole ranges from the start.

    Attributes:
        curriculum: how far ranges have grown; None for none.
        errors: what becomes of targets and signals outside the engine; None for nothing.
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
        curriculum: CurriculumConfig | None = None,
    ) -> None:
        if len(rngs) != engine.num:
            raise ValueError(f"{len(rngs)} generators for {engine.num} worlds; expected one each")
        self._engine, self._rngs = engine, rngs
        table = read_table(terms)
        names = [name for name in table if name in SIGNAL_TERMS]
        self.errors: SignalErrors | None = None
        if names or "gravity_tilt" in table:
            self.errors = SignalErrors(
                engine,
                names,
                set_delay=delay_setter(engine),
                delay_max_s=delay_room(engine)
                - (table["delay"][0].high if "delay" in table else 0),
                observed_max_s=observed_max_s(table),
                control_dt_s=control_dt_s,
            )
        self._terms: list[_Term] = []
        start, make = 0, target_maker(engine)
        for name, (law, config) in table.items():
            local = self.errors is not None and name in SIGNAL_TERMS
            target = self.errors.target(name) if self.errors and local else make(name)
            if target is not None:
                term = _Term(name, law, config, target, start)
                start = term.where.stop
                self._terms.append(term)
        self.names: tuple[str, ...] = tuple(c for term in self._terms for c in term.columns)
        self.columns: dict[str, slice] = {term.name: term.where for term in self._terms}
        self.privileged_dim: int = len(self.names)
        self._sampler = Sampler([(term.law, len(term.columns)) for term in self._terms])
        self._derives = any(term.target.derives for term in self._terms)
        # What the episode began with, and what is in force: the same without redraws.
        self._draws: Array = np.zeros((engine.num, self.privileged_dim))
        self._kept: Array = np.full((engine.num, self.privileged_dim), np.nan)
        self._once: Ids = _columns(t for t in self._terms if table[t.name][1].when == "once")
        self._changing = [t for t in self._terms if table[t.name][1].interval_s is not None]
        self._redraws: Redraws | None = None
        if self._changing:
            waits = [table[term.name][1].interval_s or (1.0, 1.0) for term in self._changing]
            self._redraws = Redraws(waits, engine.num, control_dt_s=control_dt_s)
            self._parts = [Sampler([(t.law, len(t.columns))]) for t in self._changing]
        self._now: Array = self._draws.copy() if self._changing else self._draws
        self.curriculum: Curriculum | None = None
        if curriculum is not None:
            ranges = [Range(t.name, t.law, t.where, t.target.nominal) for t in self._terms]
            self.curriculum = Curriculum(curriculum, ranges, engine.num)
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
            draws = np.array([self._sampler.draw(rng) for rng in rngs])
            if self.curriculum is not None:
                self.curriculum.narrow(rows, draws, rngs)
            if self._once.size:
                at, kept = (rows[:, None], self._once), draws[:, self._once]
                self._kept[at] = np.where(np.isnan(self._kept[at]), kept, self._kept[at])
                draws[:, self._once] = self._kept[at]
            self._put(rows, draws)
        if self.errors is not None:
            self.errors.begin(rows)
        if self._pushes is not None:
            self._pushes.begin(rows, rngs)
        if self._redraws is not None:
            self._redraws.begin(rows, rngs)

    def forget(self) -> None:
        """Draw anew also what is drawn once, as for a new seed."""
        self._kept[...] = np.nan

    def before_step(self) -> None:
        """Push or change the worlds whose time has come; before every control step."""
        if self._pushes is not None:
            self._pushes.step(self._rngs)
        if self._redraws is not None:
            due = self._redraws.due(self._rngs)
            for row, index in due:
                where = self._changing[index].where
                self._now[row, where] = self._parts[index].draw(self._rngs[row])
            if due:
                self._write(np.unique([row for row, _ in due]))
        if self.errors is not None:
            self.errors.before_step(self._rngs)

    def to_motors(self, q_des: Array) -> Array:
        """Targets ``[N, A]`` as they reach the drives; after :meth:`before_step`."""
        return q_des if self.errors is None else self.errors.to_motors(q_des)

    def reported(self, state: RobotState) -> RobotState:
        """True signals of N robots as perfect sensors report them in worlds such as these."""
        return state if self.errors is None else self.errors.sensed(state)

    def replay(self, row: int, sample: DomainSample) -> None:
        """Give world ``row`` what another one had; pushes follow its own generator.

        Raises:
            FerryError: the sample is of another table.
        """
        others = ("push", "terrain")  # which are not drawn here
        found = {name: len(v) for name, v in sample.values.items() if name not in others}
        expected = {term.name: len(term.columns) for term in self._terms}
        if found != expected:
            raise FerryError(f"the sample has the terms {found}; expected {expected}")
        draws = np.concatenate([[], *(sample.values[term.name] for term in self._terms)])
        self._put(np.array([row]), draws[None, :])
        if self.curriculum is not None:
            self.curriculum.forget(row)

    def _put(self, rows: Ids, draws: Array) -> None:
        self._draws[rows] = self._now[rows] = draws
        self._write(rows)
        if self._derives:
            self._engine.refresh_constants(rows)

    def _write(self, rows: Ids) -> None:
        draws = self._now[rows]
        self._values[rows] = self._sampler.normalize(draws)
        for term in self._terms:
            term.target.restore(rows)
        values = {term.name: term.write(rows, draws) for term in self._terms}
        if self.errors is not None:
            if "gravity_tilt" in values:
                self.errors.tilted(rows, values["gravity_tilt"])
            late = values["delay"][:, 0] if "delay" in values else np.zeros(rows.size)
            self.errors.delayed(rows, late)

    def learn(self, rows: Ids, episode: Mapping[str, NDArray[np.generic]], could_s: Array) -> None:
        """Episodes of worlds ``rows`` ended; a curriculum may widen or narrow its ranges.

        Args:
            rows: n worlds, before they draw anew.
            episode: what the episodes were, see :meth:`sim.episodes.Episodes.close`.
            could_s: ``[n]`` how long they could have lasted [s].
        """
        if self.curriculum is not None and rows.size:
            self.curriculum.note(rows, self.curriculum.measured(episode) / could_s)

    def sample(self, row: int) -> DomainSample:
        """What world ``row`` drew for its episode.

        Draws are as drawn: factors under ``*``, additions under ``+``; of terms that change within
        it, the first. ``push`` lists (time since
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
        """``[N, P]`` draws in force, scaled to [-1, 1], for a critic; no pushes."""
        return self._values

    def state_dict(self) -> State:
        """Draws and the state of pushes, copied. Engine and generators are saved by their owner."""
        out: State = {"draws": self._draws.copy(), "values": self._values.copy()}
        if self._once.size:
            out["kept"] = self._kept.copy()
        if self._redraws is not None:
            out["now"] = self._now.copy()
        for part in self._parts_with_state():
            out |= part.state_dict()
        return out

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
        if self._once.size:
            self._kept[...] = state["kept"]
        if self._redraws is not None:
            self._now[...] = state["now"]
        for part in self._parts_with_state():
            part.load_state_dict(state)

    def _parts_with_state(self) -> list[Stateful]:
        parts = (self._pushes, self._redraws, self.errors, self.curriculum)
        return [part for part in parts if part is not None]


def _columns(terms: Iterable[_Term]) -> Ids:
    at = [np.arange(term.where.start, term.where.stop) for term in terms]
    return np.concatenate([np.zeros(0, dtype=np.intp), *at])
