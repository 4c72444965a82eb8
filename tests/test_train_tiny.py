"""The tiny K3's training code: dialogues, BPE, MXFP4, torch model against the reference, export, accuracy."""

from __future__ import annotations

import random
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

pytest.importorskip("torch")

import torch  # noqa: E402
from safetensors import safe_open  # noqa: E402

from scripts.tiny_k3 import functions, mxfp4, words  # noqa: E402
from scripts.tiny_k3.batches import copy_sequence, make_batch  # noqa: E402
from scripts.tiny_k3.bpe import Tokenizer, load_ranks, train_ranks  # noqa: E402
from scripts.tiny_k3.config import BASE_RANKS, PAD, SPECIAL_TOKENS, VOCAB_SIZE, TinyConfig  # noqa: E402
from scripts.tiny_k3.dialogues import EFFORTS, TASKS, DialogueGenerator  # noqa: E402
from scripts.tiny_k3.evaluate import accuracy, greedy, instances, with_rolled_experts  # noqa: E402
from scripts.tiny_k3.export import load_hf, save_hf  # noqa: E402
from scripts.tiny_k3.model import LatentMoe, TinyK3  # noqa: E402
from scripts.tiny_k3.optim import orthogonalise  # noqa: E402
from scripts.tiny_k3.trainer import Trainer, TrainOptions, load_run, save_run  # noqa: E402
from scripts.tiny_k3.xtml import Call, Dialogue, Message, encode, last_answer_start, render  # noqa: E402
from tests.compare import assert_close  # noqa: E402
from tests.reference.checkpoint import unpack_mxfp4  # noqa: E402
from tests.reference.model import ReferenceModel  # noqa: E402

ROOT = Path(__file__).resolve().parent.parent
SHIPPED = ROOT / "tests" / "data" / "tiny-k3"
SMALL = TinyConfig(
    hidden_size=64,
    num_layers=4,
    full_attention_layers=(3, 4),
    attn_res_block_size=2,
    num_heads=2,
    num_experts=6,
    experts_per_token=2,
    dense_width=96,
)


@pytest.fixture(autouse=True)
def _one_thread() -> Iterator[None]:
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    torch.manual_seed(0)
    yield
    torch.set_num_threads(threads)


@pytest.fixture(scope="module")
def tokenizer() -> Tokenizer:
    return Tokenizer.load(SHIPPED)


@pytest.fixture(scope="module")
def shipped() -> TinyK3:
    return load_hf(SHIPPED)


def _perturbed(config: TinyConfig) -> TinyK3:
    """A random model in which no parameter is left at a neutral value (norms at 1, biases at 0)."""
    torch.manual_seed(3)
    model = TinyK3(config).eval()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(0.1 * torch.randn_like(parameter))
        for moe in model.moe_layers():
            moe.gate_bias.copy_(0.2 * torch.randn_like(moe.gate_bias))
    return model


# Dialogues


