"""A conversation that goes on keeps the exact ids of what was there."""

from __future__ import annotations

import random

import pytest
from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers

from coordinator.prompt import read_prompt
from coordinator.session_memory import MAX_TURNS, SessionMemory
from coordinator.turns import Turn, continue_turns
from protos import coordinator_pb2


class MergingTokenizer:
    """Bytes, and a token for "ab": text written as a, b comes back as another id."""

    has_text = True

    def __init__(self) -> None:
        alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
        vocab = {**{c: i for i, c in enumerate(alphabet)}, "ab": 256}
        self.backend = Tokenizer(models.BPE(vocab=vocab, merges=[("a", "b")]))
        self.backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
        self.backend.decoder = decoders.ByteLevel()
        self.backend.add_special_tokens([AddedToken("<|start|>", special=True), AddedToken("<|end|>")])
        self.encoded: list[str] = []

    def encode(self, text: str) -> list[int]:
        return self.encode_rendered(text)

    def render_chat(self, messages: list[dict[str, str]]) -> str:
        text = "".join(f"<|start|>{m['role']}\n{m['content']}<|end|>" for m in messages)
        return text + "<|start|>assistant\n"

    def encode_rendered(self, text: str) -> list[int]:
        self.encoded.append(text)
        ids: list[int] = self.backend.encode(text, add_special_tokens=False).ids
        return ids

    def decode(self, token_ids: list[int]) -> str:
        return str(self.backend.decode(list(token_ids), skip_special_tokens=True))

    def decode_exact(self, token_ids: list[int]) -> str:
        return str(self.backend.decode(list(token_ids), skip_special_tokens=False))

    def single(self, text: str) -> list[int]:
        """One id for each byte: never what the tokenizer itself gives for "ab"."""
        return [token for byte in text for token in self.backend.encode(byte, add_special_tokens=False).ids]


END = 258


def rendered(*contents: str) -> str:
    """User and assistant in turn, the assistant to speak next."""
    roles = ("user", "assistant")
    messages = [{"role": roles[i % 2], "content": content} for i, content in enumerate(contents)]
    return MergingTokenizer().render_chat(messages)


def turn(tokenizer: MergingTokenizer, text: str, answer: list[int]) -> Turn:
    prompt = tokenizer.backend.encode(text, add_special_tokens=False).ids
    return Turn.of(text, [*prompt, *answer], len(prompt))


def test_the_ids_of_prompt_and_answer_stay() -> None:
    """And only the suffix is tokenised."""
    tokenizer = MergingTokenizer()
    first = turn(tokenizer, rendered("hi"), [*tokenizer.single("cab ab"), END])
    text = rendered("hi", "cab ab", "more ab")
    ids = continue_turns([first], text, tokenizer)
    assert ids is not None
    assert ids[: len(first.token_ids)] == first.token_ids.tolist()
    assert tokenizer.decode_exact(ids) == text
    assert tokenizer.encoded == ["<|start|>user\nmore ab<|end|><|start|>assistant\n"]
    assert ids != tokenizer.backend.encode(text, add_special_tokens=False).ids


@pytest.mark.parametrize(
    ("answer", "said", "num_kept"),
    [
        ("cab ab", "cab ab", 6),  # no end token: the limit came first
        ("cab ab   ", "cab ab", 6),  # a template, or a client, that trims
        ("cab ab STOP", "cab ab ", 7),  # cut at a stop string
        ("cab ab", "something else", 0),
        ("日本", "日", 3),  # never in the middle of a character
        ("", "anything", 0),
    ],
)
def test_what_comes_back_is_kept_as_far_as_it_is_equal(answer: str, said: str, num_kept: int) -> None:
    tokenizer = MergingTokenizer()
    first = turn(tokenizer, rendered("hi"), tokenizer.single(answer))
    text = rendered("hi", said, "next")
    ids = continue_turns([first], text, tokenizer)
    assert ids is not None
    num_prompt = first.num_prompt_tokens
    assert ids[: num_prompt + num_kept] == first.token_ids[: num_prompt + num_kept].tolist()
    assert tokenizer.decode_exact(ids) == text


