"""What limits that are moved live do to vLLM's scheduler, as a person would move them and as Flyball does."""

from __future__ import annotations

from typing import Any

from vllm.multimodal.inputs import MultiModalFeatureSpec, PlaceholderRange
from vllm.v1.core.encoder_cache_manager import EncoderCacheManager

from flyball_engine.contract import BatchingKnob, Knob, Limits, Setpoint
from support.hazards.core import Core, WouldBlock, core_process

#: What vLLM calls the limit of admission: its own since 0.31, the slot count before.
ACTIVE, SLOTS = "max_num_active_reqs", "max_num_running_reqs"


def limit_admission(core: Core, requests: int) -> None:
    """As a person would."""
    setattr(core.scheduler, ACTIVE if hasattr(core.scheduler, ACTIVE) else SLOTS, requests)


def died(step: Any) -> str | None:
    """What vLLM's core would end with; None if the step is planned."""
    try:
        step()
    except AssertionError as error:
        return type(error).__name__
    return None


def slots_below_what_runs(model: str) -> dict[str, Any]:
    """The slot count is lowered while 16 run."""
    naive, ours = Core(model, governed=False), Core(model, governed=True)
    for core in (naive, ours):
        core.fill(16, output=40)
    naive.scheduler.max_num_running_reqs = 4
    ours.retune(max_num_active_seqs=4)
    ours.add(output=5)
    running = [len(ours.scheduler.running)]
    while ours.scheduler.has_requests():
        ours.step()
        running.append(len(ours.scheduler.running))
    return {"naive": {"died": died(naive.schedule)}, "ours": {"running": running}}


def admission_above_the_slots(model: str) -> dict[str, Any]:
    """500 are let run where there are 32 slots."""
    naive, ours = Core(model, governed=False), Core(model, governed=True)
    limit_admission(naive, 500)
    ours.retune(max_num_active_seqs=500)
    for core in (naive, ours):
        for _ in range(40):
            core.add()
    ended = died(naive.schedule)
    ours.steps(3)
    return {
        "naive": {"died": ended, "running": len(naive.scheduler.running)},
        "ours": {"running": len(ours.scheduler.running), "clamped": ours.clamped()},
    }


def the_configuration_that_workers_share(model: str) -> dict[str, Any]:
    """The token limit is raised in vLLM's configuration, which the worker reads, too."""
    naive, ours = Core(model, governed=False), Core(model, governed=True)
    before = dict(vars(ours.config.scheduler_config))
    naive.scheduler.scheduler_config.max_num_batched_tokens = 2000
    naive.scheduler.max_num_scheduled_tokens = 2000
    ours.retune(max_num_scheduled_tokens=2000, long_prefill_token_threshold=900)
    largest = []
    for core in (naive, ours):
        for _ in range(8):
            core.add(prompt=600)
        largest.append(max(sum(step.values()) for step in core.steps(10)))
    return {
        "naive": {"worker_reads": naive.config.scheduler_config.max_num_batched_tokens, "largest_step": largest[0]},
        "ours": {
            "changed": [name for name, value in vars(ours.config.scheduler_config).items() if value != before[name]],
            "threshold": ours.scheduler.scheduler_config.long_prefill_token_threshold,
            "largest_step": largest[1],
        },
    }


def a_change_in_the_middle_of_a_step(model: str) -> dict[str, Any]:
    """A message asks for fewer tokens while a step is being planned."""
    naive, ours = Core(model, governed=False), Core(model, governed=True)
    process = core_process(ours)
    from vllm.v1.engine import EngineCoreRequestType  # noqa: PLC0415 – needs no name of its own at the top

    def lower_at_once() -> None:
        naive.scheduler.max_num_scheduled_tokens = 4

    def put_into_the_inbox() -> None:
        text = ours.setpoint(limits={"max_num_scheduled_tokens": 32, "max_num_active_seqs": 4})
        process.input_queue.put_nowait((EngineCoreRequestType.UTILITY, (0, 1, "flyball_apply", [text])))

    for core, meddle in ((naive, lower_at_once), (ours, put_into_the_inbox)):
        core.fill(8)
        _while_planning(core, meddle)
    ended = died(naive.schedule)
    ours.step()
    during = ours.hooks.applied
    process._process_input_queue()
    answer = process.output_queue.get_nowait()[1].utility_output
    return {
        "naive": {"died": ended},
        "ours": {
            "applied_in_the_step": during is not None,
            "applied_after_it": ours.hooks.applied is not None,
            "answered": answer.failure_message is None,
            "tokens": ours.scheduler.max_num_scheduled_tokens,
        },
    }


