from __future__ import annotations

import json
import re
import shutil

import pytest

from foveate.pipeline.evaluate import datasets
from foveate.pipeline.evaluate.datasets import DatasetError, Pictures, Questions, Retrieval


def test_beir_takes_the_judged_queries_of_the_split(beir):
    (found,) = datasets.load(beir)
    assert isinstance(found, Retrieval)
    assert found.name == "toy"
    assert len(found.corpus) == 6
    assert found.corpus[0].joined == "Title 0 red apples"
    assert dict(found.queries) == {"q0": "apples", "q1": "pears"}
    assert found.qrels == {"q0": {"d0": 2, "d1": 0}, "q1": {"d1": 1}}


def test_another_split_has_its_own_queries(beir):
    for given in (datasets.load(beir, split="train"), datasets.load(f"{beir}:train")):
        assert given[0].name == "toy:train"
        assert dict(given[0].queries) == {"t0": "plums"}
    with pytest.raises(DatasetError, match=r"no split 'dev'.*there: test, train"):
        datasets.load(beir, split="dev")


def test_trec_judgments_and_ones_without_a_header(beir):
    (beir / "qrels" / "test.tsv").write_text("q0 0 d0 1\nq1 0 d1 1\nq9 0 d1 1\nq1 0 d77 1\n")
    (found,) = datasets.load(beir)
    assert found.qrels == {"q0": {"d0": 1}, "q1": {"d1": 1, "d77": 1}}
    assert found.notes == (
        "1 judged query has no text and was left out",
        "1 judgment names a document that the corpus lacks",
    )


def test_a_set_is_found_by_name_below_the_variable(beir, monkeypatch):
    monkeypatch.setenv("FOVEATE_EVAL_DATA", str(beir.parent))
    assert datasets.load("toy")[0].name == "toy"
    with pytest.raises(DatasetError, match="no data set 'nothing'"):
        datasets.load("nothing")


def test_an_unknown_set_lists_what_is_there(beir, question_set, picture_set, monkeypatch, tmp_path):
    root = beir.parent
    (root / "notes").mkdir()
    shutil.copytree(question_set, root / "group" / "inner")
    (root / "broken").mkdir()
    (root / "broken" / "a.jsonl").write_text("no JSON\n")
    monkeypatch.setenv("FOVEATE_EVAL_DATA", str(root))
    message = (
        f"no data set 'toi': it is not a folder nor below FOVEATE_EVAL_DATA={root}; did you mean "
        "'toy'? (there: group, photos, qa_toy, toy)"
    )
    for name in ("toi", "toi:train"):
        with pytest.raises(DatasetError, match=f"^{re.escape(message)}$"):
            datasets.load(name)
    monkeypatch.setenv("FOVEATE_EVAL_DATA", str(root / "notes"))
    with pytest.raises(DatasetError, match=r"notes, which holds no set$"):
        datasets.load("toi")
    monkeypatch.setenv("FOVEATE_EVAL_DATA", str(root / "none"))
    with pytest.raises(DatasetError, match=r"none, which is no folder$"):
        datasets.load("toi")
    monkeypatch.delenv("FOVEATE_EVAL_DATA")
    with pytest.raises(DatasetError, match="set FOVEATE_EVAL_DATA to a folder of sets"):
        datasets.load("toi")


def test_a_split_of_a_set_that_has_none_is_refused(picture_set, beir):
    with pytest.raises(DatasetError, match="photos' has no split 'train': there are no qrels"):
        datasets.load(f"{picture_set}:train")
    assert datasets.load(f"{beir}:train")[0].name == "toy:train"


def test_a_folder_of_sets_gives_them_all(beir, question_set, picture_set):
    assert [d.name for d in datasets.load(beir.parent)] == ["photos", "qa_toy", "toy"]


def test_a_folder_of_nothing_says_what_is_expected(tmp_path):
    with pytest.raises(DatasetError, match=r"expected corpus.jsonl"):
        datasets.load(tmp_path)


def test_pictures_leave_out_what_is_not_there(picture_set):
    (found,) = datasets.load(picture_set)
    assert isinstance(found, Pictures)
    assert list(found.images) == ["red.png", "green.png", "blue.png"]
    assert found.captions["red.png"] == ("a red wall", "all red")
    told = "1 picture is not in images/, such as 'gone.png': names are relative to images/"
    assert found.notes == (told,)
    assert found.n_queries == 6 + 3


def test_captions_say_that_names_are_relative(picture_set):
    file = picture_set / "captions.jsonl"
    named = [{"image": f"images/{n}.png", "captions": ["a wall"]} for n in ("red", "blue")]
    rows(file, *named)
    message = (
        f"{str(file)!r}: 2 pictures are not in images/, such as 'images/red.png': names are "
        "relative to images/, so write 'red.png'"
    )
    with pytest.raises(DatasetError, match=f"^{re.escape(message)}$"):
        datasets.load(picture_set)
    rows(file, {"image": "images/green.jpg", "captions": ["a wall"]})
    with pytest.raises(DatasetError, match=r"'images/green.jpg': names are relative to images/$"):
        datasets.load(picture_set)
    rows(file)
    with pytest.raises(DatasetError, match=r"captions.jsonl' holds no row"):
        datasets.load(picture_set)


