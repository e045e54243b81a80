"""The strict loader: each mistake in a file is one sentence with file, place, key and the nearest valid name."""

from __future__ import annotations

from pathlib import Path

import pytest
from pydantic import BaseModel, ConfigDict, Field

from scalewright.errors import DocumentError
from scalewright.records.loader import load_toml, parse_toml, read_jsonl, validate


class Inner(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")
    bandwidth: float
    latency: float = 0.0


class Thing(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")
    schema_: str = Field(alias="schema")
    name: str
    num_nodes: int = Field(default=1, gt=0)
    links: tuple[Inner, ...] = ()


HEAD = 'schema = "scalewright.thing/1"\n'


def load(tmp_path: Path, text: str) -> Thing:
    path = tmp_path / "thing.toml"
    path.write_text(text)
    return load_toml(path, Thing, kind="thing")


def test_good_file_loads(tmp_path: Path) -> None:
    thing = load(tmp_path, HEAD + 'name = "x"\n[[links]]\nbandwidth = 2.0\n')
    assert (thing.name, thing.links[0].bandwidth) == ("x", 2.0)


def test_unknown_key_names_file_key_and_nearest(tmp_path: Path) -> None:
    with pytest.raises(DocumentError, match=r"thing\.toml.*'num_node'.*num_nodes"):
        load(tmp_path, HEAD + 'name = "x"\nnum_node = 3\n')


def test_unknown_key_inside_a_list_names_its_place_and_nearest(tmp_path: Path) -> None:
    with pytest.raises(DocumentError, match=r"'links\.0\.bandwith'.*bandwidth"):
        load(tmp_path, HEAD + 'name = "x"\n[[links]]\nbandwidth = 1.0\nbandwith = 2.0\n')


def test_unknown_key_like_nothing_lists_the_known_ones(tmp_path: Path) -> None:
    with pytest.raises(DocumentError, match=r"known keys: .*name"):
        load(tmp_path, HEAD + 'name = "x"\nqqqq = 3\n')


def test_missing_key_is_named(tmp_path: Path) -> None:
    with pytest.raises(DocumentError, match=r"thing\.toml: key 'name' is missing"):
        load(tmp_path, HEAD)


def test_value_that_breaks_a_rule_is_shown_with_the_rule(tmp_path: Path) -> None:
    with pytest.raises(DocumentError, match=r"'num_nodes': .*greater than 0.*found 0"):
        load(tmp_path, HEAD + 'name = "x"\nnum_nodes = 0\n')


def test_value_of_the_wrong_type_is_named(tmp_path: Path) -> None:
    with pytest.raises(DocumentError, match=r"'name': .*string"):
        load(tmp_path, HEAD + "name = 3\n")


@pytest.mark.parametrize(
    ("text", "line"),
    [
        ("a = 1\nb = = 2\n", 2),
        ("a = 1\n[table\n", 2),
        ('a = 1\nb = "unfinished\n', 2),
        ("a = 1\na = 2\n", 2),
    ],
)
def test_malformed_toml_gives_the_line(text: str, line: int) -> None:
    with pytest.raises(DocumentError, match=rf"bad\.toml.*line {line}"):
        parse_toml(text, where="bad.toml")


def test_truncated_toml_names_the_file() -> None:
    with pytest.raises(DocumentError, match=r"bad\.toml: is not valid TOML"):
        parse_toml("a = [1, 2", where="bad.toml")


def test_other_schema_is_refused_before_anything_else(tmp_path: Path) -> None:
    with pytest.raises(DocumentError, match="is a link document, where a thing was expected"):
        load(tmp_path, 'schema = "scalewright.link/1"\nnonsense = 1\n')


def test_newer_schema_is_refused(tmp_path: Path) -> None:
    with pytest.raises(DocumentError, match="newer than 1"):
        load(tmp_path, 'schema = "scalewright.thing/2"\nname = "x"\n')


def test_json_lines_come_with_their_numbers_and_blank_lines_are_passed_over(tmp_path: Path) -> None:
    path = tmp_path / "rows.jsonl"
    path.write_text('{"a": 1}\n\n  \n{"a": 2}\n')
    assert list(read_jsonl(path)) == [(1, {"a": 1}), (4, {"a": 2})]


def test_truncated_json_line_gives_file_and_line(tmp_path: Path) -> None:
    path = tmp_path / "rows.jsonl"
    path.write_text('{"a": 1}\n{"a": 2}\n{"a": ')
    with pytest.raises(DocumentError, match=r"rows\.jsonl, line 3"):
        list(read_jsonl(path))


def test_error_in_a_json_line_gives_one_line_number_only(tmp_path: Path) -> None:
    path = tmp_path / "rows.jsonl"
    path.write_text('{"a": 1}\n{"a": 2}\n{"a": x}\n')
    with pytest.raises(DocumentError) as error:
        list(read_jsonl(path))
    assert str(error.value).removeprefix(str(path)).count("line") == 1, (
        "a second 'line 1' would point at the wrong place"
    )


def test_json_line_that_is_no_object_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "rows.jsonl"
    path.write_text('{"a": 1}\n[1, 2]\n')
    with pytest.raises(DocumentError, match=r"rows\.jsonl, line 2.*list"):
        list(read_jsonl(path))


@pytest.mark.parametrize("separator", ["\u2028", "\u2029", "\u0085"])
def test_unicode_line_separator_inside_a_string_does_not_tear_a_json_line(tmp_path: Path, separator: str) -> None:
    path = tmp_path / "rows.jsonl"
    path.write_text(f'{{"a": "x{separator}y"}}\n{{"a": 2}}\n', encoding="utf-8")
    assert list(read_jsonl(path)) == [(1, {"a": f"x{separator}y"}), (2, {"a": 2})]


def test_windows_line_ends_are_read(tmp_path: Path) -> None:
    path = tmp_path / "rows.jsonl"
    path.write_bytes(b'{"a": 1}\r\n{"a": 2}\r\n')
    assert [row for _, row in read_jsonl(path)] == [{"a": 1}, {"a": 2}]


def test_validation_of_a_row_names_where_it_came_from() -> None:
    with pytest.raises(DocumentError, match=r"^rows\.jsonl, line 7: key 'bandwidth' is missing"):
        validate({}, Inner, where="rows.jsonl, line 7")


def test_all_problems_are_named_at_once_and_a_misspelt_key_is_not_missing_as_well(tmp_path: Path) -> None:
    text = HEAD + "nme = 1\nnum_nodes = 0\n[[links]]\nlatency = 1.0\n[[links]]\n"
    with pytest.raises(DocumentError) as error:
        load(tmp_path, text)
    message = str(error.value)
    assert "did you mean name" in message
    assert "'name'" not in message
    assert "keys 'links.0.bandwidth', 'links.1.bandwidth' are missing; add them" in message
    assert "greater than 0" in message