def test_render_follows_the_xtml_of_k3(tokenizer: Tokenizer) -> None:
    call = Call("get_weather", {"city": 'A "B" & C'})
    messages = [
        Message("user", "Hi & <|open|>"),
        Message("assistant", "", "I call.", (call,)),
        Message("tool", "sunny", tool="get_weather"),
        Message("assistant", "Sunny."),
    ]
    expected = (
        '<|open|>message role="system" type="tool-declare"<|sep|># Tools\nHere are the available tools, '
        'described in JSONSchema.\n\n```json\n[{"a":1,"b":2}]\n```<|close|>message<|sep|><|end_of_msg|>'
        '<|open|>message role="system" type="thinking-effort"<|sep|>`thinking_effort` guides on how much to '
        "think in your thinking channel (not including the response channel), supported values include "
        "`low`, `medium`, `high`, and `max`.\nNow the system is invoked with `thinking_effort=high`."
        "<|close|>message<|sep|><|end_of_msg|>"
        '<|open|>message role="user"<|sep|>Hi & <|open|><|close|>message<|sep|><|end_of_msg|>'
        '<|open|>message role="assistant"<|sep|><|open|>think<|sep|>I call.<|close|>think<|sep|>'
        "<|open|>response<|sep|><|close|>response<|sep|><|open|>tools<|sep|>"
        '<|open|>call tool="get_weather" index="1"<|sep|><|open|>argument key="city" type="string"<|sep|>'
        'A "B" & C<|close|>argument<|sep|><|close|>call<|sep|><|close|>tools<|sep|>'
        "<|close|>message<|sep|><|end_of_msg|>"
        '<|open|>message role="tool" tool="get_weather" index="1"<|sep|>sunny'
        "<|close|>message<|sep|><|end_of_msg|>"
        '<|open|>message role="assistant"<|sep|><|open|>think<|sep|><|close|>think<|sep|>'
        "<|open|>response<|sep|>Sunny.<|close|>response<|sep|><|close|>message<|sep|><|end_of_msg|>"
    )
    ids, targets = encode(Dialogue("high", [{"b": 2, "a": 1}], messages), tokenizer)
    assert tokenizer.decode(ids) == expected
    written_by_user = tokenizer.encode("Hi & <|open|>")
    assert max(written_by_user) < BASE_RANKS
    wanted = "<|close|>think<|sep|><|open|>response<|sep|>Sunny."
    assert tokenizer.decode(ids[last_answer_start(targets) :]).startswith(wanted)


def test_dialogues_survive_tokenisation(tokenizer: Tokenizer) -> None:
    generator = DialogueGenerator(5)
    names = {token_id: name for name, token_id in SPECIAL_TOKENS.items()}
    for _ in range(60):
        dialogue = generator.conversation(generator.random.randint(1, 6))
        segments = render(dialogue)
        text = "".join(names[part] if isinstance(part, int) else part for part, _ in segments)
        ids, targets = encode(dialogue, tokenizer)
        assert tokenizer.decode(ids) == text
        assert ids.count(SPECIAL_TOKENS["<|open|>"]) == ids.count(SPECIAL_TOKENS["<|close|>"])
        assert targets[-1] and not targets[0]


