"""Ways of decoding, on a tiny model with random weights: what each must leave alone, and change."""

import itertools

import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("transformers")

from foveate.pipeline import registry  # noqa: E402
from foveate.pipeline.decoding import calibration, focus, prism  # noqa: E402
from foveate.pipeline.decoding.cad import ContextAware  # noqa: E402
from foveate.pipeline.decoding.cd import ExpertMinusAmateur, first_layers  # noqa: E402
from foveate.pipeline.decoding.greedy import Greedy  # noqa: E402
from foveate.pipeline.decoding.layers import LayerContrast, divergence  # noqa: E402
from foveate.pipeline.decoding.search import ContrastiveSearch  # noqa: E402
from foveate.pipeline.decoding.session import Asked, Session, edited, plausible, twin  # noqa: E402
from foveate.pipeline.errors import ConfigError  # noqa: E402
from foveate.pipeline.generators.transformers import make_decoding  # noqa: E402

PROMPT = [5, 9, 33, 7, 21, 40, 2, 18, 61, 11]
BARE = [5, 9, 11]


@pytest.fixture(scope="module")
def plain():
    from transformers import LlamaConfig, LlamaForCausalLM

    torch.manual_seed(0)
    config = LlamaConfig(
        vocab_size=64,
        hidden_size=32,
        intermediate_size=48,
        num_hidden_layers=4,
        num_attention_heads=4,
        num_key_value_heads=2,
        max_position_embeddings=256,
        initializer_range=0.4,
    )
    return LlamaForCausalLM(config).eval().requires_grad_(False)


@pytest.fixture
def model(plain):
    return twin(plain)


def decode(way, model, n=12, **asked):
    asked = {"prompt": PROMPT, "bare": BARE, **asked}
    with torch.inference_mode():
        return list(itertools.islice(way.tokens(Asked(model, **asked)), n))


@pytest.fixture
def greedy(plain):
    """What the model itself would write, without any code of ours."""
    ids = list(PROMPT)
    with torch.inference_mode():
        for _ in range(12):
            ids.append(int(plain(input_ids=torch.tensor([ids])).logits[0, -1].argmax()))
    return ids[len(PROMPT) :]


def test_greedy_writes_what_the_model_itself_writes(model, greedy):
    assert decode(Greedy(), model) == greedy


def test_a_twin_shares_the_weights_and_leaves_the_model_alone(plain, model):
    assert model.lm_head.weight.data_ptr() == plain.lm_head.weight.data_ptr()
    assert plain.config._attn_implementation == "sdpa"
    ids = torch.tensor([PROMPT])
    with torch.inference_mode():
        before = plain(input_ids=ids).logits
        with edited([lambda layer, query, key: query * 0]):
            inside = plain(input_ids=ids).logits
            turned = model(input_ids=ids).logits
        after = model(input_ids=ids).logits
    torch.testing.assert_close(before, inside)
    torch.testing.assert_close(before, after, rtol=1e-4, atol=1e-5)
    assert (turned - before).abs().max() > 1e-3


@pytest.mark.parametrize(
    "way",
    [
        ContextAware(alpha=0.0),
        ContextAware(alpha=0.0, share=0.0),
        ContrastiveSearch(alpha=0.0, k=4),
        LayerContrast(least=1.0, step=1),
        ExpertMinusAmateur(depth=1.0),
        focus.FocusDirections(factor=0.0),
    ],
    ids=["cad", "cad-all", "search", "layers", "cd", "focus"],
)
def test_a_method_that_is_turned_off_is_greedy(way, model, greedy):
    if isinstance(way, focus.FocusDirections):
        way._directions = {1: torch.randn(4, 8)}
    assert decode(way, model) == greedy


def test_cad_without_a_difference_changes_nothing(model, greedy):
    assert decode(ContextAware(alpha=3.0), model, bare=PROMPT) == greedy
    # a conversation without a bare form has nothing to be contrasted with
    assert decode(ContextAware(alpha=3.0), model, bare=()) == greedy


def test_cad_takes_the_token_that_the_passages_raise_most(model, plain):
    alpha = 2.0
    with torch.inference_mode():
        given = plain(input_ids=torch.tensor([PROMPT])).logits[0, -1].log_softmax(-1)
        absent = plain(input_ids=torch.tensor([BARE])).logits[0, -1].log_softmax(-1)
    expected = int(((1 + alpha) * given - alpha * absent).argmax())
    assert decode(ContextAware(alpha=alpha, share=0.0), model, n=1) == [expected]


def test_cd_of_equals_is_uniform_over_the_plausible(plain):
    logits = torch.tensor([3.0, 2.9, 0.5, -4.0])
    among = plausible(logits, 0.1)
    assert among.tolist() == [True, True, False, False]
    scores = (logits.log_softmax(-1) - logits.log_softmax(-1))[among]
    assert scores.tolist() == [0.0, 0.0]
    assert plausible(logits, 0.0).all()