def test_rows_of_one_picture_add_up(picture_set):
    named = [{"image": "red.png", "captions": [c]} for c in ("a wall", "all red")]
    rows(picture_set / "captions.jsonl", *named)
    assert datasets.load(picture_set)[0].captions == {"red.png": ("a wall", "all red")}


def test_questions_and_several_files_of_them(question_set):
    (found,) = datasets.load(question_set)
    assert isinstance(found, Questions)
    assert found.name == "qa_toy"
    assert [q.yes_no for q in found.questions] == [False, True]
    assert [d.is_gold for d in found.questions[0].docs] == [True, False, False]
    (question_set / "zh.jsonl").write_text(
        json.dumps(
            {
                "id": 1,
                "question": "山有多高",
                "answers": ["8米", "9米"],
                "required_answers": [["8米"], ["9米"]],
                "docs": [{"text": "山高8米", "is_gold": True}],
            }
        )
    )
    both = datasets.load(question_set)
    assert [d.name for d in both] == ["qa_toy/qa", "qa_toy/zh"]
    assert both[1].language == "zh"
    assert both[1].questions[0].required == (("8米",), ("9米",))


def test_segments_are_rotated_so_that_evidence_moves(tmp_path):
    folder = tmp_path / "pos"
    folder.mkdir()
    segments = [{"title": f"t{i}", "text": f"s{i}"} for i in range(3)]
    (folder / "segments.jsonl").write_text(json.dumps({"_id": "d", "segments": segments}))
    (folder / "queries.jsonl").write_text(
        json.dumps({"_id": "q", "text": "x", "doc": "d", "segment": 1})
    )
    for rotation, text, place in ((0, "s0 s1 s2", "1"), (1, "s2 s0 s1", "2"), (2, "s1 s2 s0", "0")):
        found = datasets.load_segments(folder, rotation)
        assert found.corpus[0].text.split() == text.split()
        assert found.buckets == {"q": place}
        assert found.corpus[0].text.split().index("s1") == int(place)


def test_one_corpus_a_language(beir):
    (beir / "corpus.jsonl").rename(beir / "corpus.en.jsonl")
    (beir / "queries.jsonl").rename(beir / "queries.en.jsonl")
    (beir / "corpus.de.jsonl").write_text(json.dumps({"_id": "d0", "text": "rote Äpfel"}))
    (beir / "queries.de.jsonl").write_text(json.dumps({"_id": "q0", "text": "Äpfel"}))
    assert datasets.languages(beir) == ["en", "de"]
    assert datasets.load(beir)[0].name == "toy"
    german = datasets.load_beir(beir, language="de")
    assert (german.name, german.corpus[0].text) == ("toy/de", "rote Äpfel")
    crossed = datasets.load_beir(beir, language="en", query_language="de")
    assert (crossed.name, dict(crossed.queries)) == ("toy/de>en", {"q0": "Äpfel"})


def test_bad_files_are_named_with_the_line(beir):
    (beir / "corpus.jsonl").write_text('{"_id": "1", "text": "x"}\n{"_id": ')
    with pytest.raises(DatasetError, match=r"corpus.jsonl' line 2 is not JSON"):
        datasets.load(beir)
    (beir / "corpus.jsonl").write_text('{"text": "x"}\n')
    with pytest.raises(DatasetError, match="row without _id"):
        datasets.load(beir)
    (beir / "corpus.jsonl").write_bytes(b'{"_id": "1", "text": "\xff"}\n')
    with pytest.raises(DatasetError, match="not UTF-8"):
        datasets.load(beir)


def test_bad_judgments_are_named(beir):
    file = beir / "qrels" / "test.tsv"
    file.write_text("query-id\tcorpus-id\tscore\nq0\td0\n")
    with pytest.raises(DatasetError, match=r"line 2: expected query-id, corpus-id, score"):
        datasets.load(beir)
    file.write_text("query-id\tcorpus-id\tscore\nother\td0\t1\n")
    with pytest.raises(DatasetError, match=r"judges none of the queries \(3\)"):
        datasets.load(beir)
    file.unlink()
    (beir / "qrels" / "train.tsv").unlink()
    with pytest.raises(DatasetError, match=r"no qrels/\*.tsv"):
        datasets.load(beir)


