"""An ablation on the toy env: real runs, whose results are skipped, resumed and compared."""

from __future__ import annotations

import json
import math
from pathlib import Path

import numpy as np
import pytest
import torch

from real.config import load_config
from real.errors import ConfigError, FerryError
from tests.training.toy_run import FRAGMENT, SMALL, score, toy_env
from training import ablate as module
from training.ablate import AblationConfig, ablate, cells, read_results
from training.ablate_report import (
    AXES,
    Point,
    Record,
    cell_scores,
    common_limit,
    effects,
    score_at,
    write_report,
)
from training.run_config import load_run_config, side_by_side_config

torch.set_num_threads(1)

FILE = f"""
schema_version: 1
steps: {4 * FRAGMENT}
set: [training.run.evaluate_every=2]
over:
  discount: {{key: training.ppo.gamma, values: [0.9, 0.99]}}
  rate: {{key: training.ppo.learning_rate, values: [1.0e-3, 3.0e-3]}}
"""


@pytest.fixture
def over(tmp_path: Path) -> Path:
    path = tmp_path / "over.yaml"
    path.write_text(FILE)
    return path


def run(over: Path, out: Path, seeds: int = 2, **options):
    return ablate(
        "a1_walk",
        over,
        seeds=seeds,
        out=out,
        overrides=SMALL,
        evaluate=score,
        env_factory=toy_env,
        **options,
    )


# ------------------------------------------------------------------ the runs


def test_a_grid_is_every_combination_with_the_overrides_that_make_it(over):
    found = cells(load_config(AblationConfig, over))
    assert [dict(cell.labels) for cell in found] == [
        {"discount": "0.9", "rate": "0.001"},
        {"discount": "0.9", "rate": "0.003"},
        {"discount": "0.99", "rate": "0.001"},
        {"discount": "0.99", "rate": "0.003"},
    ]
    assert found[1].overrides == (
        "training.ppo.gamma=0.9",
        "training.ppo.learning_rate=0.003",
    )
    assert found[1].name(2) == "discount_0.9-rate_0.003-seed_2"


@pytest.mark.parametrize(
    ("name", "task", "size"),
    [("staleness", "cartpole_balance", 18), ("staleness_a1", "a1_walk", 8)],
)
def test_every_cell_of_a_shipped_ablation_is_read_as_its_labels_say(name, task, size):
    plan = load_config(AblationConfig, name, folder="ablations")
    assert list(plan.over) == ["staleness", "correction", "actors"]
    assert len(cells(plan)) == size
    for cell in cells(plan):
        config = side_by_side_config(load_run_config(task, [*plan.set, *cell.overrides]))
        runtime = config.training.runtime
        read = {
            "staleness": str(runtime.max_staleness),
            "correction": config.training.ppo.returns,
            "actors": str(runtime.actors),
        }
        assert read == cell.labels


@pytest.mark.parametrize(
    ("runtime", "key", "values"),
    [
        ("ray", "training.ppo.returns", "[vtrace, gae]"),  # training.runtime.returns rules
        ("serial", "training.runtime.max_staleness", "[4, 1]"),  # nothing is ever stale
        ("serial", "training.ppo.gamma", "[0.9, 0.9]"),  # a value twice
    ],
)
def test_a_factor_that_changes_nothing_is_refused_before_anything_runs(
    runtime, key, values, tmp_path
):
    over = tmp_path / "over.yaml"
    over.write_text(
        f"schema_version: 1\nruntime: {runtime}\nsteps: 100\n"
        f"over: {{thing: {{key: {key}, values: {values}}}}}\n"
    )
    with pytest.raises(FerryError, match=rf"the same run in the runtime {runtime}.*{key}"):
        run(over, tmp_path / "out")
    assert not (tmp_path / "out").exists()


@pytest.mark.slow
def test_every_cell_is_a_training_run_and_finished_ones_are_never_repeated(
    over, tmp_path, monkeypatch
):
    out = tmp_path / "out"
    started: list[Path] = []
    real = module.train

    def counted(config, folder, **options):
        started.append(folder)
        if len(started) == 4:
            raise FerryError("the power failed")
        return real(config, folder, **options)

    monkeypatch.setattr(module, "train", counted)
    with pytest.raises(FerryError, match="power"):
        run(over, out)
    partial = read_results(out / "results.jsonl")
    assert len(partial) == 3
    assert "3 of 8 runs are finished" in (out / "report.md").read_text()

    found = run(over, out)
    assert (found.finished, found.total) == (8, 8)
    assert len(started) == 4 + 5  # the failed one again, and the four of seed 1
    records = read_results(out / "results.jsonl")
    assert records[:3] == partial
    assert [r.seed for r in records] == [0] * 4 + [1] * 4  # all cells before the next seed
    assert all([p.step for p in r.curve] == [2 * FRAGMENT, 4 * FRAGMENT] for r in records)
    assert all(0.0 < r.curve[0].seconds < r.curve[1].seconds for r in records)
    # What is varied reached the runs: same seed and steps, other scores.
    finals = {r.curve[-1].score for r in records}
    assert len(finals) == 8

    again = run(over, out)
    assert again.finished == 8
    assert len(started) == 9


