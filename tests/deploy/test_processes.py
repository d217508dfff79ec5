"""The supervisor with small programs that speak its protocol in place of nodes."""

from __future__ import annotations

import os
import shutil
import signal
import tempfile

import pytest

from deploy import processes
from deploy.graph import Graph, NodeSpec
from deploy.graph_run import run_graph
from deploy.processes import RECORDER_STOP_S, STOP_S, Supervisor

PREAMBLE = """
import json, os, pathlib, signal, sys, threading, time
ready = pathlib.Path(__file__).with_suffix(".ready")
def say(event, **fields):
    print(json.dumps({"node": "x", "event": event, **fields}), flush=True)
def until_end_of_input(told):
    while os.read(0, 100):
        pass
    told.append(0)
def until_told(*, handle=True):
    told = []
    if handle:
        signal.signal(signal.SIGINT, lambda *_: told.append(1))
    threading.Thread(target=until_end_of_input, args=(told,), daemon=True).start()
    ready.touch()
    say("ready")
    while not told:
        time.sleep(0.01)
    say("summary", stopped_at=time.time())
"""
PROGRAMS = {
    "good": "until_told()",
    "stubborn": "signal.signal(signal.SIGINT, signal.SIG_IGN); say('ready'); time.sleep(60)",
    "finishing": "say('ready'); time.sleep(0.3); say('summary', completed=True)",
    # Not before the others can be stopped in order.
    "failing": (
        "say('ready')\nwhile not ready.with_name('good_program.ready').exists(): time.sleep(0.01)\n"
        "sys.stderr.write('what happened'); sys.exit(3)"
    ),
    "explaining": "say('ready'); say('error', message='gains differ'); sys.exit(2)",
    "chatty": "print('vendor banner'); print('{not json'); print('[1]'); until_told()",
    "moving": "say('ready'); say('mode', mode='RAMP', reason='armed'); until_told()",
    "slow": "time.sleep(0.6); say('listening', at=time.time()); until_told()",
    "deaf": "signal.signal(signal.SIGINT, signal.SIG_IGN); until_told(handle=False)",
    "commanding": "say('began', at=time.time()); say('ready')",
    "orphan": (
        "say('ready')\nwhile os.read(0, 100): pass\n"
        "open(os.environ['GONE'], 'w').write('seen'); sys.exit(0)"
    ),
}


FINISHING = ("finishing", "commanding")


@pytest.fixture(autouse=True)
def temporary(tmp_path, monkeypatch):
    """Logs of nodes that end badly are kept: here, where pytest removes them."""
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))


@pytest.fixture
def make(tmp_path):
    for name, body in PROGRAMS.items():
        (tmp_path / f"{name}_program.py").write_text(PREAMBLE + body)

    def build(*programs):
        nodes = []
        for program in programs:
            nth = sum(n.name.startswith(program) for n in nodes)
            name = "recorder_node" if program == "recorder" else f"{program}{nth}"
            module = "good_program" if program == "recorder" else f"{program}_program"
            nodes.append(NodeSpec(name, module, {}, finishes=program in FINISHING))
        environment = {"PYTHONPATH": str(tmp_path), "GONE": str(tmp_path / "gone")}
        return Graph(nodes=tuple(nodes), environment=environment, simulated=True)

    return build


@pytest.mark.slow
def test_a_node_that_finishes_ends_the_graph_as_planned(make):
    said = []
    report = run_graph(make("finishing", "good", "good"), on_status=said.append)
    assert report.ok
    assert report.reason == "finishing0 has finished"
    assert report.exit_codes == {"finishing0": 0, "good0": 0, "good1": 0}
    assert report.summaries["finishing0"]["completed"] is True
    assert sorted(said) == ["finishing0: ready", "good0: ready", "good1: ready"]


@pytest.mark.slow
def test_who_commands_is_started_when_everybody_else_is_ready(make):
    at = {}
    with Supervisor(make("commanding", "good", "slow")) as run:
        assert set(run.processes) == {"good0", "slow0"}
        while "began" not in at:
            found = run.poll(0.1)
            if found is not None and "at" in found[1]:
                at[found[1]["event"]] = found[1]["at"]
    assert at["listening"] <= at["began"]
    assert all(process.returncode is not None for process in run.processes.values())


def test_a_graph_stopped_before_everybody_was_ready_starts_nobody_else(make):
    with Supervisor(make("commanding", "slow")) as run:
        pass
    assert "commanding0" not in run.processes


def test_a_node_that_lost_the_signal_while_it_started_stops_at_the_end_of_its_input(make):
    report = run_graph(make("deaf", "good"), seconds=0.1)
    assert report.ok, report.reason
    assert report.exit_codes == {"deaf0": 0, "good0": 0}


@pytest.mark.slow
def test_the_folder_of_logs_is_kept_where_something_went_wrong(make):
    well = run_graph(make("finishing", "good"))
    assert not well.log_dir.exists()
    badly = run_graph(make("good", "failing"))
    assert (badly.log_dir / "failing0.log").read_text() == "what happened"
    shutil.rmtree(badly.log_dir)


