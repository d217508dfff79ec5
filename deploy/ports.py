"""Names and sizes of what goes into a policy's graph and what comes out."""

from __future__ import annotations

from real.contract import PolicyContract

#: What every graph takes and gives; one with a memory also takes and gives its state.
INPUT, OUTPUTS = "observation", ("mean", "log_std")


def inputs_of(contract: PolicyContract) -> dict[str, int]:
    """Names of the graph's inputs, in order, and how many numbers of a robot each takes."""
    state = contract.state
    return {INPUT: contract.observation.dim, **({} if state is None else {state.input: state.size})}


def outputs_of(contract: PolicyContract) -> dict[str, int]:
    """Names of the graph's outputs, in order, and how many numbers of a robot each gives."""
    state = contract.state
    sizes = dict.fromkeys(OUTPUTS, contract.action.dim)
    return {**sizes, **({} if state is None else {state.output: state.size})}
