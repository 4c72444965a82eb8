"""Starting continuations of texts, for both completion endpoints."""

from __future__ import annotations

from ..errors import ApiError
from ..limits import MAX_ANSWERS
from ..schemas.completion import TEXT_UNSUPPORTED, TextForm, parse_prompts
from ..service import AnswerOptions, Run, TextTask
from ..state import ServerState


async def start_texts(
    form: TextForm, state: ServerState, n_probs: int | None, n: int
) -> tuple[list[Run], AnswerOptions]:
    """n answers to each prompt, prompt by prompt; all of them are started or none. The options are those of
    the first."""
    service = state.service
    form.check_supported(TEXT_UNSUPPORTED)
    form.check_constraint()
    options = form.answer_options(state.options, service.tokenizer, n_probs)
    prompts = await service.in_thread(lambda: parse_prompts(form.prompt, service.tokenizer))
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
    return runs, options