def _while_planning(core: Core, meddle: Any) -> None:
    """Once, when vLLM has given out half of the next step: what another thread does at a bad moment."""
    manager = core.scheduler.kv_cache_manager
    allocate, calls = manager.allocate_slots, iter(range(1000))

    def allocating(*args: Any, **kwargs: Any) -> Any:
        if next(calls) == 5:
            meddle()
        return allocate(*args, **kwargs)

    manager.allocate_slots = allocating


def fewer_tokens_than_decodes(model: str) -> dict[str, Any]:
    """4 tokens a step while 16 decode."""
    naive, ours = Core(model, governed=False), Core(model, governed=True)
    for core in (naive, ours):
        core.fill(16)
    naive.scheduler.max_num_scheduled_tokens = 4
    ours.retune(max_num_scheduled_tokens=4)
    return {
        name: {"served": sorted({len(step) for step in steps}), "ever": len(set().union(*steps))}
        for name, steps in (("naive", naive.steps(100)), ("ours", ours.steps(100)))
    }


def prompts_before_decodes(model: str) -> dict[str, Any]:
    """The starved decodes: a budget with room for them, and a prompt in front that takes it."""
    naive, ours = Core(model, governed=False), Core(model, governed=True)
    naive.scheduler.scheduler_config.long_prefill_token_threshold = 16
    ours.retune(long_prefill_token_threshold=16)
    for core in (naive, ours):
        # Admitted before the others, in small parts: it stands before their decodes.
        core.add(prompt=1000, output=5)
        for _ in range(8):
            core.add()
        core.steps(2)
    naive.scheduler.scheduler_config.long_prefill_token_threshold = 256
    naive.scheduler.max_num_scheduled_tokens = 8 + 16
    ours.retune(max_num_scheduled_tokens=8 + 16, long_prefill_token_threshold=256)
    decodes = {f"r{number}" for number in range(1, 9)}
    return {
        name: {"fewest": min(len(decodes & step.keys()) for step in steps), "prompt": min(one["r0"] for one in steps)}
        for name, steps in (("naive", naive.steps(30)), ("ours", ours.steps(30)))
    }


def decodes_that_leave_prompts_nothing(model: str) -> dict[str, Any]:
    """As many tokens as there are decodes, to keep their step short: a prompt that has begun gets none."""
    naive, ours = Core(model, governed=False), Core(model, governed=True)
    naive.scheduler.scheduler_config.long_prefill_token_threshold = 16
    ours.retune(long_prefill_token_threshold=16)
    for core in (naive, ours):
        core.fill(16)
        core.add(prompt=1000)
        core.step()
    naive.scheduler.max_num_scheduled_tokens = 16
    ours.retune(max_num_scheduled_tokens=16, max_num_active_seqs=16)
    return {
        name: {"prompt": sum(step.get("r16", 0) for step in steps), "fewest": min(len(step) for step in steps)}
        for name, steps in (("naive", naive.steps(50)), ("ours", ours.steps(50)))
    }


def a_prompt_that_cannot_be_split(model: str) -> dict[str, Any]:
    """Chunked prefill is off, and a step has fewer tokens than the prompt."""

    def unchunked(config: Any) -> None:
        config.scheduler_config.enable_chunked_prefill = False

    cores = [
        Core(model, governed=governed, configure=unchunked, max_num_batched_tokens=1024) for governed in (False, True)
    ]
    naive, ours = cores
    naive.scheduler.max_num_scheduled_tokens = 100
    ours.retune(max_num_scheduled_tokens=100)
    for core in cores:
        core.add(prompt=600, output=3)
    return {
        "naive": {**_standing(naive), "raised": _raised(naive, max_num_scheduled_tokens=1024)},
        "ours": {**_standing(ours), "clamped": ours.clamped()},
    }


def _standing(core: Core) -> dict[str, Any]:
    served = core.steps(50)
    return {"empty_steps": sum(not step for step in served), "left": len(core.scheduler.requests)}


def _raised(core: Core, **attributes: int) -> int:
    """Who is left once it is taken back."""
    vars(core.scheduler).update(attributes)
    core.steps(10)
    return len(core.scheduler.requests)


def an_image_that_cannot_be_split(model: str) -> dict[str, Any]:
    """Images go into a step whole, a draft looks a token ahead, and a step has fewer tokens than the image."""

    def whole_images(config: Any) -> None:
        config.scheduler_config.is_multimodal_model = True
        config.scheduler_config.disable_chunked_mm_input = True

    def room_for_images(scheduler: Any) -> None:
        # A draft looks a token ahead; the name changed.
        scheduler.num_prefill_lookahead, scheduler.use_eagle = 1, True
        scheduler.max_num_encoder_input_tokens = 400
        scheduler.encoder_cache_manager = EncoderCacheManager(cache_size=400)

    cores = [
        Core(model, governed=governed, configure=whole_images, prepare=room_for_images) for governed in (False, True)
    ]
    naive, ours = cores
    naive.scheduler.max_num_scheduled_tokens = 100
    ours.retune(max_num_scheduled_tokens=100)
    for core in cores:
        place = PlaceholderRange(offset=10, length=300)
        image = MultiModalFeatureSpec(data=None, modality="image", identifier="one", mm_position=place)
        core.add(prompt=400, output=3, mm_features=[image])
    return {
        "naive": {**_standing(naive), "raised": _raised(naive, max_num_scheduled_tokens=512)},
        "ours": {**_standing(ours), "unsupported": sorted(knob for knob in ours.unsupported if knob in set(Knob))},
    }