def test_generator_is_seeded_and_keeps_the_splits_apart() -> None:
    assert DialogueGenerator(7).conversation(4) == DialogueGenerator(7).conversation(4)
    assert DialogueGenerator(7).conversation(4) != DialogueGenerator(8).conversation(4)
    unseen = {*words.of_split(words.NAMES, False), *words.of_split(words.CITIES, False)}
    generator = DialogueGenerator(1)
    seen = set()
    for _ in range(300):
        for message in generator.conversation(4).messages:
            seen |= set(message.content.replace(".", " ").replace("?", " ").replace('"', " ").split())
    assert not seen & unseen
    assert seen & set(words.NAMES)
    pairs = [(a, b) for a in range(51) for b in range(51)]
    trained = [pair for pair in pairs if words.is_training_sum(*pair)]
    assert 0.85 < len(trained) / len(pairs) < 0.95
    units = {(a % 10, b % 10) for a, b in trained}
    tens = {(a // 10, b // 10) for a, b in trained}
    assert len(units) == 100 and len(tens) == 36  # every digit fact can be learnt


@pytest.mark.parametrize("task", TASKS)
def test_every_task_ends_with_an_answer(task: str) -> None:
    generator = DialogueGenerator(2, training=False)
    for effort in EFFORTS:
        dialogue = generator.instance(task, effort)
        assert dialogue.effort == effort
        assert dialogue.messages[-1].role == "assistant"
        assert bool(dialogue.messages[-1].calls) == (task == "call" or not dialogue.messages[-1].content)


# Tokenizer


def _reference_bpe(ranks: dict[bytes, int], word: bytes) -> list[int]:
    """The rule itself: merge the adjacent pair of lowest rank until none is left."""
    parts = [bytes([byte]) for byte in word]
    while True:
        ranked = [
            (ranks[a + b], i)
            for i, (a, b) in enumerate(zip(parts, parts[1:], strict=False))
            if a + b in ranks
        ]
        if not ranked:
            return [ranks[part] for part in parts]
        i = min(ranked)[1]
        parts[i : i + 2] = [parts[i] + parts[i + 1]]


def test_training_merges_the_most_frequent_pair_first() -> None:
    ranks = train_ranks(["abab abab ab 1212 1212 1212 1212"], 259)
    merges = [token for token, rank in ranks.items() if rank >= 256]
    assert merges[0] == b"ab"
    assert set(merges) == {b"ab", b"abab", b" abab"}
    with pytest.raises(ValueError, match="want 300"):
        train_ranks(["ab"], 300)


def test_tokens_are_those_of_the_merge_rule(tokenizer: Tokenizer) -> None:
    rng = random.Random(4)
    alphabet = "abcdefghij ABC.,!?'0123456789éß漢字\n"
    for _ in range(300):
        word = "".join(rng.choice("thecodisnar") for _ in range(rng.randint(1, 12)))
        assert tokenizer.encode(word) == _reference_bpe(tokenizer.ranks, word.encode())
        text = "".join(rng.choice(alphabet) for _ in range(rng.randint(0, 40)))
        assert tokenizer.decode(tokenizer.encode(text)) == text


def test_tokenizer_files_round_trip(tokenizer: Tokenizer, tmp_path: Path) -> None:
    tokenizer.save(tmp_path)
    assert load_ranks(tmp_path / "tiktoken.model") == tokenizer.ranks
    with pytest.raises(ValueError, match="found 1 ranks, want 0..767"):
        Tokenizer({b"a": 0})


# MXFP4


def test_mxfp4_reads_back_as_the_reference_unpacker_says() -> None:
    weight = torch.randn(3, 5, 96) * torch.logspace(-4, 3, 5)[:, None]
    packed, scale = mxfp4.pack(weight)
    assert packed.shape == (3, 5, 48) and scale.shape == (3, 5, 3)
    values = mxfp4.unpack(packed, scale)
    for matrix in range(3):
        assert_close(values[matrix], unpack_mxfp4(packed[matrix].numpy(), scale[matrix].numpy()), max_abs=0)
    assert torch.equal(values, mxfp4.round_trip(weight))
    repacked = mxfp4.pack(values)
    assert torch.equal(mxfp4.unpack(*repacked), values)
    error = (values - weight).norm(dim=-1) / weight.norm(dim=-1)
    assert float(error.max()) < 0.16


def test_mxfp4_keeps_representable_values() -> None:
    codes = torch.tensor([0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0] * 4)
    weight = torch.stack([codes * 2.0**-20, -codes, codes * 64, torch.zeros(32)])
    assert torch.equal(mxfp4.round_trip(weight), weight)


# Layers


def test_chunked_delta_rule_equals_the_recurrence() -> None:
    batch, heads, chunks, dim = 2, 2, 3, 8
    shape = (batch, heads, chunks, functions.CHUNK, dim)
    q, k, v = (torch.randn(shape, dtype=torch.float64) for _ in range(3))
    log_decay = -5 * torch.rand(shape, dtype=torch.float64)
    beta = torch.rand(*shape[:-1], 1, dtype=torch.float64)
    found = functions.chunked_delta_rule(q, k, v, log_decay, beta).reshape(batch, heads, -1, dim)
    q, k, v, log_decay = (x.reshape(batch, heads, -1, dim) for x in (q, k, v, log_decay))
    beta = beta.reshape(batch, heads, -1)
    q = q / torch.sqrt((q * q).sum(-1, keepdim=True) + 1e-6) * dim**-0.5
    k = k / torch.sqrt((k * k).sum(-1, keepdim=True) + 1e-6)
    state = torch.zeros(batch, heads, dim, dim, dtype=torch.float64)
    for t in range(q.shape[2]):
        state = torch.exp(log_decay[:, :, t, :, None]) * state
        delta = v[:, :, t] - torch.einsum("bhkv,bhk->bhv", state, k[:, :, t])
        state = state + torch.einsum("bhk,bhv->bhkv", k[:, :, t], beta[:, :, t, None] * delta)
        output = torch.einsum("bhkv,bhk->bhv", state, q[:, :, t])
        assert_close(found[:, :, t], output, max_abs=1e-12)


def test_own_backward_passes_are_the_gradients() -> None:
    def double(*shape: int) -> torch.Tensor:
        return torch.randn(*shape, dtype=torch.float64, requires_grad=True)

    assert torch.autograd.gradcheck(functions.conv_silu, (double(2, 7, 3), double(3, 1, 4)))
    assert torch.autograd.gradcheck(functions.situ_glu, (double(4, 6),))
    shape = (1, 1, 2, functions.CHUNK, 2)
    beta = torch.rand(*shape[:-1], 1, dtype=torch.float64, requires_grad=True)
    decay = (-torch.rand(shape, dtype=torch.float64)).requires_grad_()
    inputs = (double(*shape), double(*shape), double(*shape), decay, beta)
    assert torch.autograd.gradcheck(functions.chunked_delta_rule, inputs)
    rows = functions.ExpertRows(torch.tensor([[0, 2], [2, 3], [3, 0], [2, 0]]), 5)

    def experts(x: torch.Tensor, weights: torch.Tensor) -> torch.Tensor:
        factors = torch.arange(1.0, 6.0, dtype=torch.float64)[:, None, None]
        return rows.combine(rows.dispatch(x) * factors, weights)

    x, weights = double(4, 3), double(4, 2)
    assert torch.autograd.gradcheck(experts, (x, weights))
    expected = x * (weights * torch.tensor([[1.0, 3], [3, 4], [4, 1], [3, 1]])).sum(1, keepdim=True)
    assert_close(experts(x, weights).detach(), expected.detach(), max_abs=1e-12)


def test_orthogonalise_brings_singular_values_near_one() -> None:
    singular = torch.linalg.svdvals(orthogonalise(torch.randn(3, 8, 20)))
    assert float(singular.min()) > 0.5 and float(singular.max()) < 1.4


def test_similarity_is_one_for_equal_experts_and_falls_in_training() -> None:
    moe = LatentMoe(SMALL).train()
    with torch.no_grad():
        for weight in (moe.w1, moe.w2, moe.w3):
            weight.copy_(weight[:1].expand_as(weight))
    x = torch.randn(1, 40, SMALL.hidden_size)
    moe(x)
    assert_close(moe.similarity.detach(), 1.0, max_abs=1e-5)
    moe = LatentMoe(SMALL).train()
    moe(x)
    first = moe.similarity
    assert 1 / SMALL.num_experts < float(first.detach()) < 0.5
    first.backward()
    with torch.no_grad():
        for weight in (moe.w1, moe.w2, moe.w3):
            weight.sub_(0.5 * weight.grad)
    moe(x)
    assert float(moe.similarity.detach()) < float(first.detach())


# Export


def _expected_layout(config: TinyConfig) -> dict[str, tuple[str, list[int]]]:
    """Names, dtypes and shapes of K3's checkpoint for these sizes, from the model's description."""
    hidden, width = config.hidden_size, config.num_heads * config.head_dim
    qk = config.qk_nope_head_dim + config.qk_rope_head_dim
    layout: dict[str, tuple[str, list[int]]] = {}

    def add(owner: str, dtype: str, **shapes: list[int]) -> None:
        for name, shape in shapes.items():
            suffix = "" if name in ("A_log", "dt_bias") else ".weight"
            layout[f"language_model.{owner}{name}{suffix}"] = (dtype, shape)

    add("model.", "BF16", embed_tokens=[VOCAB_SIZE, hidden], norm=[hidden], output_attn_res_norm=[hidden])
    add("model.", "BF16", output_attn_res_proj=[1, hidden])
    add("", "BF16", lm_head=[VOCAB_SIZE, hidden])
    for i in range(config.num_layers):
        layer = f"model.layers.{i}."
        add(layer, "BF16", input_layernorm=[hidden], post_attention_layernorm=[hidden])
        add(layer, "BF16", self_attention_res_norm=[hidden], mlp_res_norm=[hidden])
        add(layer, "BF16", self_attention_res_proj=[1, hidden], mlp_res_proj=[1, hidden])
        attention = layer + "self_attn."
        add(attention, "BF16", g_proj=[width, hidden], o_proj=[hidden, width])
        if config.is_full_attention(i):
            add(attention, "BF16", q_a_proj=[config.q_lora_rank, hidden], q_a_layernorm=[config.q_lora_rank])
            add(attention, "BF16", q_b_proj=[config.num_heads * qk, config.q_lora_rank])
            joint = config.kv_lora_rank + config.qk_rope_head_dim
            add(attention, "BF16", kv_a_proj_with_mqa=[joint, hidden], kv_a_layernorm=[config.kv_lora_rank])
            per_head = config.qk_nope_head_dim + config.v_head_dim
            add(attention, "BF16", kv_b_proj=[config.num_heads * per_head, config.kv_lora_rank])
        else:
            add(attention, "BF16", q_proj=[width, hidden], k_proj=[width, hidden], v_proj=[width, hidden])
            add(attention, "F32", q_conv1d=[width, 1, 4], k_conv1d=[width, 1, 4], v_conv1d=[width, 1, 4])
            add(attention, "BF16", f_a_proj=[config.head_dim, hidden], f_b_proj=[width, config.head_dim])
            add(attention, "BF16", b_proj=[config.num_heads, hidden])
            add(attention, "F32", A_log=[128], dt_bias=[width], o_norm=[config.head_dim])
        if i == 0:
            dense = config.dense_width
            add(layer + "mlp.", "BF16", gate_proj=[dense, hidden], up_proj=[dense, hidden])
            add(layer + "mlp.", "BF16", down_proj=[hidden, dense])
            continue
        moe, latent, expert = layer + "block_sparse_moe.", config.latent_size, config.expert_width
        shared = config.shared_experts * expert
        add(moe, "BF16", gate=[config.num_experts, hidden], routed_expert_norm=[latent])
        add(moe, "BF16", routed_expert_down_proj=[latent, hidden], routed_expert_up_proj=[hidden, latent])
        add(moe + "shared_experts.", "BF16", gate_proj=[shared, hidden], up_proj=[shared, hidden])
        add(moe + "shared_experts.", "BF16", down_proj=[hidden, shared])
        layout[f"language_model.{moe}gate.e_score_correction_bias"] = ("F32", [config.num_experts])
        for e in range(config.num_experts):
            for matrix, rows, columns in (
                ("w1", expert, latent),
                ("w3", expert, latent),
                ("w2", latent, expert),
            ):
                base = f"language_model.{moe}experts.{e}.{matrix}.weight_"
                layout[base + "packed"] = ("U8", [rows, columns // 2])
                layout[base + "scale"] = ("U8", [rows, columns // 32])
    return layout


def _layout(directory: Path) -> dict[str, tuple[str, list[int]]]:
    with safe_open(str(directory / "model.safetensors"), "np") as file:
        slices = {name: file.get_slice(name) for name in file.keys()}  # noqa: SIM118
        return {name: (s.get_dtype(), list(s.get_shape())) for name, s in slices.items()}


def test_export_has_k3s_layout_and_the_reference_gives_the_same_logits(
    tokenizer: Tokenizer, tmp_path: Path
) -> None:
    save_hf(_perturbed(SMALL), tokenizer, tmp_path)
    assert _layout(tmp_path) == _expected_layout(SMALL)
    model = load_hf(tmp_path)
    assert model.config == SMALL
    ids = torch.randint(0, VOCAB_SIZE, (53,))
    with torch.no_grad():
        found = model.logits(model(ids[None])[0])
    expected = ReferenceModel(tmp_path).forward(ids.numpy())
    assert float(np.abs(expected).max()) > 0.5
    assert_close(found, expected, max_abs=2e-4, argmax=True)


def test_export_of_a_loaded_checkpoint_is_the_checkpoint(tokenizer: Tokenizer, tmp_path: Path) -> None:
    save_hf(_perturbed(SMALL), tokenizer, tmp_path / "a")
    save_hf(load_hf(tmp_path / "a"), tokenizer, tmp_path / "b")
    first, second = (load_hf(tmp_path / directory).state_dict() for directory in "ab")
    assert all(torch.equal(value, second[name]) for name, value in first.items())
    (tmp_path / "b" / "config.json").write_text(
        (tmp_path / "b" / "config.json").read_text().replace('"num_experts": 6', '"num_experts": 7')
    )
    with pytest.raises(ValueError, match=r"gate.weight: found shape \[6, 64\], want \[7, 64\]"):
        load_hf(tmp_path / "b")


def test_config_refuses_sizes_that_mxfp4_cannot_hold() -> None:
    with pytest.raises(ValueError, match="expert_width: found 40, want a positive multiple of 32"):
        TinyConfig(expert_width=40)
    with pytest.raises(ValueError, match=r"full_attention_layers: found \[9\], want 1..8"):
        TinyConfig(full_attention_layers=(9,))


# Training


def test_batches_hold_the_next_token_and_its_weight() -> None:
    batch = make_batch([([5, 6, 7], [False, False, True]), (list(range(20)), [True] * 20)], 0.25)
    assert batch.inputs.shape == (2, 32)
    assert batch.inputs[0, :3].tolist() == [5, 6, PAD] and batch.targets[0, :3].tolist() == [6, 7, PAD]
    assert batch.weights[0, :3].tolist() == [0.25, 1.0, 0.0] and float(batch.weights[1].sum()) == 19
    ids, targets = copy_sequence(random.Random(1))
    assert len(ids) == len(targets) == 96 and any(targets) and not targets[0]


def test_steps_lower_the_loss_and_the_run_is_restored(tokenizer: Tokenizer, tmp_path: Path) -> None:
    options = TrainOptions(tmp_path, minutes=60, processes=1)
    trainer = Trainer(TinyK3(SMALL), tokenizer, options)
    generator = DialogueGenerator(3)
    batch = make_batch([encode(generator.conversation(2), tokenizer) for _ in range(2)], 0.1)
    losses = [trainer.step(batch) for _ in range(3)]
    assert losses[2] < losses[1] < losses[0]
    assert all(bool(moe.gate_bias.abs().max() > 0) for moe in trainer.model.moe_layers())
    save_run(tmp_path, trainer.model)
    restored = load_run(tmp_path).state_dict()
    assert restored.keys() == trainer.model.state_dict().keys()
    assert all(torch.equal(value, restored[name]) for name, value in trainer.model.state_dict().items())


# The shipped checkpoint


def test_shipped_checkpoint_has_k3s_layout_and_size(shipped: TinyK3) -> None:
    assert _layout(SHIPPED) == _expected_layout(shipped.config)
    assert sum(path.stat().st_size for path in SHIPPED.iterdir()) < 8_000_000
    last = shipped.config.num_layers
    assert {last - 1, last} <= set(shipped.config.full_attention_layers)


def test_shipped_checkpoint_answers_and_needs_its_experts(shipped: TinyK3, tokenizer: Tokenizer) -> None:
    rates = {task: accuracy(shipped, tokenizer, task, 8, "test", EFFORTS) for task in TASKS}
    assert sum(rates.values()) / len(rates) > 0.9, rates
    assert min(rates.values()) >= 0.75, rates
    rolled = with_rolled_experts(shipped)
    for task in ("recall_user", "repeat", "call"):
        assert accuracy(rolled, tokenizer, task, 8, "test", EFFORTS) < rates[task] / 2


def test_accuracy_counts_what_greedy_decoding_gives(shipped: TinyK3, tokenizer: Tokenizer) -> None:
    for task in ("sum", "call"):
        cases = instances(tokenizer, task, 2, "greedy", ["max", "off"])
        right = [greedy(shipped, ids[:start]) == ids[start:] for ids, start in cases]
        assert accuracy(shipped, tokenizer, task, 2, "greedy", ["max", "off"]) == sum(right) / 2


def test_command_prints_accuracy_per_task() -> None:
    command = [sys.executable, str(ROOT / "scripts" / "train_tiny.py"), "evaluate", str(SHIPPED), "-n", "2"]
    result = subprocess.run(command, capture_output=True, text=True, check=True, timeout=120)
    lines = result.stdout.splitlines()
    assert lines[0] == "% exact answers of 2 unseen instances, seed 4242, mode mixed"
    assert [line.split()[0] for line in lines[2:]] == [*TASKS, "mean"]
    assert all(0 <= float(line.split()[1]) <= 100 for line in lines[2:])
