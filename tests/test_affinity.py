"""Where a text should go, as a pure function of what was noted and how busy targets are."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from coordinator.affinity import LEAST_SHARE, SLACK_TEXTS, Affinity, beginnings_of, choose

PAGE = 4
PROMPT = tuple(range(100, 164))


def test_beginnings_are_of_whole_pages_and_each_depends_on_all_before_it() -> None:
    found = beginnings_of(b"", PROMPT, PAGE)
    assert [length // PAGE for length, _ in found] == [1, 2, 3, 4, 6, 8, 12, 16]
    for place in range(len(PROMPT)):
        changed = list(PROMPT)
        changed[place] += 1
        others = beginnings_of(b"", changed, PAGE)
        assert [mine == other for mine, other in zip(found, others, strict=True)] == [
            length <= place for length, _ in found
        ]


def test_a_prompt_shorter_than_a_page_has_no_beginning() -> None:
    assert beginnings_of(b"", PROMPT[: PAGE - 1], PAGE) == ()
    assert len(beginnings_of(b"", PROMPT[:PAGE], PAGE)) == 1


def test_tenants_share_no_beginning() -> None:
    mine, other = (beginnings_of(salt, PROMPT, PAGE) for salt in (b"a", b"b"))
    assert not {digest for _, digest in mine} & {digest for _, digest in other}


def test_the_longest_known_beginning_decides() -> None:
    affinity = Affinity()
    longer = beginnings_of(b"", PROMPT, PAGE)
    affinity.note("", longer[:3], "short")
    assert affinity.favourite("", longer, 4 * PAGE) == "short"
    affinity.note("", longer[3:5], "long")
    assert affinity.favourite("", longer, len(PROMPT)) == "long"


def test_a_small_part_of_a_prompt_is_no_reason() -> None:
    affinity = Affinity()
    beginnings = beginnings_of(b"", PROMPT, PAGE)
    affinity.note("", beginnings[:1], "a")
    assert affinity.favourite("", beginnings[:1], PAGE) == "a"
    assert affinity.favourite("", beginnings, int(PAGE / LEAST_SHARE) + 1) is None


def test_a_session_goes_before_a_beginning() -> None:
    affinity = Affinity()
    beginnings = beginnings_of(b"", PROMPT, PAGE)
    affinity.note("", beginnings, "of the prompt")
    affinity.note("s", (), "of the session")
    assert affinity.favourite("s", beginnings, len(PROMPT)) == "of the session"
    assert affinity.favourite("other", beginnings, len(PROMPT)) == "of the prompt"


def test_what_is_not_used_for_longest_is_forgotten() -> None:
    affinity = Affinity(most_entries=3)
    for name in "abc":
        affinity.note(name, (), name)
    affinity.note("a", (), "z")
    affinity.note("d", (), "d")
    assert len(affinity) == 3
    assert [affinity.favourite(name, (), 1) for name in "abcd"] == ["z", None, "c", "d"]


@given(
    st.dictionaries(st.sampled_from("abcdef"), st.tuples(st.integers(0, 40), st.integers(0, 9)), min_size=1),
    st.one_of(st.none(), st.sampled_from("abcdefg")),
)
def test_the_favourite_unless_it_has_much_more_to_do(
    loads: dict[str, tuple[int, int]], favourite: str | None
) -> None:
    chosen = choose(loads, favourite)
    least = min(loads.values())
    if chosen != favourite:
        assert loads[chosen] == least
        assert favourite not in loads or loads[favourite][0] > least[0] + SLACK_TEXTS
    assert loads[chosen][0] <= 1.5 * least[0] + SLACK_TEXTS