def test_an_amateur_of_the_first_layers_reads_as_the_model_does_up_to_there(plain, model):
    ids = torch.tensor([PROMPT])
    with torch.inference_mode():
        states = plain(input_ids=ids, output_hidden_states=True).hidden_states
        weak = first_layers(model, 0.5)
        got = weak(input_ids=ids).logits
        expected = plain.lm_head(plain.model.norm(states[2]))
    torch.testing.assert_close(got, expected, rtol=1e-4, atol=1e-5)
    assert len(plain.model.layers) == 4
    assert decode(ExpertMinusAmateur(depth=0.5), model, n=8) != decode(Greedy(), model, n=8)


def test_contrastive_search_punishes_an_exact_repeat_most():
    way = ContrastiveSearch(alpha=0.6, k=3)
    seen = torch.nn.functional.normalize(torch.randn(6, 8, generator=torch.manual_seed(1)), dim=-1)
    states = torch.nn.functional.normalize(
        torch.stack([seen[2], seen[2] + 0.8 * seen[5], -seen.mean(0)]), dim=-1
    )
    scores = way.scores(torch.full((3,), 0.3), states, seen)
    assert scores.argmin() == 0
    assert scores.argmax() == 2
    assert float(scores[0]) == pytest.approx(0.4 * 0.3 - 0.6, abs=1e-5)


def test_contrastive_search_sees_each_candidate_as_if_it_stood_alone(plain, model):
    session = Session(model, keep_states=True)
    with torch.inference_mode():
        session.read(PROMPT, Asked(model, PROMPT))
        candidates = torch.tensor([3, 50, 17])
        logits, states = ContrastiveSearch()._look(session, candidates)
        for i, token in enumerate(candidates.tolist()):
            found = plain(input_ids=torch.tensor([[*PROMPT, token]]), output_hidden_states=True)
            torch.testing.assert_close(logits[i], found.logits[0, -1], rtol=1e-3, atol=1e-4)
            torch.testing.assert_close(
                states[i], found.hidden_states[-1][0, -1], rtol=1e-3, atol=1e-4
            )


def test_layers_contrast_only_where_they_differ():
    last = torch.tensor([2.0, 1.9, -3.0])
    same = last.clone()[None]
    other = torch.tensor([[4.0, -4.0, -4.0]])
    way = LayerContrast(least=0.1)
    assert float(divergence(last.log_softmax(-1), same.log_softmax(-1))[0]) < 1e-6
    assert way.choose(last, same) == 0
    # the lower layer already knew token 0: what the upper ones add is token 1
    assert way.choose(last, other) == 1
    assert way.choose(last, other[:0]) == 0


def test_highlighting_with_no_gain_changes_no_logit(model, plain):
    way = prism.Highlight(key_gain=0.0, value_gain=0.0)
    way._directions = random_directions()
    assert decode(way, model, marked=[True] * len(PROMPT)) == decode(Greedy(), twin(plain))


def random_directions():
    torch.manual_seed(3)
    basis = torch.linalg.qr(torch.randn(4, 2, 8, 3)).Q
    projector = basis @ basis.transpose(-1, -2)
    return {
        name: value
        for kind in ("key", "value")
        for name, value in ((f"{kind}.projector", projector), (f"{kind}.weight", torch.ones(4, 2)))
    }


def keys_of(model, ids, marked=None):
    """Return (l, t, g * d) keys before rotation."""
    found = {}
    hooks = [
        module.k_proj.register_forward_hook(
            lambda m, a, out, layer=module.layer_idx: found.__setitem__(layer, out[0].clone())
        )
        for module in model.modules()
        if hasattr(module, "k_proj")
    ]
    session = Session(model)
    with torch.inference_mode():
        if marked is None:
            session.read(ids, Asked(model, ids))
        else:
            with prism.highlighted(torch.tensor(marked), session):
                session.read(ids, Asked(model, ids))
    for hook in hooks:
        hook.remove()
    return torch.stack([found[i] for i in sorted(found)])


def test_highlighting_moves_the_keys_of_the_marked_tokens_alone(plain):
    way = prism.Highlight(key_gain=1.0, value_gain=0.0)
    way._directions = random_directions()
    model = twin(plain)
    way.prepare(model)
    marked = [i in (3, 4) for i in range(len(PROMPT))]
    before, after = keys_of(plain, PROMPT), keys_of(model, PROMPT, marked)
    moved = (after - before).abs().amax(-1) > 1e-5  # (l, t)
    # in the first layer, before anything has mixed, only those two
    assert moved[0].nonzero()[:, 0].tolist() == [3, 4]
    expected = before[0, 3].reshape(2, 8)
    expected = expected + torch.einsum("gij,gj->gi", way._directions["key.projector"][0], expected)
    torch.testing.assert_close(after[0, 3].reshape(2, 8), expected, rtol=1e-4, atol=1e-5)
    # and none once the prompt is read
    torch.testing.assert_close(keys_of(model, PROMPT), before, rtol=1e-4, atol=1e-5)


