"""Made-up prompts of agent work: tool calls, code edits, logs, data, code and questions.

Prompt i of a seed is a function of (seed, i): more of them never changes the first ones.
"""

from __future__ import annotations

import json
import random
from collections.abc import Callable
from dataclasses import dataclass

from deploy import agent_words as words

Make = Callable[[random.Random], str]


@dataclass(frozen=True)
class MadePrompt:
    kind: str
    prompt: str


def agent_prompts(count: int, seed: int) -> list[MadePrompt]:
    """The first `count` prompts of a seed, kinds in turn."""
    makers: list[tuple[str, Make]] = [
        ("json_tool_call", tool_call),
        ("code_edit", code_edit),
        ("log_reading", log_reading),
        ("code", code),
        ("data", data),
        ("question", question),
    ]
    found = []
    for index in range(count):
        kind, make = makers[index % len(makers)]
        found.append(MadePrompt(kind, make(random.Random(f"{seed}/{index}"))))
    return found


def tool_call(rng: random.Random) -> str:
    """Tools with their parameters, a request, and the answer's form."""
    chosen = rng.sample(sorted(words.TOOLS), rng.choice((1, 1, 2, 3)))
    tools = [{"name": name, "parameters": words.TOOLS[name]} for name in chosen]
    listed = rng.choice((json.dumps(tools), "\n".join(map(json.dumps, tools))))
    form = rng.choice(
        (
            'Write one line of JSON: {"name": <tool>, "parameters": {<values>}}.',
            "Reply with one JSON object with the keys 'tool' and 'arguments', and nothing else.",
            'Call a tool by writing <tool_call>{"name": ..., "arguments": {...}}</tool_call>.',
        )
    )
    heading = rng.choice(("Tools:", "You can call these tools:"))
    return f"{heading} {listed}\n{form}\nRequest: {_request(rng, chosen[0])}"


def _request(rng: random.Random, tool: str) -> str:
    name, city, item = rng.choice(words.NAMES), rng.choice(words.CITIES), rng.choice(words.ITEMS)
    word, colour = rng.choice(words.CODE_WORDS), rng.choice(words.COLOURS)
    number, service = rng.randint(2, 60), rng.choice(words.SERVICES)
    requests = {
        "post_message": f"let the channel {service} know that {name} has {number} {item}s",
        "create_ticket": f"{service} shows '{rng.choice(words.FAULTS)}'; {name} should look at it, urgent",
        "get_forecast": f"what will the weather be in {city} for the next {number % 7 + 2} days?",
        "search_files": f"find {word} in the folder src/{service}, {number} hits at most",
        "read_file": f"show lines {number} to {number + 20} of {service}/{word}.py",
        "write_file": f"save the text '{item} for {name}' as notes/{service}.txt",
        "run_command": f"run the tests of {service} and give up after {number} seconds",
        "query_database": f"the {number} {service} rows where city is {city}",
        "book_room": f"the {colour} room on 2024-0{number % 9 + 1}-1{number % 10} for two hours",
        "convert_units": f"how many {rng.choice(('miles', 'feet', 'pounds'))} are {number} "
        f"{rng.choice(('kilometres', 'metres', 'kilograms'))}?",
        "set_reminder": f"remind me to call {name} at {number % 12 + 8}:30",
        "translate": f"say 'where is the {item}?' in {rng.choice(('French', 'Spanish', 'German'))}",
        "add_item": f"put {number} {item}s on the list {service}",
        "open_pull_request": f"open a draft pull request for the branch {name}/{service}-fix",
    }
    return requests[tool]