@pytest.mark.slow
def test_a_last_line_that_a_crash_cut_short_is_run_again(over, tmp_path):
    out = tmp_path / "out"
    run(over, out, seeds=1)
    path = out / "results.jsonl"
    whole = path.read_text()
    path.write_text(whole[:-40])
    assert len(read_results(path)) == 3
    assert run(over, out, seeds=1).finished == 4
    assert [json.loads(line)["cell"] for line in path.read_text().splitlines()] == [
        json.loads(line)["cell"] for line in whole.splitlines()
    ]
    path.write_text("nonsense\n" + whole)
    with pytest.raises(FerryError, match=r"results\.jsonl:1: this is no result"):
        read_results(path)


@pytest.mark.parametrize(
    "content",
    [b"\xff\xfe", b'{"cell": 3, "seed": 0, "fingerprint": "", "curve": [], "stats": {}}\n'],
)
def test_a_file_that_holds_no_results_is_one_clear_error(content, tmp_path):
    path = tmp_path / "results.jsonl"
    path.write_bytes(content)
    with pytest.raises(FerryError, match=r"results\.jsonl"):
        read_results(path)


def test_a_file_in_the_place_of_the_folder_of_runs_is_one_clear_error(over, tmp_path):
    (tmp_path / "out").write_text("a file")
    with pytest.raises(FerryError, match="cannot make the folder of the runs"):
        run(over, tmp_path / "out")


@pytest.mark.slow
def test_a_result_whose_line_only_lacks_its_end_is_kept(over, tmp_path):
    out = tmp_path / "out"
    run(over, out, seeds=1)
    path = out / "results.jsonl"
    whole = path.read_text()
    path.write_text(whole[:-1])
    assert len(read_results(path)) == 4
    assert path.read_text() == whole


@pytest.mark.slow
def test_results_of_other_settings_are_refused_before_anything_runs(over, tmp_path, monkeypatch):
    out = tmp_path / "out"
    run(over, out, seeds=1)
    over.write_text(FILE.replace("evaluate_every=2", "evaluate_every=1"))
    monkeypatch.setattr(module, "train", None)
    with pytest.raises(FerryError, match="of other settings"):
        run(over, out, seeds=1)


def test_a_mistake_in_the_last_cell_is_found_before_the_first_runs(over, tmp_path, monkeypatch):
    monkeypatch.setattr(module, "train", None)
    over.write_text(FILE.replace("3.0e-3]", "fast]"))
    with pytest.raises(ConfigError, match="learning_rate"):
        run(over, tmp_path / "out")
    with pytest.raises(FerryError, match="0 seeds"):
        run(over, tmp_path / "out", seeds=0)


# ------------------------------------------------------------------ what they say

ORDER = {"bound": ("4", "1"), "actors": ("1", "2", "8")}


def record(bound: str, actors: str, seed: int, curve, **stats: float) -> Record:
    points = tuple(Point(*point) for point in curve)
    return Record({"bound": bound, "actors": actors}, seed, "x", points, stats)


def test_a_run_is_worth_what_its_newest_policy_scored_within_the_limit():
    curve = [Point(100, 9.0, 0.2), Point(200, 14.0, 0.9), Point(300, 30.0, 0.5)]
    samples, clock = AXES["samples"][0], AXES["wall clock"][0]
    assert score_at(curve, 250, samples) == 0.9
    assert score_at(curve, 300, samples) == 0.5
    assert score_at(curve, 13.9, clock) == 0.2
    assert math.isnan(score_at(curve, 99, samples))


def test_equal_means_the_end_of_the_run_that_got_least_far():
    records = [
        record("4", "1", 0, [(100, 5.0, 0.1), (400, 20.0, 0.8)]),
        record("4", "2", 0, [(100, 2.0, 0.1), (300, 6.0, 0.6), (500, 8.0, 0.7)]),
    ]
    samples, clock = AXES["samples"][0], AXES["wall clock"][0]
    assert (common_limit(records, samples), common_limit(records, clock)) == (400.0, 8.0)
    by_samples = cell_scores(records, order=ORDER, axis=samples)
    assert [(row[0]["actors"], row[2].mean) for row in by_samples] == [("1", 0.8), ("2", 0.6)]
    by_clock = cell_scores(records, order=ORDER, axis=clock)
    assert [(row[0]["actors"], row[2].mean) for row in by_clock] == [("2", 0.7), ("1", 0.1)]


