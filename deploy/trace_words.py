"""Words of agent traces, once for training and once for measuring: the two share no tool, file, service,
task, question or form."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class TraceWords:
    """What traces of one kind are put together from.

    Attributes:
        systems: first messages; `{tools}` is the list of tools.
        call_form: an assistant's call; `{tool}` and `{arguments}` (a JSON object).
        result_form: a tool's answer; `{tool}` and `{output}`.
        tools: name -> the name of its one text argument.
        tasks: what a user wants first; `{file}`, `{service}`.
        files, services, names: of things that are read and reported.
        log_line: `{second}`, `{level}`, `{service}`, `{event}`.
        events: what services log; `{n}` is a number.
        code: pieces of a file; `{name}`, `{other}`, `{n}`.
        questions: by kind, the request that the target answers; `{file}`, `{service}`, `{name}`, `{n}`.
    """

    systems: tuple[str, ...]
    call_form: str
    result_form: str
    tools: dict[str, str]
    tasks: tuple[str, ...]
    files: tuple[str, ...]
    services: tuple[str, ...]
    names: tuple[str, ...]
    log_line: str
    events: tuple[str, ...]
    code: tuple[str, ...]
    questions: dict[str, tuple[str, ...]]


TRAINING = TraceWords(
    systems=(
        "You are an agent that works on a code base. Tools: {tools}. Call one tool at a time.",
        "You maintain a few services. You may use these tools, one call in each turn:\n{tools}",
    ),
    call_form='<tool_call>{{"name": "{tool}", "arguments": {arguments}}}</tool_call>',
    result_form="<tool_response name={tool}>\n{output}\n</tool_response>",
    tools={"read_file": "path", "search_files": "pattern", "run_command": "command", "read_log": "service"},
    tasks=(
        "The {service} service answers slowly since this morning. Find out why; look at {file}.",
        "Please clean up {file}: look at it first, then at what uses it.",
        "A user of {service} saw an error page. Look for the cause in the logs and in {file}.",
    ),
    files=(
        "src/cart.py",
        "src/session.py",
        "lib/retry.py",
        "app/routes.py",
        "jobs/export.py",
        "core/cache.py",
    ),
    services=("auth", "billing", "search", "mailer", "gateway", "orders", "catalog", "reports"),
    names=("total", "price", "items", "count", "limit", "offset", "token", "state", "order", "buffer"),
    log_line="09:{second} {level:<5} {service} {event}",
    events=(
        "request finished in {n} ms",
        "retrying, attempt {n}",
        "loaded {n} records",
        "connection refused by db-{n}",
        "timeout after {n} s",
        "job {n} queued",
    ),
    code=(
        "def {name}({other}):\n    if not {other}:\n        return {n}\n    return max({other})\n",
        "class {name}Store:\n    def __init__(self, {other}={n}):\n        self.{other} = {other}\n",
        "for {other} in load_{name}s():\n    if {other}.size > {n}:\n        {other}.split()\n",
        "{name} = int(config.get('{other}', {n}))\n",
    ),
    questions={
        "json_tool_call": (
            "Now look at {file}: write the next tool call and nothing else.",
            "Which call comes next? Search for {name} and write only the call.",
        ),
        "code_edit": (
            "Show {file} again with {name} set to {n}, and the rest as it is.",
            "Rename {name} in the file that you read last and print the whole file.",
        ),
        "log_reading": (
            "Repeat the lines of {service} that show an error, word for word.",
            "Which of the services logged a timeout, and when? Give the lines.",
        ),
    },
)

HELD_OUT = TraceWords(
    systems=(
        "Operations assistant for a small hospital network. Functions at hand: {tools}. Use them stepwise.",
        "You help scientists with their pipelines. What you can invoke:\n{tools}\nOne per reply.",
    ),
    call_form='{{"function": "{tool}", "input": {arguments}}}',
    result_form="Output of {tool}:\n{output}",
    tools={"cat": "file", "grep": "expression", "tail_journal": "unit", "pytest": "selection"},
    tasks=(
        "Nightly imports for {service} stopped. Check its journal and {file}, then tell me what to change.",
        "I get wrong averages from {service}; {file} does the arithmetic. Please investigate.",
        "Before tonight's release, go through {file} and whatever {service} complained about.",
    ),
    files=("ward/beds.rb", "ward/triage.rb", "assay/plate.jl", "assay/blank.jl", "radiology/tiles.ts"),
    services=("pharmacy", "radiology", "intake", "sequencer", "centrifuge", "archive"),
    names=("dosage", "patient", "sample", "spectrum", "threshold", "interval", "plate", "baseline"),
    log_line="[unit={service} prio={level}] +{second} {event}",
    events=(
        "wrote {n} rows to cold storage",
        "calibration drifted by {n} ppm",
        "watchdog fired, restart number {n}",
        "handshake with peer {n} aborted",
        "queue length is down to {n}",
        "license server gave {n} seats",
    ),
    code=(
        "function {name}_mean({other})\n  isempty({other}) && return {n}\n  return mean({other})\nend\n",
        "module {name}\n  DEFAULT_{other} = {n}\n  def self.fetch(key)\n    @pool[key]\n  end\nend\n",
        "export const {name} = ({other}: number[]) =>\n  {other}.filter((x) => x > {n}).map(Math.sqrt);\n",
        "raise ArgumentError, '{other} beyond {n}' unless {name}.cover?({other})\n",
    ),
    questions={
        "json_tool_call": (
            "Go ahead with {file}. Reply with the invocation only.",
            "Next step: grep for {name}. Give just that invocation.",
        ),
        "code_edit": (
            "Write out {file} once more, but with {n} as the constant for {name}.",
            "Replace {name} everywhere in what you opened last; print the result in full.",
        ),
        "log_reading": (
            "Quote every journal entry of {service} with a high priority, unchanged.",
            "Where did a watchdog fire? Quote those journal entries.",
        ),
    },
)