def code_edit(rng: random.Random) -> str:
    """A short file and one change; the answer repeats most of the file."""
    first, second = rng.sample(words.CODE_WORDS, 2)
    values = [rng.randint(1, 90) for _ in range(rng.randint(3, 6))]
    colour, other = rng.sample(words.COLOURS, 2)
    name, size = rng.choice(words.SERVICES), rng.randint(10, 40)
    again = rng.choice(("repeat the rest as it is", "show the complete new file", "return the full file"))
    files = (
        (
            f"The parameter should be called {second}, not items: change it",
            f"def {first}(items):\n    if not items:\n        return 0\n"
            "    return sum(items) / len(items)\n\n"
            f"print({first}({values}))\nprint({first}([]))\n",
        ),
        (
            f"Make the theme {other} instead of {colour}",
            f'<div class="{name} {colour}">\n  <h1 class="{colour}">{first}</h1>\n  <p>{second}: {size}</p>\n'
            f'  <a class="{colour}" href="/{name}">more</a>\n</div>\n',
        ),
        (
            f"Set {first} to {values[0]}",
            f"name: {name}\n{first}: {size}\n{second}: {values[1]}\nhosts:\n  - {rng.choice(words.HOSTS)}-1\n"
            f"  - {rng.choice(words.HOSTS)}-2\n",
        ),
        (
            "Add a docstring to each method",
            f"class {name.title()}:\n    def __init__(self, {first}):\n        self.{first} = {first}\n\n"
            f"    def add(self, {second}):\n        self.{first} += {second}\n        return self.{first}\n\n"
            f"    def reset(self):\n        self.{first} = {values[0]}\n",
        ),
        (
            f"Replace the number {values[0]} by a constant MAX_{first.upper()}",
            f"def check({first}):\n    if {first} > {values[0]}:\n        raise ValueError('too large')\n"
            f"    return min({first}, {values[0]})\n",
        ),
    )
    change, text = rng.choice(files)
    return f"{change} and {again}:\n\n{text}"


def log_reading(rng: random.Random) -> str:
    """A log and a question about it."""
    services = rng.sample(words.SERVICES, 3)
    minute = rng.randint(0, 50)
    lines = []
    for index in range(rng.randint(5, 10)):
        level = rng.choice(words.LEVELS)
        event = rng.choice(words.EVENTS).format(n=rng.randint(2, 900))
        if level in ("WARN", "ERROR"):
            event = f"{rng.choice(words.HOSTS)}-{rng.randint(1, 4)}: {rng.choice(words.FAULTS)}"
        stamp = f"{rng.randint(8, 9):02}:{minute + index // 3:02}:{rng.randint(0, 59):02}"
        lines.append(f"{stamp} {level:<5} {rng.choice(services)} {event}")
    lines.sort()
    task = rng.choice(
        (
            "Show me the errors in this output, word for word:",
            f"What did {services[0]} write? Give its lines:",
            "What went wrong here, and when?",
            "How many lines of each level does this log have?",
            "Summarise this log in two sentences:",
            "List the errors of this log as JSON objects with the keys time, service and message:",
        )
    )
    return task + "\n" + "\n".join(lines)


def code(rng: random.Random) -> str:
    """A small program to write."""
    language = rng.choice(words.LANGUAGES)
    verb, thing = rng.choice(words.VERBS), rng.choice(words.OBJECTS)
    extra = rng.choice(
        ("", "", " Add an example call.", " Explain it in one sentence.", " Write a test for it.")
    )
    name = f"{rng.choice(words.CODE_WORDS)}_{rng.choice(words.CODE_WORDS)}"
    asked = rng.choice(
        (
            f"Write a {language} function `{name}` that {verb} {thing}.",
            f"Write a {language} class for {thing} with the methods add, remove and size.",
            f"Show how to read {thing} in {language}.",
            f"Fix this {language} code, which {verb} {thing} but fails on empty input.",
        )
    )
    return asked + extra


def data(rng: random.Random) -> str:
    """Rows to bring into another form."""
    columns = ("id", rng.choice(("name", "item", "product")), rng.choice(("price", "count", "weight")))
    rows = [
        f"{index}, {item}, {rng.randint(1, 99)}.{rng.randint(0, 99):02}"
        for index, item in enumerate(rng.sample(words.ITEMS, rng.randint(3, 6)), 1)
    ]
    form = rng.choice(
        (
            f"Convert these records to JSON, fields {', '.join(columns)}:",
            f"Write these rows as a Markdown table with the columns {', '.join(columns)}:",
            f"Write SQL INSERT statements for the table {rng.choice(words.SERVICES)} from these rows:",
            f"Turn these rows into YAML with the keys {', '.join(columns)}:",
            "Sort these rows by their last number and print them again:",
        )
    )
    return form + "\n" + "\n".join(rows)


def question(rng: random.Random) -> str:
    """Something to explain."""
    topic, other = rng.sample(words.TOPICS, 2)
    return rng.choice(
        (
            f"Explain {topic} in {rng.choice(('two', 'three', 'four', 'five'))} sentences.",
            f"What is the difference between {topic} and {other}?",
            f"List {rng.randint(3, 8)} facts about {topic}.",
            f"Why does {topic} matter? Give an example.",
            f"Write a short paragraph about {topic} for a child.",
            f"Give step by step advice on {topic}.",
            f"Write an email to {rng.choice(words.NAMES)} about {topic}.",
        )
    )
