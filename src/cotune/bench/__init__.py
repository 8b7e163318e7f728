"""What `cotune bench` measures, each against a named rival in the same run. One file a benchmark, one line here."""

from collections.abc import Mapping

from cotune.bench.benchmark import Benchmark
from cotune.bench.delta_rule import DeltaRule
from cotune.bench.deployment import Deployment
from cotune.bench.directions import Directions
from cotune.bench.measure import Figure
from cotune.bench.memory import InferenceMemory
from cotune.bench.replay import Replay
from cotune.bench.server import Server
from cotune.bench.simulate import Simulate
from cotune.bench.split_zo import SplitStep

BENCHES: Mapping[str, type[Benchmark]] = {
    "delta-rule": DeltaRule,
    "directions": Directions,
    "replay": Replay,
    "memory": InferenceMemory,
    "split-zo": SplitStep,
    "server": Server,
    "simulate": Simulate,
    "deployment": Deployment,
}

__all__ = [
    "BENCHES",
    "Benchmark",
    "DeltaRule",
    "Deployment",
    "Directions",
    "Figure",
    "InferenceMemory",
    "Replay",
    "Server",
    "Simulate",
    "SplitStep",
]
