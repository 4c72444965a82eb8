"""Starting continuations of texts, for both completion endpoints."""

from __future__ import annotations

from dataclasses import dataclass

from ..errors import ApiError
from ..limits import MAX_ANSWERS
from ..schemas.completion import TEXT_UNSUPPORTED, TextForm, parse_prompts
from ..service import AnswerOptions, Run, TextTask
from ..state import ServerState


@dataclass(frozen=True)
class StartedTexts:
    """`runs`: n for each prompt. `options`: of the first of each n. `prompts`: text of each run's prompt."""

    runs: list[Run]
    options: AnswerOptions
    prompts: list[str]


async def start_texts(form: TextForm, state: ServerState, n_probs: int | None, n: int) -> StartedTexts:
    """n answers to each prompt; all of them are started or none."""
    service = state.service
    form.check_supported(TEXT_UNSUPPORTED)
    form.check_constraint()
    options = form.answer_options(state.options, service.tokenizer, n_probs)

    def read() -> tuple[list[list[int]], list[str]]:
        prompts = parse_prompts(form.prompt, service.tokenizer)
        return prompts, [service.tokenizer.decode(prompt) for prompt in prompts]

    prompts, texts = await service.in_thread(read)
    if len(prompts) * n > MAX_ANSWERS:
        raise ApiError(
            400,
            f"n: found {n} for each of {len(prompts)} prompts, wanted at most {MAX_ANSWERS} answers in all",
        )
    runs: list[Run] = []
    try:
        for prompt in prompts:
            task = TextTask(prompt, form.json_schema, form.grammar or None, options)
            runs += await service.text(task, n)
    except BaseException:
        for run in runs:
            run.cancel()
        raise
    return StartedTexts(runs, options, [text for text in texts for _ in range(n)])
