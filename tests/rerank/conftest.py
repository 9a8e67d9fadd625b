"""A tiny causal model with random weights, made here: exactness needs no trained one."""

import pytest

from foveate.pipeline.reader import Reader

SPECIAL = ["<|endoftext|>", "<|im_start|>", "<|im_end|>"]
TEMPLATE = (
    "{% for m in messages %}<|im_start|>{{ m['role'] }}\n{{ m['content'] }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)


def save_tiny(folder, *, kind="llama", window=512):
    """Save a model of three layers, four heads and two key heads, with a byte-level tokenizer."""
    import torch
    import transformers
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers

    raw = Tokenizer(models.BPE())
    raw.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    raw.decoder = decoders.ByteLevel()
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    raw.train_from_iterator(
        ["a small text about the wings of birds and the weight of wings"],
        trainers.BpeTrainer(vocab_size=320, special_tokens=SPECIAL, initial_alphabet=alphabet),
    )
    tokenizer = transformers.PreTrainedTokenizerFast(
        tokenizer_object=raw,
        eos_token="<|im_end|>",
        bos_token="<|im_start|>",
        unk_token="<|endoftext|>",
        pad_token="<|im_end|>",
    )
    tokenizer.chat_template = TEMPLATE
    tokenizer.save_pretrained(folder)
    torch.manual_seed(3)
    sizes = {
        "vocab_size": len(tokenizer),
        "hidden_size": 32,
        "intermediate_size": 64,
        "num_hidden_layers": 3,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "max_position_embeddings": window,
        "bos_token_id": 1,
        "eos_token_id": 2,
        "pad_token_id": 2,
        # weights this large make heads that differ
        "initializer_range": 0.25,
    }
    if kind == "llama":
        config = transformers.LlamaConfig(**sizes)
    elif kind == "qwen3":
        config = transformers.Qwen3Config(**sizes, head_dim=8)
    else:
        kinds = ["sliding_attention", "full_attention", "sliding_attention"]
        config = transformers.Gemma3TextConfig(
            **sizes, head_dim=8, query_pre_attn_scalar=8, sliding_window=60, layer_types=kinds
        )
    transformers.AutoModelForCausalLM.from_config(config).save_pretrained(folder)
    return folder


@pytest.fixture(scope="session")
def tiny(tmp_path_factory):
    return save_tiny(tmp_path_factory.mktemp("tiny"))


@pytest.fixture(scope="session")
def reader(tiny):
    return Reader(path=tiny, dtype="float32", device="cpu")


@pytest.fixture(scope="session")
def make_tiny():
    """save_tiny(folder, kind=, window=) -> folder."""
    return save_tiny
