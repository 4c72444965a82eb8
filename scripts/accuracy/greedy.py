"""llama-k3's greedy answers of one form: a process of its own, as form and kernels come from the environment.

    python -m scripts.accuracy.greedy MODEL.gguf < PROMPTS > ANSWERS

PROMPTS: a JSON list of lists of token ids. ANSWERS: the same of the answers, up to the end of the message.
"""

from __future__ import annotations

import json
import sys

from llama_k3.generate import generate_tokens

from llama_k3 import Context, Model, Sampler

LONGEST = 64


def answer(context: Context, prompt: list[int], last: int) -> list[int]:
    """The likeliest tokens after the prompt, with `last` where it comes."""
    context.clear(0)
    found: list[int] = []
    for token in generate_tokens(context, prompt, Sampler(temperature=0)):
        found.append(token)
        if token == last or len(found) == LONGEST:
            break
    return found


def main() -> int:
    prompts = json.load(sys.stdin)
    with Model(sys.argv[1], n_threads=1) as model:
        context = model.context(max(map(len, prompts)) + LONGEST)
        last = model.tokenizer.special_id("<|end_of_msg|>")
        print(json.dumps([answer(context, prompt, last) for prompt in prompts]))
    return 0


if __name__ == "__main__":
    sys.exit(main())
