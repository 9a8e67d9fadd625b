import pytest
import torch

from foveate.kernels.team_attention import inclusion, make_teams, team_attention
from foveate.pipeline.errors import ShapeError


def make(u=40, r=2, d=8):
    gen = torch.Generator().manual_seed(0)
    return [torch.randn(s, generator=gen) for s in ((r, d), (u, d), (u, 5))]


def full(q, k, v):
    return (q.double() @ k.double().T / q.shape[1] ** 0.5).softmax(1) @ v.double()


@pytest.mark.parametrize("u", [1, 15, 16, 17, 63])
def test_teams_part_the_keys(u):
    _, k, _ = make(u)
    teams = make_teams(k)
    assert int(teams.sizes.sum()) == u
    assert torch.equal(torch.bincount(teams.team), teams.sizes)
    assert torch.equal(teams.team[teams.leaders], torch.arange(len(teams.sizes)))
    # nobody is nearer to another leader of the span
    for j in range(u):
        span = [n for n, leader in enumerate(teams.leaders.tolist()) if leader // 16 == j // 16]
        gaps = {n: float((k[j] - k[teams.leaders[n]]).norm()) for n in span}
        assert gaps[int(teams.team[j])] == pytest.approx(min(gaps.values()))


def test_equal_keys_make_one_team():
    assert make_teams(torch.ones(16, 4)).sizes.tolist() == [16]


@pytest.mark.parametrize("u", [1, 17, 40])
@pytest.mark.usefixtures("poison")
def test_all_teams_are_exact(u, rms):
    q, k, v = make(u)
    got = team_attention(q, k, v, make_teams(k), 1000)
    assert rms(got, full(q, k, v)) < 1e-5


def test_both_sums_are_unbiased():
    """Over many draws, sum of f_g / pi_g has the mean sum of f_g, within 4 standard errors."""
    q, k, _ = make(48, 1)
    teams = make_teams(k)
    many = q.double().expand(20_000, -1)
    gen = torch.Generator().manual_seed(1)
    weights = inclusion(many, teams, 4, generator=gen).exp()
    f = torch.linspace(0.2, 1.0, len(teams.sizes), dtype=torch.float64) * torch.exp(
        teams.sizes.log() + q[0].double() @ k[teams.leaders].double().T / 8**0.5
    )
    draws = weights @ f
    error = draws.std() / len(draws) ** 0.5
    assert abs(float(draws.mean() - f.sum())) < 4 * float(error)
    assert (weights > 0).sum(1).unique().tolist() == [4]


def test_more_teams_come_nearer():
    q, k, v = make(64, 1)
    teams, want = make_teams(k), full(q, k, v)
    many = q.expand(300, -1)
    errors = []
    for n in (2, 8, 14):
        gen = torch.Generator().manual_seed(0)
        got = team_attention(many, k, v, teams, n, generator=gen)
        errors.append(float((got - want).pow(2).mean()))
    assert errors[0] > errors[1] > errors[2]


def test_the_same_seed_draws_the_same():
    q, k, v = make()
    teams = make_teams(k)
    draws = [
        team_attention(q, k, v, teams, 2, generator=torch.Generator().manual_seed(s))
        for s in (3, 3, 4)
    ]
    assert torch.equal(draws[0], draws[1])
    assert not torch.equal(draws[0], draws[2])


def test_without_sampling_the_best_are_taken():
    q, k, v = make()
    teams = make_teams(k)
    bias = inclusion(q, teams, 3, sampled=False)
    phi = teams.sizes.log() + q @ k[teams.leaders].T / 8**0.5
    assert torch.equal((bias == 0).nonzero()[:, 1].view(2, 3), phi.topk(3).indices.sort(1).values)
    got = team_attention(q, k, v, teams, 3, sampled=False)
    assert torch.equal(got, team_attention(q, k, v, teams, 3, sampled=False))


def test_exact_keys_are_always_in():
    q, k, v = make()
    v = torch.zeros_like(v)
    v[-1] = 1.0
    teams = make_teams(k)
    gen = torch.Generator().manual_seed(0)
    got = team_attention(q, k, v, teams, 1, exact=torch.tensor([39]), generator=gen)
    assert (got > 0).all()


def test_wrong_shapes_are_named():
    q, k, v = make()
    with pytest.raises(ShapeError, match="40 keys"):
        team_attention(q, k, v, make_teams(k[:20]), 3)


@pytest.mark.parametrize("exact", [None, [0, 58, 59]])
def test_triton_attends_to_the_same_draw(exact, interpreter, rms):
    gen = torch.Generator().manual_seed(6)
    q, k, v = (torch.randn(s, generator=gen).to(interpreter) for s in ((5, 16), (60, 16), (60, 7)))
    teams = make_teams(k)
    always = None if exact is None else torch.tensor(exact, device=interpreter)
    found = [
        team_attention(
            q, k, v, teams, 6, exact=always, backend=backend,
            generator=torch.Generator(interpreter).manual_seed(1),
        )
        for backend in ("triton", "cpu")
    ]  # fmt: skip
    assert rms(*found) < 1e-5