def test_a_node_that_ends_early_stops_all_and_is_quoted(make):
    report = run_graph(make("good", "failing"))
    assert not report.ok
    assert report.reason == "failing0 ended (3): what happened"
    assert report.exit_codes == {"good0": 0, "failing0": 3}


def test_a_nodes_own_explanation_comes_before_its_log(make):
    report = run_graph(make("good", "explaining"))
    assert report.reason == "explaining0 ended (2): gains differ"


def test_a_killed_node_is_called_killed(make):
    with Supervisor(make("good", "good")) as run:
        while len(run.ready) < 2:
            run.poll(0.1)
        run.processes["good1"].kill()
        run.processes["good1"].wait()
        node, code = run.ended()
        assert run.why_ended(node, code).startswith("good1 was killed by SIGKILL")


def test_time_is_counted_from_when_all_are_ready(make):
    report = run_graph(make("good"), seconds=0.3)
    assert report.ok
    assert report.reason == "ran for 0.3 s"
    assert report.seconds > 0.3


@pytest.mark.slow
def test_what_does_not_stop_is_killed_which_is_no_end_as_planned(make, monkeypatch):
    monkeypatch.setattr(processes, "STOP_S", 0.2)
    report = run_graph(make("good", "finishing", "stubborn"))
    assert report.exit_codes == {"good0": 0, "finishing0": 0, "stubborn0": -signal.SIGKILL}
    assert not report.ok
    assert report.killed == ("stubborn0",)
    assert report.reason.startswith("finishing0 has finished; had to kill stubborn0, not stopped")
    # Its log is what says why, so it stays.
    assert report.log_dir.is_dir()
    shutil.rmtree(report.log_dir)


def test_what_does_not_stop_is_killed_and_all_is_over_within_fifteen_seconds(make, monkeypatch):
    assert 2 * STOP_S + RECORDER_STOP_S <= 15.0  # three groups, one after the other
    monkeypatch.setattr(processes, "STOP_S", 0.2)
    report = run_graph(make("stubborn", "stubborn"), seconds=0.1)
    assert set(report.exit_codes.values()) == {-signal.SIGKILL}


def test_the_recorder_has_longer_to_stop_than_those_it_records(make, monkeypatch):
    """With no time at all, whoever does not end by himself is killed; the recorder may finish."""
    monkeypatch.setattr(processes, "STOP_S", 0.0)
    report = run_graph(make("stubborn", "recorder"), seconds=0.1)
    assert report.killed == ("stubborn0",)
    assert report.exit_codes["recorder_node"] == 0


def test_the_recorder_is_stopped_after_everybody_else(make):
    report = run_graph(make("recorder", "good", "good"), seconds=0.1)
    stops = {n: s["stopped_at"] for n, s in report.summaries.items()}
    assert stops["recorder_node"] > max(stops["good0"], stops["good1"])


def test_what_is_no_event_goes_to_the_log(make, tmp_path):
    logs = tmp_path / "logs"
    logs.mkdir()
    report = run_graph(make("chatty"), seconds=0.1, log_dir=logs)
    assert report.ok
    assert (logs / "chatty0.log").read_text() == "vendor banner\n{not json\n[1]\n"


def test_changes_of_mode_are_kept_and_progress_is_told(make):
    told = []
    report = run_graph(make("moving"), seconds=0.4, progress=lambda *now: told.append(now))
    assert [(mode, why) for _, mode, why in report.modes] == [("RAMP", "armed")]
    done = [now for now, _, _ in told]
    assert done == sorted(done)
    assert {total for _, total, _ in told} == {0.4}
    assert told[-1][2] == "RAMP"


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_an_interrupt_stops_the_graph_and_gives_the_handlers_back(make, number):
    before = signal.getsignal(number)

    def interrupt(line):
        if line == "good0: ready":
            os.kill(os.getpid(), number)

    report = run_graph(make("good"), seconds=600.0, on_status=interrupt)
    assert (report.ok, report.reason) == (True, "interrupted")
    assert report.exit_codes == {"good0": 0}
    assert signal.getsignal(number) is before


def test_an_exception_in_between_leaves_no_process(make, monkeypatch):
    monkeypatch.setattr(processes, "STOP_S", 0.2)
    with pytest.raises(RuntimeError, match="mine"), Supervisor(make("good", "stubborn")) as run:
        raise RuntimeError("mine")
    assert all(process.returncode is not None for process in run.processes.values())


def test_nodes_see_the_end_of_their_supervisor_as_the_end_of_their_input(make, tmp_path):
    with Supervisor(make("orphan")) as run:
        while not run.ready:
            run.poll(0.1)
        run.processes["orphan0"].stdin.close()
        assert run.processes["orphan0"].wait(timeout=60.0) == 0
    assert (tmp_path / "gone").read_text() == "seen"
