"""Versioned documents on disk: whole, readable by colleagues, and refused when they are not what they should be."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from scalewright.errors import DocumentError
from scalewright.records.documents import (
    digest,
    document,
    parse_json,
    read_document,
    schema,
    to_json,
    write_document,
    write_text,
)

JSON_VALUES = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(2**53), 2**53)
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=8,
)


def test_written_document_reads_back_with_its_schema_first(tmp_path: Path) -> None:
    path = tmp_path / "a.json"
    write_document(path, document("prediction", {"x": 1.5}))
    assert read_document(path, "prediction") == {"schema": "scalewright.prediction/1", "x": 1.5}
    assert next(iter(json.loads(path.read_text()))) == "schema"


@given(body=st.dictionaries(st.text(max_size=5).filter(lambda k: k != "schema"), JSON_VALUES, max_size=4))
@settings(deadline=None, max_examples=40)
def test_any_body_survives_the_round_trip(tmp_path_factory: pytest.TempPathFactory, body: dict[str, object]) -> None:
    path = tmp_path_factory.mktemp("round") / "a.json"
    write_document(path, document("anything", body))
    assert read_document(path, "anything") == {"schema": "scalewright.anything/1", **body}


def test_writing_leaves_only_the_file(tmp_path: Path) -> None:
    for number in range(3):
        write_document(tmp_path / "a.json", document("plan", {"n": number}))
    assert [p.name for p in tmp_path.iterdir()] == ["a.json"]


def test_failed_write_leaves_the_old_file_and_no_other(tmp_path: Path) -> None:
    path = tmp_path / "a.json"
    write_text(path, "old")
    with pytest.raises(UnicodeEncodeError):
        write_text(path, "\ud800")
    assert path.read_text() == "old"
    assert [p.name for p in tmp_path.iterdir()] == ["a.json"]


def test_writing_over_a_folder_fails_and_leaves_no_other_file(tmp_path: Path) -> None:
    (tmp_path / "a.json").mkdir()
    with pytest.raises((OSError, DocumentError)):
        write_text(tmp_path / "a.json", "new")
    assert [p.name for p in tmp_path.iterdir()] == ["a.json"]


def test_missing_folders_are_made(tmp_path: Path) -> None:
    write_document(tmp_path / "runs" / "one" / "a.json", document("plan", {}))
    assert (tmp_path / "runs" / "one" / "a.json").is_file()


@pytest.mark.parametrize(("umask", "mode"), [(0o022, 0o644), (0o077, 0o600), (0o002, 0o664), (0o027, 0o640)])
def test_file_mode_follows_the_umask(tmp_path: Path, umask: int, mode: int) -> None:
    path = tmp_path / "a.json"
    # The umask belongs to a whole process, so a child takes it.
    code = (
        "import os, sys; from pathlib import Path; from scalewright.records.documents import write_text;"
        "os.umask(int(sys.argv[1])); write_text(Path(sys.argv[2]), 'x')"
    )
    subprocess.run([sys.executable, "-c", code, str(umask), str(path)], check=True)
    assert path.stat().st_mode & 0o777 == mode


def test_rewriting_replaces_the_file_instead_of_editing_it(tmp_path: Path) -> None:
    path = tmp_path / "a.json"
    write_text(path, "old")
    with path.open() as reader:
        write_text(path, "new and longer")
        assert reader.read() == "old"
    assert path.read_text() == "new and longer"


def test_schema_names_kind_and_major() -> None:
    assert schema("plan", 3) == "scalewright.plan/3"


@pytest.mark.parametrize("schema", [None, 1, "", "prediction/1", "other.prediction/1", "scalewright.prediction/x"])
def test_document_without_a_proper_schema_is_refused(tmp_path: Path, schema: object) -> None:
    path = tmp_path / "a.json"
    path.write_text(json.dumps({"schema": schema}))
    with pytest.raises(DocumentError, match=r"a\.json.*scalewright\.prediction/1"):
        read_document(path, "prediction")


def test_newer_major_is_refused_and_says_upgrade(tmp_path: Path) -> None:
    path = tmp_path / "a.json"
    write_document(path, document("prediction", {}, major=2))
    with pytest.raises(DocumentError, match=r"version 2.*upgrade"):
        read_document(path, "prediction")


def test_older_major_is_read(tmp_path: Path) -> None:
    path = tmp_path / "a.json"
    write_document(path, document("prediction", {"x": 1}, major=1))
    assert read_document(path, "prediction", major=2)["x"] == 1


def test_other_kind_is_refused_by_both_names(tmp_path: Path) -> None:
    path = tmp_path / "a.json"
    write_document(path, document("plan", {}))
    with pytest.raises(DocumentError, match=r"plan.*prediction"):
        read_document(path, "prediction")


@pytest.mark.parametrize("value", [float("nan"), float("inf"), -float("inf")])
def test_what_is_not_a_number_is_not_written(tmp_path: Path, value: float) -> None:
    with pytest.raises(ValueError, match="JSON compliant"):
        write_document(tmp_path / "a.json", document("plan", {"x": value}))
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("word", ["NaN", "Infinity", "-Infinity"])
def test_what_is_not_a_number_is_not_read(tmp_path: Path, word: str) -> None:
    path = tmp_path / "a.json"
    path.write_text(f'{{"schema": "scalewright.plan/1", "x": {word}}}')
    with pytest.raises(DocumentError, match=word):
        read_document(path, "plan")


def test_number_that_overflows_to_infinity_is_not_read() -> None:
    with pytest.raises(DocumentError):
        parse_json('{"x": 1e999}', where="a.json")


def test_truncated_json_names_file_line_and_column(tmp_path: Path) -> None:
    path = tmp_path / "a.json"
    path.write_text('{\n  "schema": "scalewright.plan/1",\n  "x": ')
    with pytest.raises(DocumentError, match=r"a\.json, line 3, column \d+"):
        read_document(path, "plan")


def test_json_nested_beyond_reason_is_a_document_error() -> None:
    with pytest.raises(DocumentError):
        parse_json("[" * 100_000, where="a.json")


@pytest.mark.parametrize("text", ["[]", "3", '"plan"', "null"])
def test_json_that_is_no_object_is_refused(tmp_path: Path, text: str) -> None:
    path = tmp_path / "a.json"
    path.write_text(text)
    with pytest.raises(DocumentError, match="not a document"):
        read_document(path, "plan")


def test_missing_file_folder_and_binary_each_say_so(tmp_path: Path) -> None:
    (tmp_path / "binary.json").write_bytes(b'{"a": "\xff"}')
    with pytest.raises(DocumentError, match="no such file"):
        read_document(tmp_path / "none.json", "plan")
    with pytest.raises(DocumentError, match="is a folder"):
        read_document(tmp_path, "plan")
    with pytest.raises(DocumentError, match="not UTF-8"):
        read_document(tmp_path / "binary.json", "plan")


def test_documents_are_written_as_utf8_text_for_people() -> None:
    assert to_json({"schema": "scalewright.plan/1", "name": "µ"}).splitlines()[2].strip() == '"name": "µ"'


def test_digest_is_this_value_on_every_machine() -> None:
    # printf '{"a":1,"b":[2.5,"x"]}' | sha256sum, first 16 digits
    assert digest({"b": [2.5, "x"], "a": 1}) == "5f097a2417b218fb"


def test_digest_changes_with_content() -> None:
    assert digest({"a": 1}) != digest({"a": 2})
