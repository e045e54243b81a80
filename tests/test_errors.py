"""The exception tree: exit codes the shell sees, and messages that name what was near."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from scalewright import errors
from scalewright.errors import nearest


@pytest.mark.parametrize(
    ("error", "code"),
    [
        (errors.ConfigError("x"), 2),
        (errors.QuantityError("x"), 2),
        (errors.UnknownNameError("model", "x", ["y"]), 2),
        (errors.DocumentError("x"), 2),
        (errors.LayoutError("x"), 2),
        (errors.NotExpressedError("x"), 2),
        (errors.EnvironmentFailedError("x"), 3),
        (errors.MissingExtraError("run", "torch"), 3),
    ],
)
def test_exit_code_tells_bad_input_from_a_failed_machine(error: errors.ScalewrightError, code: int) -> None:
    assert error.exit_code == code


def test_every_public_error_has_the_one_root() -> None:
    error_classes = [v for v in vars(errors).values() if isinstance(v, type) and issubclass(v, Exception)]
    assert len(error_classes) >= 9
    assert all(issubclass(v, errors.ScalewrightError) for v in error_classes)


def test_unknown_name_lists_near_ones_and_the_hint() -> None:
    message = str(errors.UnknownNameError("accelerator", "h10", ["h100-sxm", "a100", "tpu-v4"], hint="see: catalog"))
    assert "'h10'" in message
    assert "h100-sxm" in message
    assert "tpu-v4" not in message
    assert message.endswith("see: catalog")


def test_unknown_name_with_nothing_near_still_ends_cleanly() -> None:
    many = [f"gpt{n}" for n in range(errors.FEW_NAMES + 1)]
    assert str(errors.UnknownNameError("model", "zzz", many)).endswith("nothing is close to it")
    assert str(errors.UnknownNameError("model", "zzz", ["gpt2", "bert"])).endswith("choose bert, gpt2")


def test_missing_extra_says_what_to_install() -> None:
    assert "pip install 'scalewright[run]'" in str(errors.MissingExtraError("run", "torch"))


def test_a_name_in_other_letters_is_the_only_one_meant() -> None:
    assert nearest("TP", ["tp", "pp", "ep", "sp"]) == ["tp"]


def test_nearest_puts_substrings_before_lookalikes() -> None:
    assert nearest("h100", ["h200", "a100", "h100-sxm"])[0] == "h100-sxm"


def test_nearest_ignores_case_and_finds_typos() -> None:
    assert nearest("LEONARDA", ["leonardo", "lumi"]) == ["leonardo"]


def test_nearest_finds_nothing_for_an_unlike_or_empty_name() -> None:
    assert nearest("qqqq", ["leonardo", "lumi"]) == []
    assert nearest("", ["leonardo", "lumi"]) == []


@given(name=st.text(max_size=12), known=st.lists(st.text(max_size=12), max_size=12), limit=st.integers(1, 5))
@settings(deadline=None, max_examples=100)
def test_nearest_answers_with_distinct_known_names_only(name: str, known: list[str], limit: int) -> None:
    near = nearest(name, known, limit=limit)
    assert len(near) == len(set(near)) <= limit
    assert set(near) <= set(known)
