from __future__ import annotations

from pathlib import Path

import pytest

from foveate.pipeline import config, opening, refine, registry
from foveate.pipeline.errors import ConfigError, UnknownComponent
from foveate.pipeline.search import SearchOptions


@pytest.fixture(autouse=True)
def alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Stand in an empty folder, with no settings of the person who runs the tests."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(config, "user_file", lambda: tmp_path / "user.toml")
    for name in [n for n in __import__("os").environ if n.startswith("FOVEATE_")]:
        monkeypatch.delenv(name)
    return tmp_path


def test_every_preset_names_a_component_for_each_stage() -> None:
    for name in config.preset_names():
        loaded = config.load(name)
        for table in ("encoders.text", "encoders.image", "index", "generate"):
            assert loaded.component(table)[0]


def test_every_preset_fits_the_components_that_it_names() -> None:
    for name in config.preset_names():
        loaded = config.load(name)
        assert set(opening.make_encoders(loaded)) == {"text", "image"}
        kind, options = loaded.component("generate")
        registry.find("generator", kind)(**options)
        chain = refine.steps(loaded.get("rerank", ()), name)
        assert all(refine.make("reranker", s.name, None, s.options).reads for s in chain)


def test_who_named_the_preset_is_said(alone: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (alone / "foveate.toml").write_text("[search]\ndepth = 3\n")
    assert config.load().origin("preset") == "default"
    (alone / "foveate.toml").write_text('preset = "gpu"\n')
    assert (config.load().get("preset"), config.load().origin("preset")) == ("gpu", "foveate.toml")
    monkeypatch.setenv("FOVEATE_PRESET", "standard")
    assert config.load().origin("preset") == "environment"
    assert config.load("offline").origin("preset") == "option"


def test_the_order_of_precedence(alone: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def depth() -> tuple[object, str | None]:
        loaded = config.load(overrides=flags)
        return loaded.get("search.depth"), loaded.origin("search.depth")

    flags: dict[str, object] = {}
    (alone / "preset.toml").write_text('[encoders.text]\nuse = "minilm"\n[search]\ndepth = 1\n')
    monkeypatch.setenv("FOVEATE_PRESET", "preset.toml")
    assert depth() == (1, "preset preset.toml")
    (alone / "user.toml").write_text("[search]\ndepth = 2\n")
    assert depth() == (2, str(alone / "user.toml"))
    (alone / "foveate.toml").write_text("[search]\ndepth = 3\n")
    assert depth() == (3, "foveate.toml")
    monkeypatch.setenv("FOVEATE_SEARCH__DEPTH", "4")
    assert depth() == (4, "environment")
    flags["search.depth"] = 5
    assert depth() == (5, "option")


def test_another_component_drops_the_options_of_the_one_before() -> None:
    loaded = config.load("standard", overrides={"encoders.text.use": "minilm"})
    assert loaded.component("encoders.text") == ("minilm", {})
    loaded = config.load(
        "standard", overrides={"encoders.text.path": "x", "encoders.text.use": "minilm"}
    )
    assert loaded.component("encoders.text") == ("minilm", {"path": "x"})


@pytest.mark.parametrize(
    ("text", "want"),
    [
        ("search.depth=7", ("search.depth", 7)),
        ("search.same_text = 0.5", ("search.same_text", 0.5)),
        ("ingest.gps=true", ("ingest.gps", True)),
        ("ingest.ocr=never", ("ingest.ocr", "never")),
        ("ingest.text_columns=['a', 'b']", ("ingest.text_columns", ["a", "b"])),
        ("generate.model=C:\\x=y", ("generate.model", "C:\\x=y")),
    ],
)
def test_assignments(text: str, want: tuple[str, object]) -> None:
    assert config.parse_assignment(text) == want


def test_what_is_wrong_is_named(alone: Path) -> None:
    with pytest.raises(ConfigError, match=r"key=value"):
        config.parse_assignment("search.depth")
    with pytest.raises(UnknownComponent, match="did you mean 'offline'"):
        config.load("ofline")
    with pytest.raises(ConfigError, match=r"unknown table \[serch\].*did you mean \[search\]"):
        config.load(overrides={"serch.depth": 1})
    with pytest.raises(ConfigError, match="no configuration file"):
        config.load(path="missing.toml")
    (alone / "bad.toml").write_text("[search\n")
    with pytest.raises(ConfigError, match=r"bad\.toml.*is not TOML"):
        config.load(path="bad.toml")


def test_options_are_checked() -> None:
    made = config.make(SearchOptions, {"depth": 5, "same_text": 1}, "search")
    assert (made.depth, made.same_text) == (5, 1.0)
    assert isinstance(made.same_text, float)
    with pytest.raises(ConfigError, match=r"unknown option search\.dept; did you mean 'depth'"):
        config.make(SearchOptions, {"dept": 5}, "search")
    for bad in ({"depth": "5"}, {"depth": True}, {"fusion": "sum"}, {"same_text": "high"}):
        with pytest.raises(ConfigError, match=r"search\.\w+ must be"):
            config.make(SearchOptions, bad, "search")


def test_a_single_table_of_rerankers_is_told_from_a_list(alone: Path) -> None:
    (alone / "foveate.toml").write_text('[rerank]\nuse = "fusion"\n')
    with pytest.raises(ConfigError, match=r"write \[\[rerank\]\]"):
        config.load()


def test_a_setting_without_a_table_is_told_what_is_expected() -> None:
    with pytest.raises(ConfigError, match=r"expected table\.key.*'bad'"):
        config.load(overrides={"bad": 1})