def test_projectors_project_and_heads_that_do_not_move_are_off():
    torch.manual_seed(5)
    alone, irrelevant = torch.randn(12, 2, 8), torch.randn(12, 2, 8)
    relevant = irrelevant.clone()
    relevant[:, 0] += torch.randn(12, 8)
    projectors, weights = prism.subspace(alone, relevant, irrelevant, 0.9, 0.05)
    torch.testing.assert_close(projectors @ projectors, projectors, rtol=1e-4, atol=1e-5)
    torch.testing.assert_close(projectors.transpose(1, 2), projectors)
    assert weights[0] > 0
    assert (weights[1], projectors[1].abs().max()) == (0, 0)


class Words:
    """A reader's tokenizer that is one: each word is a number."""

    def encode(self, text):
        return [1 + hash_of(word) % 63 for word in text.split()]


def hash_of(word):
    import zlib

    return zlib.crc32(word.encode())


def test_directions_are_learned_and_kept(model, tmp_path, monkeypatch):
    monkeypatch.setattr(calibration, "folder", lambda: tmp_path)
    monkeypatch.setattr(prism, "N_FACTS", 6)
    way = prism.Highlight(reader=Words(), least=0.0)
    decode(way, model, n=3, marked=[True] * len(PROMPT))
    (file,) = tmp_path.glob("prism-*.safetensors")
    stamp = file.stat().st_mtime_ns
    again = prism.Highlight(reader=Words(), least=0.0)
    decode(again, twin(model), n=3, marked=[True] * len(PROMPT))
    assert file.stat().st_mtime_ns == stamp
    torch.testing.assert_close(again._directions["key.projector"], way._directions["key.projector"])
    # the embedding comes before any question: nothing moves in the first layer
    assert way._directions["key.weight"][0].abs().max() == 0
    assert way._directions["key.weight"][1:].min() > 0


def test_a_direction_of_the_keys_would_have_no_effect():
    torch.manual_seed(2)
    rows = focus.Rows(torch.randn(4, 3, 8), torch.randn(2, 9, 8), (2, 5))
    moved = focus.Rows(rows.queries, rows.keys + torch.randn(2, 1, 8), (2, 5))
    torch.testing.assert_close(
        focus.gold_mass(rows.queries, rows), focus.gold_mass(rows.queries, moved), atol=1e-6, rtol=0
    )


def test_focus_directions_raise_the_gold_passage_and_leave_other_heads(model):
    data = [
        ([(i * 7 + j * 3) % 63 + 1 for j in range(20)], (4 + i % 3, 9 + i % 3), 17)
        for i in range(6)
    ]
    with torch.inference_mode():
        learned = focus.learn(model, data, n_heads=3)
    heads = [(layer, head) for layer, d in learned.items() for head in range(4) if d[head].any()]
    assert len(heads) == 3
    for layer, head in heads:
        rows = [focus.watch(model, *prompt)[layer] for prompt in data]
        before = sum(float(focus.gold_mass(r.queries, r)[head]) for r in rows)
        turned = [r.queries + 20 * learned[layer][:, None] for r in rows]
        after = sum(float(focus.gold_mass(q, r)[head]) for q, r in zip(turned, rows, strict=True))
        assert after > before


def test_every_way_is_made_by_its_name_and_refuses_what_it_does_not_take():
    for name in registry.names("decoding"):
        assert hasattr(make_decoding(name, Words()), "tokens")
    assert make_decoding({"use": "cad", "alpha": 0.25}, Words()).alpha == 0.25
    with pytest.raises(ConfigError, match="beta"):
        make_decoding({"use": "cad", "beta": 1}, Words())
    for bad in ({"use": "cad", "alpha": -1}, {"use": "cd", "depth": 0}, {"alpha": 1}):
        with pytest.raises(ConfigError):
            make_decoding(bad, Words())


def test_time_that_is_up_ends_every_way(model):
    for name in sorted(registry.names("decoding")):
        if name not in ("prism", "focus"):
            assert decode(make_decoding(name, Words()), model, deadline=0.0) == []


@pytest.mark.parametrize("name", ["cad", "cd", "layers"])
def test_a_contrast_does_not_end_an_answer_before_it_begins(name, model):
    options = {"least": 0.0, "step": 1} if name == "layers" else {}
    way = make_decoding({"use": name, **options}, Words())
    (first,) = decode(way, model, n=1)
    (other,) = decode(way, model, n=1, ends=frozenset([first]))
    assert other != first
    # where every token is an end there is nothing else to begin with
    assert len(decode(way, model, n=1, ends=frozenset(range(64)))) == 1
