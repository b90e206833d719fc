"""Recordings of a past that a plant had in virtual time, as a Prometheus would have answered for it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from flyball_lab.harness.engines import START
from flyball_lab.harness.plant import CPU, EnginePlant, Observer, PlantPhase, arrivals
from flyball_lab.harness.tuners import inference_service
from flyball_operator.api.v1alpha1 import InferenceService
from flyball_operator.prometheus import queries
from flyball_operator.prometheus.queries import (
    CELLS,
    COMPUTED_PROMPT_TOKENS,
    COMPUTED_PROMPT_TOKENS_SQUARED,
    DRAFTS,
    FIELD,
    NAMESPACE,
    UID,
)
from flyball_operator.prometheus.recorded import Header, RecordingSource
from flyball_operator.prometheus.vector import Vector, vector_of
from flyball_operator.tuning.observe.signals import PromptSums, RequestLoad, Signals, StepWindow
from flyball_operator.tuning.spec import tuning_spec

#: 2026-09-21T14:13:20Z.
BEGAN = 1_790_000_000.0
STEP = 5
CHAT_AND_LONG_PROMPTS = [[PlantPhase(3600, 5, 120, 40), PlantPhase(3600, 0.8, 1500, 16)]]


def manifest(service: InferenceService | None = None, **changes: Any) -> dict[str, Any]:
    """The object as the API server shows it."""
    shown = (service or inference_service(**changes)).model_dump(by_alias=True, mode="json", exclude_none=True)
    return {"apiVersion": "serving.flyball.dev/v1alpha1", "kind": "InferenceService", **shown}


@dataclass
class _Answers:
    """What a Prometheus would say of one service at one time (implements `Source`)."""

    namespace: str
    uid: str
    signals: Signals | None = None
    at: float = 0.0
    targets: str = field(init=False)

    def __post_init__(self) -> None:
        self.targets = queries.targets((self.namespace, self.uid))

    def query(self, text: str, at: float | None = None) -> Vector:
        asked = {
            queries.steps(15, self.targets): _steps,
            queries.load(15, self.targets): _load,
            queries.outcomes(15, self.targets): _outcomes,
            queries.ran(self.targets): _ran,
        }
        rows = asked[text](self.signals) if self.signals is not None else []
        identity = {NAMESPACE: self.namespace, UID: self.uid}
        return vector_of([{"metric": identity | labels, "value": [at, repr(value)]} for labels, value in rows])

    def close(self) -> None:
        """It holds nothing."""


Rows = list[tuple[dict[str, str], float]]


def _steps(signals: Signals) -> Rows:
    assert isinstance(signals.steps, StepWindow)
    return [
        ({FIELD: CELLS}, 42.0),
        *_prompts(signals.steps.prompts),
        *(
            ({FIELD: DRAFTS, "position": str(number), "state": state}, value)
            for number, draft in enumerate(signals.steps.drafts, start=1)
            for state, value in draft._asdict().items()
        ),
        *(
            ({"bucket": str(key.bucket), "kind": key.kind.value, FIELD: name}, float(value))
            for key, sums in signals.steps.cells.items()
            for name, value in sums._asdict().items()
            if value > 0
        ),
    ]


def _prompts(found: PromptSums | None) -> Rows:
    if found is None:
        return []
    return [
        ({FIELD: COMPUTED_PROMPT_TOKENS}, found.tokens),
        ({FIELD: COMPUTED_PROMPT_TOKENS_SQUARED}, found.squares),
    ]


def _load(signals: Signals) -> Rows:
    load = signals.load
    assert isinstance(load, RequestLoad)
    ended = load.arrivals * signals.window_seconds
    named = asdict(load) | {"cores": 1, "pods": 1, "age": 1.0, "interval": 5.0, "ended": ended, "grown": 0.0}
    return [({FIELD: name}, float(value)) for name, value in named.items() if value is not None]


def _outcomes(signals: Signals) -> Rows:
    return [
        ({FIELD: "objective", "objective": name, "outcome": outcome}, value)
        for name, counted in signals.outcomes.items()
        for outcome, value in (("met", counted.met), ("violated", counted.violated))
    ]


def _ran(_signals: Signals) -> Rows:
    limits = {knob.value: float(value) for knob, value in START.given().items()}
    return [({FIELD: field, "knob": knob}, value) for knob, value in limits.items() for field in ("least", "most")]


def recording(
    path: Path,
    *,
    seconds: int = 180,
    blind: tuple[int, int] = (0, 0),
    load: Sequence[PlantPhase | Sequence[PlantPhase]] = CHAT_AND_LONG_PROMPTS,
) -> Path:
    """A recording of a service whose engine ran at its start values; not scraped between the `blind` seconds."""
    service = inference_service()
    meta = service.metadata
    plant = EnginePlant(CPU, tuning_spec(service.spec).objectives, limits=START)
    requests, observer = arrivals(load), Observer(plant)
    source = _Answers(meta.namespace, meta.uid)
    file = RecordingSource(source, path.open("x"), Header(manifest(service), float(STEP)))
    for second in range(STEP, seconds + 1, STEP):
        plant.run(second, requests)
        observer.scrape()
        source.signals = None if blind[0] <= second < blind[1] else observer.signals()
        at = BEGAN + second
        for query in (queries.steps, queries.load, queries.outcomes):
            file.query(query(15, source.targets), at)
        file.query(queries.ran(source.targets), at)
        file.kept(at)
    file.close()
    return path