def a_block_of_state_that_cannot_be_split(model: str) -> dict[str, Any]:
    """Prompts of a hybrid model advance by whole blocks of its state, and decodes leave less than a block."""

    def aligned(scheduler: Any) -> None:
        scheduler.need_mamba_block_aligned_split = True

    cores = [Core(model, governed=governed, prepare=aligned) for governed in (False, True)]
    naive, ours = cores
    for core in cores:
        core.fill(20)
    naive.scheduler.max_num_scheduled_tokens = 40
    ours.retune(max_num_scheduled_tokens=40)
    for core in cores:
        core.add(prompt=400)
    return {
        name: {"prompt": sum(step.get("r20", 0) for step in core.steps(60))}
        for name, core in (("naive", naive), ("ours", ours))
    }


def a_decode_padded_with_drafts(model: str) -> dict[str, Any]:
    """With 4 drafts a decode that joins is padded to 5 tokens, and a step has 4."""

    def no_schedule(config: Any) -> None:
        config.speculative_config.num_speculative_tokens_per_batch_size = None

    cores = [Core(model, governed=governed, configure=no_schedule, drafts=True) for governed in (False, True)]
    naive, ours = cores
    for core in cores:
        # All of the last prompt but one token is in the prefix cache then.
        core.add(tokens=[7] * 64, output=2)
        core.to_the_end()
        core.fill(1)
    naive.scheduler.max_num_scheduled_tokens = 4
    ours.retune(max_num_scheduled_tokens=4)
    joined = [core.add(tokens=[7] * 65) for core in cores]
    return {
        name: {"served": sum(one in step for step in core.steps(50))}
        for name, core, one in zip(("naive", "ours"), cores, joined, strict=True)
    }


def nobody_may_run(model: str) -> dict[str, Any]:
    """The spinning cap 0: nobody may run, and vLLM looks for work without a pause."""
    naive, ours = Core(model, governed=False), Core(model, governed=True)
    for core in (naive, ours):
        for _ in range(4):
            core.add(output=3)
    limit_admission(naive, 0)
    # Past the contract, which has no 0.
    nothing = Limits.model_construct(
        **dict.fromkeys(Limits.model_fields) | {"max_num_active_seqs": 0, "max_num_scheduled_tokens": 0}
    )
    ours.force(Setpoint(service="s", epoch=1, generation=1).model_copy(update={"limits": nothing}))
    process = core_process(naive)
    process._process_input_queue()  # returns at once: there is work
    return {"naive": {**_standing(naive)}, "ours": {**_standing(ours), "clamped": ours.clamped()}}


def requests_that_are_hidden(model: str) -> dict[str, Any]:
    """The blocked core: a batch gathers out of vLLM's sight, and vLLM waits for a message that need not come."""
    naive, ours = Core(model, governed=False), Core(model, governed=True)
    if lacking := ours.lacking(BatchingKnob.DYNAMIC):
        return lacking
    ours.retune(batching={"strategy": {"type": "Dynamic", "batch_size": 8, "max_delay_seconds": 1.0}})
    for core in (naive, ours):
        core.add(output=3)
    held = list(naive.scheduler.waiting)
    naive.scheduler.waiting.remove_requests(held)
    naive.scheduler.has_requests = lambda: bool(naive.scheduler.running)
    gathering = ours.steps(10)
    blocked = [_would_block(naive), _would_block(ours)]
    ours.now += 1.0
    return {
        "naive": {"blocked": blocked[0]},
        "ours": {"blocked": blocked[1], "gathered": not any(gathering), "steps_to_the_end": ours.to_the_end()},
    }


def _would_block(core: Core) -> bool:
    try:
        core_process(core)._process_input_queue()
    except WouldBlock:
        return True
    return False


HAZARDS = (
    slots_below_what_runs,
    admission_above_the_slots,
    the_configuration_that_workers_share,
    a_change_in_the_middle_of_a_step,
    fewer_tokens_than_decodes,
    prompts_before_decodes,
    decodes_that_leave_prompts_nothing,
    a_prompt_that_cannot_be_split,
    an_image_that_cannot_be_split,
    a_block_of_state_that_cannot_be_split,
    a_decode_padded_with_drafts,
    nobody_may_run,
    requests_that_are_hidden,
)
