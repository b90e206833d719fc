"""The whole tuner on real parts: a real Prometheus scrapes real control ports, and the loop closes over them."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import ExitStack, closing
from pathlib import Path

from flyball_lab.harness.engines import serving
from flyball_lab.harness.plant import PlantPhase
from flyball_lab.harness.prometheus import ScrapeTarget, prometheus
from flyball_lab.harness.tuners import TunerEnvironment, inference_service, thinking, until
from flyball_operator.api.v1alpha1 import ConditionType
from flyball_operator.prometheus.client import PrometheusClient
from flyball_operator.prometheus.reader import PrometheusReader

TUNED, OBSERVED = ConditionType.TUNED, ConditionType.METRICS_AVAILABLE
CHAT_AND_LONG_PROMPTS = [[PlantPhase(3600, 5, 120, 40), PlantPhase(3600, 0.8, 1500, 16)]]


async def test_it_learns_from_scrapes_shortens_stalls_and_survives_an_outage(
    tmp_path: Path, note_figure: Callable[[str], None]
) -> None:
    world = TunerEnvironment()
    pods = [world.engine("chat-0"), world.engine("chat-1")]
    world.serve(inference_service(), *pods)
    targets = [ScrapeTarget(f"{pod.ip}:{pod.port}", "uid-1", pod=pod.name) for pod in pods]
    async with serving(*pods):
        for seed, pod in enumerate(pods):
            pod.load(CHAT_AND_LONG_PROMPTS, seed=seed)
        with ExitStack() as stack:
            running = stack.enter_context(prometheus(tmp_path, targets))
            reader = stack.enter_context(
                closing(PrometheusReader(PrometheusClient(running.url, timeout=1.0), timeout=1.0, least_window=3))
            )
            async with thinking(world, reader, tick=0.5, grace=3.0):
                await until("the model is learnt", lambda: "ModelLearned" in world.reasons())
                await until("tuned", lambda: world.condition(TUNED) == ("True", "Applied"))
                await until("stalls are short", lambda: all((pod.limits[1] or 2048) < 1024 for pod in pods))
                await until("results are in", lambda: any(d.observed for d in world.tuning().decisions))
                model, first = world.tuning().model, world.tuning().decisions[0]
                note_figure(f"model {model.t0} s + {model.c2} s/token (plant: 0.0083, 0.0002), error {model.error}")
                note_figure(f"decision: {first.trigger}; predicted {first.predicted}")

                running.freeze()
                await until("it says so", lambda: world.condition(OBSERVED) == ("False", "PrometheusTimeout"))
                held = [pod.limits for pod in pods]
                pods[0].ready = False
                await pods[0].restart()
                pods[0].ready = True
                await until("an engine came back in the dark", lambda: pods[0].limits == held[0])
                assert pods[1].limits == held[1]
                running.thaw()
                await until("it is back", lambda: world.condition(OBSERVED) == ("True", "Scraped"))
    assert float(model.t0) + 64 * float(model.c1) > 0
    assert model.trusted
