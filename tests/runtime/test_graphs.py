"""A graph is built once for each shape of a micro-batch, and kept while a server steps through its shapes."""

from __future__ import annotations

from tests.runtime.conftest import Case

SEQUENCES = 16


def test_any_number_of_sequences_and_prompts_between_build_no_graph_twice(trained: Case) -> None:
    with trained.open() as model, model.context(128, SEQUENCES) as context:
        for _ in range(2):
            context.reset_counters()
            for n in range(1, SEQUENCES + 1):
                context.decode_batch([(7, seq, True) for seq in range(n)])
                if n % 2 == 0:
                    context.decode_batch([(7, 0, False)] * 40 + [(7, seq, True) for seq in range(1, n)])
                    context.clear(0)
        counters = context.counters()
        assert (counters.graphs_built, counters.graphs_reused) == (0, SEQUENCES + SEQUENCES // 2)