def test_an_effect_is_the_paired_difference_with_its_interval_by_hand():
    scores = {("4", 0): 0.50, ("4", 1): 0.70, ("4", 2): 0.60}
    scores |= {("1", 0): 0.40, ("1", 1): 0.58, ("1", 2): 0.52}
    records = [record(b, "2", seed, [(10, 1.0, s)]) for (b, seed), s in scores.items()]
    records.append(record("1", "8", 0, [(10, 1.0, 0.9)]))  # without a twin at bound 4
    effect, *others = effects(records, order=ORDER, axis=AXES["samples"][0])
    assert not others  # no run with another number of actors has a twin
    assert (effect.factor, effect.value, effect.reference) == ("bound", "1", "4")
    # differences -0.10, -0.12, -0.08: mean -0.1, s = 0.02, t(0.975, 2) = 4.3027
    assert effect.pairs == 3
    assert effect.difference.mean == pytest.approx(-0.1)
    half = 4.302653 * 0.02 / math.sqrt(3.0)
    assert effect.difference.low == pytest.approx(-0.1 - half, abs=1e-6)
    assert effect.difference.high == pytest.approx(-0.1 + half, abs=1e-6)
    assert effect.verdict == "worse"


def test_pairs_of_one_seed_count_once_for_the_interval():
    shifts = {("2", 0): -0.1, ("2", 1): -0.3, ("8", 0): -0.3, ("8", 1): -0.5}  # means -0.2, -0.4
    records = [
        record(bound, actors, seed, [(10, 1.0, 0.9 + (shift if bound == "1" else 0.0))])
        for (actors, seed), shift in shifts.items()
        for bound in ("4", "1")
    ]
    effect = next(e for e in effects(records, order=ORDER, axis=AXES["samples"][0]))
    assert (effect.factor, effect.pairs) == ("bound", 4)
    assert effect.difference.mean == pytest.approx(-0.3)
    half = 12.706205 * math.sqrt(0.02) / math.sqrt(2.0)  # t(0.975, 1), s of -0.2 and -0.4
    assert effect.difference.low == pytest.approx(-0.3 - half, abs=1e-6)
    assert effect.verdict == "no difference shown"


def test_a_difference_whose_interval_holds_zero_shows_nothing():
    records = [
        record(bound, "1", seed, [(10, 1.0, 0.5 + shift)])
        for bound, shifts in (("4", (0.0, 0.0, 0.0)), ("1", (0.1, -0.1, 0.05)))
        for seed, shift in enumerate(shifts)
    ]
    (effect,) = effects(records, order=ORDER, axis=AXES["samples"][0])
    assert effect.verdict == "no difference shown"


def test_the_report_compares_at_both_limits_and_says_what_follows(tmp_path):
    rng = np.random.default_rng(0)
    records = [
        record(
            bound,
            actors,
            seed,
            [(1000, 60.0 / int(actors), base + 0.01 * rng.normal())],
            **{"lag/mean": float(actors)},
        )
        for bound, base in (("4", 0.8), ("1", 0.5))
        for actors in ("1", "2", "8")
        for seed in range(3)
    ]
    path = tmp_path / "deep" / "report.md"
    write_report(path, records, order=ORDER, title="cart over bound", total=20)
    text = path.read_text()
    assert "18 of 20 runs are finished, 3 seeds" in text
    assert "## At equal samples: 1,000 control steps" in text
    assert "## At equal wall clock: 7.5 s" in text  # the eight actors were through by then
    assert "* **bound**: 4 is better than all others." in text
    assert "no value is shown to be better than 1" in text  # of actors
    assert "not evaluated by then" in text
    (row,) = [line for line in text.splitlines() if line.startswith("| bound | 1 | 4 | 9 |")][:1]
    assert row.endswith("| worse |")
    assert "lag/mean" in text


def test_a_report_of_nothing_says_so(tmp_path):
    write_report(tmp_path / "report.md", [], order=ORDER, title="x", total=8)
    assert "0 of 8 runs" in (tmp_path / "report.md").read_text()
    one = record("4", "1", 0, [])
    write_report(tmp_path / "report.md", [one], order=ORDER, title="x", total=8)
    assert "Nothing to compare yet." in (tmp_path / "report.md").read_text()


def test_a_policy_counts_from_when_it_was_there_not_from_when_its_score_came(tmp_path):
    def write(name: str, *records: dict) -> None:
        (tmp_path / name).write_text("".join(json.dumps(r) + "\n" for r in records))

    # Scored beside: 30 s after the update that made it. The first was loaded, not made, here.
    write(
        "metrics.jsonl",
        {"step": 100, "time/training_s": 10.0, "lag/mean": 1.0},
        {"step": 200, "time/training_s": 20.0, "lag/mean": 3.0},
        {"step": 200, "evaluation/score": 0.7},
    )
    write(
        "evaluations.jsonl",
        {"step": 50, "training_s": 6.0, "score": 0.1},
        {"step": 200, "training_s": 50.0, "score": 0.7},
    )
    (cell, *_) = cells(load_config(AblationConfig, "staleness", folder="ablations"))
    record = module._record(cell, 3, "", tmp_path)
    assert [(p.step, p.seconds, p.score) for p in record.curve] == [
        (50, 6.0, 0.1),
        (200, 20.0, 0.7),
    ]
    assert record.stats["lag/mean"] == 2.0