def test_special_tokens_inside_an_answer_stay_and_unwritten_ones_at_its_end_go() -> None:
    tokenizer = MergingTokenizer()
    start = END - 1
    answer = [*tokenizer.single("a"), start, *tokenizer.single("b"), start]
    first = turn(tokenizer, rendered("hi"), answer)
    ids = continue_turns([first], rendered("hi", "ab", "next"), tokenizer)
    assert ids is not None
    assert ids[: len(first.token_ids) - 1] == first.token_ids[:-1].tolist()
    assert ids[len(first.token_ids) - 1] == END


def test_any_text_that_goes_on_decodes_to_itself() -> None:
    rng = random.Random(6)
    tokenizer = MergingTokenizer()
    for _ in range(300):
        answer = "".join(rng.choice("ab 日é<\n") for _ in range(rng.randrange(12)))
        said = answer[: rng.randrange(len(answer) + 1)] + "".join(
            rng.choice("ab") for _ in range(rng.randrange(3))
        )
        ids = tokenizer.single(answer) + ([END] if rng.random() < 0.5 else [])
        text = rendered("hi", said, "x")
        continued = continue_turns([turn(tokenizer, rendered("hi"), ids)], text, tokenizer)
        assert continued is not None
        assert tokenizer.decode_exact(continued) == text


def test_another_conversation_is_not_continued() -> None:
    tokenizer = MergingTokenizer()
    first = turn(tokenizer, rendered("hi"), tokenizer.single("ab"))
    assert continue_turns([first], rendered("ho", "ab", "more"), tokenizer) is None
    assert continue_turns([first], "<|start|>", tokenizer) is None
    assert continue_turns([], rendered("hi"), tokenizer) is None


def test_the_farthest_turn_is_continued() -> None:
    tokenizer = MergingTokenizer()
    first = turn(tokenizer, rendered("hi"), [*tokenizer.single("ab"), END])
    branches = [
        turn(tokenizer, rendered("hi", "ab", "and"), [*tokenizer.single(answer), END])
        for answer in ("one", "two ab", "two")
    ]
    text = rendered("hi", "ab", "and", "two ab", "go on")
    ids = continue_turns([first, *branches], text, tokenizer)
    assert ids is not None
    assert ids[: len(branches[1].token_ids)] == branches[1].token_ids.tolist()


def test_a_prompt_says_whether_it_was_continued() -> None:
    tokenizer = MergingTokenizer()
    first = turn(tokenizer, rendered("hi"), [*tokenizer.single("ab"), END])
    message = coordinator_pb2.GenerateRequest(messages=[{"role": "user", "content": "hi"}])
    for role, content in (("assistant", "ab"), ("user", "more")):
        message.messages.add(role=role, content=content)
    assert read_prompt(message, tokenizer, (first,)).is_continued
    plain = read_prompt(message, tokenizer)
    assert not plain.is_continued
    assert plain.chat_text == rendered("hi", "ab", "more")


def numbered(number: int, num_tokens: int = 10) -> Turn:
    return Turn.of(f"text {number}", range(num_tokens), 1)


def test_a_session_sees_its_own_turns_only() -> None:
    memory = SessionMemory(10_000)
    memory.remember("a", numbered(1))
    assert memory.turns("b") == ()
    assert len(memory.turns("a")) == 1


def test_the_memory_is_bounded_by_turns_and_bytes_and_forgets_what_was_not_used() -> None:
    size = numbered(0).num_bytes
    memory = SessionMemory(6 * size)
    for number in range(2 * MAX_TURNS):
        memory.remember("a", numbered(number))
    assert len(memory.turns("a")) == 6
    for name in "bcd":
        memory.remember(name, numbered(1))
    memory.turns("b")
    for number in range(3):
        memory.remember("e", numbered(number))
    assert memory.num_bytes <= 6 * size
    assert memory.turns("a") == ()
    assert len(memory.turns("b")) == 1
    memory.remember("huge", numbered(1, 100_000))
    assert memory.turns("huge") == ()
    assert memory.num_bytes == sum(turn.num_bytes for name in "bcde" for turn in memory.turns(name))


def test_random_use_keeps_the_invariant() -> None:
    rng = random.Random(3)
    memory = SessionMemory(5000)
    for number in range(2000):
        name = f"s{rng.randrange(30)}"
        if rng.random() < 0.3:
            memory.turns(name)
        else:
            memory.remember(name, numbered(number, rng.randrange(1, 400)))
        turns = [turn for key in list(memory._sessions) for turn in memory._sessions[key]]
        assert memory.num_bytes == sum(turn.num_bytes for turn in turns) <= 5000
        assert all(memory._sessions.values())
