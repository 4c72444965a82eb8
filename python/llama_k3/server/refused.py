"""Flags of llama.cpp that do not apply here, and why."""

from __future__ import annotations

from collections.abc import Mapping

_GPU = "the model runs on the CPU, there is nothing to offload"
_DOWNLOAD = "models are not downloaded; give the file with -m"
_DRAFT = "there is no speculative decoding"
_ROPE = "the model's attention has no rotation to scale"
_MEDIA = "the model reads text alone"
_ADAPTER = "adapters and control vectors cannot be loaded"
_EMBEDDING = "the model gives no embeddings and no ranks"
_CPU = "threads are placed by the operating system; -t sets their number"
_TEMPLATE = "the chat format is the model's own and cannot be replaced"
_CONSTRAINT = "a grammar or schema comes with a request"
_SAMPLER = "there is no such sampler; see --samplers"
_ROUTER = "one server serves one model"
_TOOLS = "the server runs no tools; they are the client's"
_PAGE = "the web page is built in and has its settings in the browser"
_CORS = "only --cors-origins is there"
_LOG = "the log has one form; see -v, --verbosity and --log-file"
_KV = "each slot has its own context"
_TOUCH = "see --load-mode: auto, mmap or none"

_TABLE: tuple[tuple[str, tuple[str, ...], str], ...] = (
    # reason, flags, variables without LLAMA_ARG_
    (_GPU, ("-ngl", "--gpu-layers", "--n-gpu-layers"), "N_GPU_LAYERS"),
    (_GPU, ("-dev", "--device"), "DEVICE"),
    (_GPU, ("--list-devices",), ""),
    (_GPU, ("-sm", "--split-mode"), "SPLIT_MODE"),
    (_GPU, ("-ts", "--tensor-split"), "TENSOR_SPLIT"),
    (_GPU, ("-mg", "--main-gpu"), "MAIN_GPU"),
    (_GPU, ("-ot", "--override-tensor"), "OVERRIDE_TENSOR"),
    (_GPU, ("-cmoe", "--cpu-moe"), "CPU_MOE"),
    (_GPU, ("-ncmoe", "--n-cpu-moe"), "N_CPU_MOE"),
    (_GPU, ("-ncffn", "--n-cpu-ffn"), "N_CPU_FFN"),
    (_GPU, ("--moe-cache-mib",), "MOE_CACHE_MIB"),
    (_GPU, ("-fit", "--fit"), "FIT"),
    (_GPU, ("-fitt", "--fit-target"), "FIT_TARGET"),
    (_GPU, ("-fitc", "--fit-ctx"), "FIT_CTX"),
    (_GPU, ("--op-offload", "--no-op-offload"), ""),
    (_GPU, ("-kvo", "--kv-offload", "-nkvo", "--no-kv-offload"), "KV_OFFLOAD"),
    (_GPU, ("--no-host",), "NO_HOST"),
    (_GPU, ("-bs", "--backend-sampling"), "BACKEND_SAMPLING"),
    ("there is one kernel of attention, always on", ("-fa", "--flash-attn"), "FLASH_ATTN"),
    ("weights are computed with as they are in the file", ("--repack", "-nr", "--no-repack"), "REPACK"),
    ("the model runs on this machine alone", ("--rpc",), "RPC"),
    (_CPU, ("--numa",), "NUMA"),
    (_CPU, ("-tb", "--threads-batch"), ""),
    (_CPU, ("-C", "--cpu-mask", "-Cr", "--cpu-range", "--cpu-strict"), ""),
    (_CPU, ("-Cb", "--cpu-mask-batch", "-Crb", "--cpu-range-batch", "--cpu-strict-batch"), ""),
    (_CPU, ("--prio", "--prio-batch", "--poll", "--poll-batch"), ""),
    (_TOUCH, ("--mlock",), "MLOCK"),
    (_TOUCH, ("-dio", "--direct-io", "-ndio", "--no-direct-io"), "DIO"),
    (_TOUCH, ("-lzm", "--lazy-mode"), "LAZY_MODE"),
    ("files are checked when they are loaded; weights are not", ("--check-tensors",), ""),
    ("the file's metadata counts", ("--override-kv",), ""),
    (_DOWNLOAD, ("-hf", "-hfr", "--hf-repo"), "HF_REPO"),
    (_DOWNLOAD, ("-hff", "--hf-file"), "HF_FILE"),
    (_DOWNLOAD, ("-hft", "--hf-token"), ""),
    (_DOWNLOAD, ("-mu", "--model-url"), "MODEL_URL"),
    (_DOWNLOAD, ("-dr", "--docker-repo"), "DOCKER_REPO"),
    (_DOWNLOAD, ("-cl", "--cache-list"), ""),
    (_DRAFT, ("-md", "--model-draft", "--spec-draft-model"), "MODEL_DRAFT"),
    (_DRAFT, ("-hfd", "-hfrd", "--hf-repo-draft"), "HFD_REPO"),
    (_DRAFT, ("--spec-type",), "SPEC_TYPE"),
    (_DRAFT, ("-ngld", "--gpu-layers-draft"), "N_GPU_LAYERS_DRAFT"),
    (_DRAFT, ("--draft", "--draft-n", "--draft-max", "--spec-draft-n-max"), "SPEC_DRAFT_N_MAX"),
    (_DRAFT, ("--draft-min", "--draft-n-min", "--spec-draft-n-min"), "SPEC_DRAFT_N_MIN"),
    (_DRAFT, ("--draft-p-min", "--spec-draft-p-min"), "SPEC_DRAFT_P_MIN"),
    (_DRAFT, ("-ctkd", "--cache-type-k-draft", "--spec-draft-type-k"), "SPEC_DRAFT_CACHE_TYPE_K"),
    (_DRAFT, ("-ctvd", "--cache-type-v-draft", "--spec-draft-type-v"), "SPEC_DRAFT_CACHE_TYPE_V"),
    (_DRAFT, ("-lcs", "--lookup-cache-static", "-lcd", "--lookup-cache-dynamic"), ""),
    (_ROPE, ("--rope-scaling",), "ROPE_SCALING_TYPE"),
    (_ROPE, ("--rope-scale",), "ROPE_SCALE"),
    (_ROPE, ("--rope-freq-base",), "ROPE_FREQ_BASE"),
    (_ROPE, ("--rope-freq-scale",), "ROPE_FREQ_SCALE"),
    (_ROPE, ("--yarn-orig-ctx",), "YARN_ORIG_CTX"),
    (_ROPE, ("--yarn-ext-factor",), "YARN_EXT_FACTOR"),
    (_ROPE, ("--yarn-attn-factor",), "YARN_ATTN_FACTOR"),
    (_ROPE, ("--yarn-beta-slow",), "YARN_BETA_SLOW"),
    (_ROPE, ("--yarn-beta-fast",), "YARN_BETA_FAST"),
    (_MEDIA, ("-mm", "--mmproj"), "MMPROJ"),
    (_MEDIA, ("-mmu", "--mmproj-url"), "MMPROJ_URL"),
    (_MEDIA, ("--mmproj-auto", "--no-mmproj", "--no-mmproj-auto"), "MMPROJ_AUTO"),
    (_MEDIA, ("--mmproj-offload", "--no-mmproj-offload"), "MMPROJ_OFFLOAD"),
    (_MEDIA, ("--image-min-tokens",), "IMAGE_MIN_TOKENS"),
    (_MEDIA, ("--image-max-tokens",), "IMAGE_MAX_TOKENS"),
    (_MEDIA, ("--media-path",), ""),
    (_ADAPTER, ("--lora", "--lora-scaled", "--lora-init-without-apply"), ""),
    (_ADAPTER, ("--control-vector", "--control-vector-scaled", "--control-vector-layer-range"), ""),
    (_EMBEDDING, ("--embedding", "--embeddings"), "EMBEDDINGS"),
    (_EMBEDDING, ("--rerank", "--reranking"), "RERANKING"),
    (_EMBEDDING, ("--pooling",), "POOLING"),
    (_EMBEDDING, ("--embd-normalize",), ""),
    (_TEMPLATE, ("--chat-template",), "CHAT_TEMPLATE"),
    (_TEMPLATE, ("--chat-template-file",), "CHAT_TEMPLATE_FILE"),
    (_TEMPLATE, ("--no-jinja",), "NO_JINJA"),
    (
        "see --reasoning and --reasoning-effort",
        ("--chat-template-kwargs",),
        "CHAT_TEMPLATE_KWARGS",
    ),
    ("the think channel is closed without words", ("--reasoning-budget-message",), "THINK_BUDGET_MESSAGE"),
    ("earlier reasoning is always kept", ("--no-reasoning-preserve",), "NO_REASONING_PRESERVE"),
    (_TEMPLATE, ("--prefill-assistant", "--no-prefill-assistant"), "PREFILL_ASSISTANT"),
    (_CONSTRAINT, ("--grammar", "--grammar-file"), ""),
    (_CONSTRAINT, ("-j", "--json-schema", "-jf", "--json-schema-file"), ""),
    ("biases come with a request", ("-l", "--logit-bias"), ""),
    (_SAMPLER, ("--sampler-seq", "--sampling-seq"), ""),
    (_SAMPLER, ("--top-nsigma", "--top-n-sigma", "--typical", "--typical-p"), ""),
    (_SAMPLER, ("--xtc-probability", "--xtc-threshold", "--adaptive-target", "--adaptive-decay"), ""),
    (_SAMPLER, ("--dry-multiplier", "--dry-base", "--dry-allowed-length"), ""),
    (_SAMPLER, ("--dry-penalty-last-n", "--dry-sequence-breaker"), ""),
    (_SAMPLER, ("--dynatemp-range", "--dynatemp-exp", "--mirostat", "--mirostat-lr", "--mirostat-ent"), ""),
    ("a full context ends the answer", ("--context-shift",), "CONTEXT_SHIFT"),
    ("a full context ends the answer, nothing is thrown away", ("--keep",), ""),
    ("snapshots are bounded by --cache-ram", ("-ctxcp", "--ctx-checkpoints"), "CTX_CHECKPOINTS"),
    ("snapshots are bounded by --cache-ram", ("--swa-checkpoints",), ""),
    ("there is no sliding window", ("--swa-full",), "SWA_FULL"),
    (_KV, ("-kvu", "--kv-unified"), "KV_UNIFIED"),
    (_KV, ("--kv-unified-per-slot",), "KV_UNIFIED_PER_SLOT"),
    ("there is nothing to defragment", ("-dt", "--defrag-thold"), "DEFRAG_THOLD"),
    ("requests always share batches", ("-nocb", "--no-cont-batching"), "NO_CONT_BATCHING"),
    ("idle slots are always kept", ("--no-cache-idle-slots",), "NO_CACHE_IDLE_SLOTS"),
    ("any slot may answer; the best prefix decides", ("-sps", "--slot-prompt-similarity"), ""),
    ("there is no empty run after the load", ("--warmup",), "WARMUP"),
    ("the model was not trained to fill in", ("--spm-infill",), ""),
    ("control tokens are never shown", ("-sp", "--special"), ""),
    ("stop strings come with a request", ("-r", "--reverse-prompt"), ""),
    ("escapes are those of JSON", ("-e", "--escape", "--no-escape"), ""),
    ("timings come with every answer", ("--perf", "--no-perf"), "PERF"),
    ("the server listens on one port of its own", ("--reuse-port",), "REUSE_PORT"),
    (_PAGE, ("--path",), "STATIC_PATH"),
    (_PAGE, ("--ui-config", "--webui-config"), "UI_CONFIG"),
    (_PAGE, ("--ui-config-file", "--webui-config-file"), "UI_CONFIG_FILE"),
    (_TOOLS, ("--ui-mcp-proxy", "--webui-mcp-proxy", "--no-ui-mcp-proxy"), "UI_MCP_PROXY"),
    (_TOOLS, ("--tools",), "TOOLS"),
    (_TOOLS, ("--tools-runtime",), "TOOLS_RUNTIME"),
    (_TOOLS, ("--mcp-servers-config",), "MCP_SERVERS_CONFIG"),
    (_TOOLS, ("--mcp-servers-json",), "MCP_SERVERS_JSON"),
    (_TOOLS, ("-ag", "--agent", "-no-ag", "--no-agent"), "AGENT"),
    (_CORS, ("--cors-methods",), "CORS_METHODS"),
    (_CORS, ("--cors-headers",), "CORS_HEADERS"),
    (_CORS, ("--cors-credentials", "--no-cors-credentials"), "CORS_CREDENTIALS"),
    (_ROUTER, ("--models-dir",), "MODELS_DIR"),
    (_ROUTER, ("--models-preset",), "MODELS_PRESET"),
    (_ROUTER, ("--models-max",), "MODELS_MAX"),
    (_ROUTER, ("--models-autoload", "--no-models-autoload"), "MODELS_AUTOLOAD"),
    (_ROUTER, ("--tags",), "TAGS"),
    ("the model stays loaded", ("--sleep-idle-seconds",), "SLEEP_IDLE_SECONDS"),
    (_LOG, ("--log-disable",), ""),
    (_LOG, ("--log-jsonl", "--no-log-jsonl"), "LOG_JSONL"),
    (_LOG, ("--log-colors",), "LOG_COLORS"),
    (_LOG, ("--log-prefix", "--no-log-prefix"), "LOG_PREFIX"),
    (_LOG, ("--log-timestamps", "--no-log-timestamps"), "LOG_TIMESTAMPS"),
)

REFUSED: Mapping[tuple[str, ...], str] = {names: reason for reason, names, _ in _TABLE}
"""Reason by the flag's names."""

REFUSED_VARIABLES: Mapping[str, str] = {
    "LLAMA_ARG_" + variable: reason for reason, _, variable in _TABLE if variable
}
"""Reason by the variable's name."""
