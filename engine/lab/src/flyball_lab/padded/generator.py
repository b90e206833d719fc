"""Runs batches with transformers: a model and its tokeniser, `generate`, and what we hang into it.

The only module here that imports torch and transformers. `generate` pads, attends, caches and stops; ours are two
hooks: one chooses each row's token by that row's own sampling, one hears of the step and says which rows have ended.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any, Final

import torch
import transformers

from flyball_lab.padded.batch import Batch
from flyball_lab.padded.requests import Sampling

#: How a seed is drawn for a row that names none.
_DRAW_SEED = 2**62
#: Nothing is downloaded, and no code that comes with a model is run.
_LOCAL: Final = {"local_files_only": True, "trust_remote_code": False}


class ModelError(Exception):
    """The model cannot be loaded, or not be served."""


class CausalModel:
    """A causal language model of transformers; the engine's `Runner`."""

    def __init__(self, folder: str, *, dtype: str, device: str, max_model_len: int | None) -> None:
        """Load it; raises ModelError. `max_model_len` may shorten the model's context."""
        try:
            self._tokenizer: Any = transformers.AutoTokenizer.from_pretrained(folder, **_LOCAL)
            model: Any = transformers.AutoModelForCausalLM.from_pretrained(folder, dtype=dtype, **_LOCAL)
            self._model = model.to(device).eval()
        except (OSError, ValueError, RuntimeError, ImportError) as error:
            raise ModelError(f"{folder}: {error}") from error
        config = self._model.config.get_text_config()
        self._device = device
        self._vocabulary: int = config.vocab_size
        self._max_model_len = _context(getattr(config, "max_position_embeddings", None), max_model_len)
        self._ends = _ends(self._model.generation_config.eos_token_id, self._tokenizer.eos_token_id)
        # Masked wherever it stands, so that any token will do.
        pad = self._tokenizer.pad_token_id
        self._pad: int = pad if pad is not None else min(self._ends, default=0)
        # What the model's makers advise (sampling, ends, lengths) is not to be mixed into what a request asks for.
        self._model.generation_config = transformers.GenerationConfig()

    @property
    def version(self) -> str:
        """For people."""
        return f"flyball padded, transformers {transformers.__version__}, torch {torch.__version__}"

    @property
    def max_model_len(self) -> int:
        """Tokens that a prompt and its answer may have together."""
        return self._max_model_len

    @property
    def vocabulary(self) -> int:
        """Token ids are below this."""
        return self._vocabulary

    @property
    def ends(self) -> frozenset[int]:
        """The tokens that end an answer."""
        return self._ends

    def of_text(self, text: str) -> list[int]:
        """The tokens of a prompt."""
        return list(self._tokenizer(text)["input_ids"])

    def of_messages(self, messages: Sequence[Mapping[str, Any]]) -> list[int]:
        """The tokens of a conversation; raises ValueError if the model's template does not take it."""
        if not self._tokenizer.chat_template:
            raise ValueError("messages: this model has no chat template, accepted: /v1/completions")
        try:
            text = self._tokenizer.apply_chat_template(messages, tokenize=False, add_generation_prompt=True)
        except Exception as error:  # a template is a program, which may raise anything
            raise ValueError(f"messages: the model's chat template refuses them: {error}") from error
        # The template writes special tokens itself.
        return list(self._tokenizer(text, add_special_tokens=False)["input_ids"])

    def text(self, tokens: Sequence[int]) -> str:
        """What tokens read as, without the special ones."""
        read: str = self._tokenizer.decode(list(tokens), skip_special_tokens=True, clean_up_tokenization_spaces=False)
        return read

    @torch.inference_mode()  # type: ignore[untyped-decorator]  # torch is not in the development environment
    def run(self, batch: Batch) -> None:
        """Compute a batch to the end of its last row."""
        padding = [batch.width - row.prompt_tokens for row in batch.rows]
        rows = zip(padding, batch.rows, strict=True)
        ids = torch.tensor([[self._pad] * pad + list(row.prompt) for pad, row in rows], device=self._device)
        mask = torch.tensor([[0] * pad + [1] * (batch.width - pad) for pad in padding], device=self._device)
        config = transformers.GenerationConfig(
            max_new_tokens=batch.most, do_sample=False, pad_token_id=self._pad, use_cache=True
        )
        self._model.generate(
            input_ids=ids,
            attention_mask=mask,
            generation_config=config,
            logits_processor=[_Chooser([row.sampling for row in batch.rows], self._device)],
            stopping_criteria=[_Listener(batch)],
        )


class _Chooser:
    """Leaves each sampled row one token to choose: greedy rows and `generate`'s own choice of the likeliest remain."""

    def __init__(self, samplings: Sequence[Sampling], device: str) -> None:
        self._choices = {
            index: partial(_choose, sampling=sampling, generator=_seeded(sampling.seed, device))
            for index, sampling in enumerate(samplings)
            if not sampling.is_greedy
        }

    def __call__(self, input_ids: Any, scores: Any) -> Any:  # noqa: ARG002 – transformers' own signature
        for index, choose in self._choices.items():
            token = choose(scores[index])
            scores[index] = -torch.inf
            scores[index, token] = 0.0
        return scores


class _Listener:
    """Tells the batch of each step, and `generate` which rows have ended."""

    def __init__(self, batch: Batch) -> None:
        self._batch = batch

    def __call__(self, input_ids: Any, scores: Any, **_: Any) -> Any:  # noqa: ARG002 – as above
        ended = self._batch.stepped(input_ids[:, -1].tolist())
        return torch.tensor(ended, device=input_ids.device)


def _choose(scores: Any, *, sampling: Sampling, generator: Any) -> int:
    """Draw a token: by temperature, among the likeliest that have `top_p` together."""
    shares, tokens = torch.softmax(scores / sampling.temperature, dim=-1).sort(descending=True)
    # The first is always among them.
    shares[shares.cumsum(-1) - shares >= sampling.top_p] = 0.0
    return int(tokens[torch.multinomial(shares, 1, generator=generator)])


def _seeded(seed: int | None, device: str) -> Any:
    drawn = int(torch.randint(_DRAW_SEED, (1,))) if seed is None else seed
    return torch.Generator(device=device).manual_seed(drawn)


def _ends(*named: int | list[int] | None) -> frozenset[int]:
    """The first that names any: the model's makers, then the tokeniser's."""
    found = next((each for each in named if each is not None), [])
    return frozenset([found] if isinstance(found, int) else found)


def _context(longest: int | None, wanted: int | None) -> int:
    if longest is None and wanted is None:
        raise ModelError("the model does not say how long its context is: give --max-model-len")
    if longest is not None and wanted is not None and wanted > longest:
        raise ModelError(f"--max-model-len {wanted}: the model's context has {longest} tokens")
    return wanted or longest or 0


def default_device() -> str:
    """A GPU if there is one."""
    return "cuda" if torch.cuda.is_available() else "cpu"
