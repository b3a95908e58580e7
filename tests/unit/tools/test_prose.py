"""Documents are wrapped at the width of the code, and nothing but their white space changes."""

from tools.prose import WIDTH, wrapped

LONG = "word " * 60


def test_long_paragraphs_and_items_are_wrapped_and_what_is_no_prose_stays() -> None:
    table = "| " + "cell " * 40 + "|"
    code = "```sh\n" + "option " * 40 + "\n```\n"
    said = f"# {LONG}\n\n{LONG}\n\n- {LONG}\n  more of it\n12. {LONG}\n\n{table}\n{code}\n    {LONG}\n"
    made = wrapped(said)
    assert made.split() == said.split()
    assert {table, f"# {LONG}", f"    {LONG}"} <= set(made.splitlines())
    assert code in made
    prose = [line for line in made.splitlines() if line.startswith(("word", "- ", "  word", "12. ", "    word"))]
    assert len(prose) > 9
    assert all(len(line) <= WIDTH for line in prose if line != f"    {LONG}")
    assert wrapped(made) == made


def test_code_and_links_are_not_cut_and_no_line_begins_as_a_list_would() -> None:
    for fill in range(80, 120):
        made = wrapped(f"{'x' * fill} `a --long option` and [a link](to/somewhere.md) - 3. of {LONG}\n").splitlines()
        assert any("`a --long option`" in line for line in made)
        assert any("[a link](to/somewhere.md)" in line for line in made)
        assert not any(line.startswith(("- ", "3. ")) for line in made)


def test_what_is_even_already_is_left_as_it_was_written() -> None:
    said = "A line of about a hundred characters, as somebody wrote it, with a break that made sense then;\nand more.\n"
    assert wrapped(said) == said
    assert wrapped("Short\nlines of one paragraph.\n") == "Short lines of one paragraph.\n"