def test_a_sample_is_stable_and_keeps_the_corpus(beir, question_set, picture_set):
    (whole,) = datasets.load(beir)
    part = datasets.sample(whole, 1)
    assert part == datasets.sample(whole, 1)
    assert (len(part.queries), len(part.corpus)) == (1, 6)
    assert set(part.qrels) == set(part.queries)
    assert part.digest != whole.digest
    assert len(datasets.sample(datasets.load(question_set)[0], 1).questions) == 1
    assert len(datasets.sample(datasets.load(picture_set)[0], 2).images) == 2
    assert datasets.sample(whole, None) is whole


def test_a_file_of_questions_is_a_set_and_needs_no_ids(tmp_path):
    row = {
        "question": "Where?",
        "answers": ["here"],
        "docs": [{"title": "t", "text": "It is here.", "is_gold": True}],
    }
    file = tmp_path / "mine.jsonl"
    file.write_text("\n".join(json.dumps(row) for _ in range(2)))
    (found,) = datasets.load(file)
    assert [q.id for q in found.questions] == ["1", "2"]
    (tmp_path / "other.jsonl").write_text('{"a": 1}')
    with pytest.raises(datasets.DatasetError, match="question, answers and docs"):
        datasets.load(tmp_path / "other.jsonl")


def rows(path, *lines):
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))
    return path


DOC = {"title": "T", "text": "The tide turns twice.", "is_gold": True}


@pytest.mark.parametrize(
    ("docs", "answers", "named"),
    [
        (["The tide."], ["a"], "no usable 'str' object"),
        ([{**DOC, "is_gold": "false"}], ["a"], "expected true or false, got 'false'"),
        ([DOC], 5, "list of texts: 5"),
    ],
)
def test_questions_of_another_shape_are_named(tmp_path, docs, answers, named):
    rows(tmp_path / "q.jsonl", {"question": "How?", "answers": answers, "docs": docs})
    with pytest.raises(DatasetError, match=rf"q.jsonl' line 1: .*{named}"):
        datasets.load(tmp_path)


def test_a_single_text_is_a_list_of_one(tmp_path, picture_set):
    rows(tmp_path / "q.jsonl", {"question": "How?", "answers": "twice", "docs": [DOC]})
    assert datasets.load(tmp_path)[0].questions[0].answers == ("twice",)
    first = json.loads((picture_set / "captions.jsonl").read_text().splitlines()[0])
    rows(picture_set / "captions.jsonl", {**first, "captions": "a red square"})
    assert list(datasets.load(picture_set)[0].captions.values()) == [("a red square",)]


def test_pictures_outside_the_folder_are_not_read(tmp_path, picture_set):
    first = json.loads((picture_set / "captions.jsonl").read_text().splitlines()[0])
    outside = tmp_path / "outside.png"
    outside.write_bytes((picture_set / "images" / first["image"]).read_bytes())
    rows(picture_set / "captions.jsonl", first, {"image": str(outside), "captions": ["a"]})
    (note,) = datasets.load(picture_set)[0].notes
    assert note.startswith("1 picture is not in images/, such as '/")


def test_what_a_line_of_beir_must_be(beir):
    judged = beir / "qrels" / "test.tsv"
    judged.write_text("query-id\tcorpus-id\tscore\nq0\td0\t0.5\n")
    with pytest.raises(DatasetError, match=r"test.tsv' line 2: expected a whole number.*'0.5'"):
        datasets.load(beir)
    judged.write_text("q0\td0\t1\nq1\td1\t1\n")
    corpus = (beir / "corpus.jsonl").read_text()
    (beir / "corpus.jsonl").write_text("")
    with pytest.raises(DatasetError, match=r"corpus.jsonl' holds no documents"):
        datasets.load(beir)
    (beir / "corpus.jsonl").write_text('["d0"]\n')
    with pytest.raises(DatasetError, match=r"corpus.jsonl' line 1 is no JSON object"):
        datasets.load(beir)
    (beir / "corpus.jsonl").write_text(corpus + corpus.splitlines()[0] + "\n")
    rows(beir / "queries.jsonl", {"_id": "q0", "text": " "}, {"_id": "q1", "text": "pears"})
    (found,) = datasets.load(beir)
    assert dict(found.queries) == {"q1": "pears"}
    assert found.notes == (
        "1 judged query has no text and was left out",
        "1 document has the _id of one before",
    )


def test_segments_of_another_shape_are_named(tmp_path):
    rows(tmp_path / "segments.jsonl", {"_id": "d", "segments": ["a tide"]})
    rows(tmp_path / "queries.jsonl", {"_id": "q", "text": "tide", "doc": "d", "segment": 7})
    with pytest.raises(DatasetError, match=r"segments.jsonl' line 1: segments is no list"):
        datasets.load(tmp_path)
    rows(tmp_path / "segments.jsonl", {"_id": "d", "segments": [{"text": "a tide"}]})
    with pytest.raises(DatasetError, match=r"queries.jsonl' line 1: .*got 'd' and 7"):
        datasets.load(tmp_path)
