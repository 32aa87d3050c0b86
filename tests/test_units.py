"""Sizes and figures as people write and read them."""

import pytest

from flexinfer.commands.figures import duration, tokens_rate
from flexinfer.errors import OptionError
from flexinfer.units import format_bytes, parse_bytes, parse_number, parse_whole


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (4096, 4096),
        ("1073741824", 1 << 30),
        ("512B", 512),
        ("4GiB", 4 << 30),
        ("4gib", 4 << 30),
        ("4GB", 4 * 10**9),
        ("1.5 MB", 1_500_000),
        (" 2 KiB ", 2048),
        ("2K", 2048),
        ("1TiB", 1 << 40),
    ],
)
def test_sizes_are_read(text: str | int, expected: int) -> None:
    assert parse_bytes(text) == expected


@pytest.mark.parametrize(
    "text",
    ["", "GiB", "4XB", "-4GiB", "4 GiB each", "1e9", "0x10", "9" * 400, "٤GiB", "4\u00a0GiB"],
)
def test_what_is_no_size(text: str) -> None:
    with pytest.raises(OptionError, match="not a size"):
        parse_bytes(text)


def test_numbers_are_read() -> None:
    assert [parse_whole(text) for text in ("0", "007", "-3", "+12")] == [0, 7, -3, 12]
    numbers = ("1", "-0.5", ".5", "2.", "1e3", "+2.5E-3")
    assert [parse_number(text) for text in numbers] == [1, -0.5, 0.5, 2, 1000, 0.0025]


@pytest.mark.parametrize(
    "text", ["", "٤", "1_0", " 7", "7\n", "0x1f", "nan", "inf", "1e400", "1e٤"]
)
def test_what_is_no_number(text: str) -> None:
    with pytest.raises(OptionError, match="not a number"):
        parse_number(text)
    with pytest.raises(OptionError, match="not a whole number"):
        parse_whole(text)


@pytest.mark.parametrize("text", ["1.5", "1e3", "9" * 5000])
def test_what_is_no_whole_number(text: str) -> None:
    with pytest.raises(OptionError, match="not a whole number"):
        parse_whole(text)


@pytest.mark.parametrize(
    ("size_bytes", "expected"),
    [
        (0, "0 B"),
        (1023, "1023 B"),
        (1024, "1 KiB"),
        (1536, "1.5 KiB"),
        (110 << 20, "110 MiB"),
        (3_826_000_000, "3.56 GiB"),
        (5 << 40, "5.00 TiB"),
    ],
)
def test_sizes_are_told(size_bytes: int, expected: str) -> None:
    assert format_bytes(size_bytes) == expected


@pytest.mark.parametrize(
    ("seconds", "expected"),
    [
        (0.042, "0.042 s"),
        (4.24, "4.2 s"),
        (42.4, "42 s"),
        (200, "3 min 20 s"),
        (1800, "30 min"),
        (7500, "2 h 5 min"),
    ],
)
def test_durations_are_told(seconds: float, expected: str) -> None:
    assert duration(seconds) == expected


def test_slower_than_a_token_a_second_is_seconds_a_token() -> None:
    assert tokens_rate(12.34) == "12.3 tokens/s"
    assert tokens_rate(1234.5) == "1234 tokens/s"
    assert tokens_rate(0.4) == "2.5 s a token"
