"""Words that made-up prompts are put together from."""

from __future__ import annotations


def _list(text: str, separator: str = " ") -> tuple[str, ...]:
    return tuple(text.split(separator))


NAMES = _list("arno bela clara dario emma farid grace hugo ines jonas kira liam mona nils olga paul")
CITIES = _list("Oslo Lima Cairo Kyoto Austin Porto Nairobi Quebec Hanoi Perth Zurich Bergen Tunis Dublin")
SERVICES = _list("auth billing search mailer gateway orders catalog reports queue storage sync profile")
HOSTS = _list("db cache node worker proxy broker disk shard")
LEVELS = _list("INFO WARN ERROR DEBUG")
FAULTS = (
    "connection refused",
    "timeout after 30 s",
    "out of memory",
    "certificate expired",
    "disk is full",
    "permission denied",
    "unexpected end of file",
    "too many open files",
    "checksum does not match",
)
EVENTS = (
    "started on port {n}",
    "request finished in {n} ms",
    "retrying, attempt {n}",
    "loaded {n} records",
    "health check passed",
    "user {n} logged in",
    "cache has {n} entries",
    "job {n} queued",
)
ITEMS = _list(
    "wallet sponge broom lamp chair table kettle mug bowl spoon jacket scarf boots tent torch radio "
    "cable battery screen keyboard mouse camera tripod bottle basket ladder hammer drill saw rope"
)
COLOURS = _list("red blue green black white orange purple teal grey brown")
VERBS = _list(
    "counts|filters|sorts|groups|reverses|merges|splits|validates|normalises|sums|averages|deduplicates|"
    "flattens|rotates|pairs up|formats|parses|compares|samples|truncates",
    "|",
)
OBJECTS = _list(
    "a list of numbers|a list of words|two dictionaries|a string of digits|a nested list|a CSV line|a date|"
    "a list of tuples|a matrix|a file path|a URL|a log line|a sentence|a list of prices|a set of tags|"
    "an email address|a time in seconds|a JSON document|a list of users|a queue of jobs",
    "|",
)
CODE_WORDS = _list(
    "total average price items result count value names index user order config buffer state score level "
    "limit offset width height token header payload"
)
LANGUAGES = ("Python", "Python", "Python", "JavaScript", "Go", "Rust", "Java", "SQL", "Bash")
TOPICS = _list(
    "gravity|photosynthesis|the water cycle|inflation|vaccines|volcanoes|black holes|recursion|hash tables|"
    "binary search|version control|unit tests|caching|load balancing|encryption|public keys|DNS|TCP|"
    "garbage collection|threads and processes|databases|indexes in databases|compilers|operating systems|"
    "the French Revolution|the Roman Empire|photosynthesis in algae|the immune system|plate tectonics|"
    "tides|eclipses|solar panels|wind power|batteries|electric motors|bicycles|bread baking|coffee|tea|"
    "chess openings|music theory|poetry|budgeting|compound interest|insurance|sleep|exercise|hydration|"
    "stress|teamwork|negotiation|public speaking|time management|gardening|composting|bees|whales|owls",
    "|",
)
TOOLS: dict[str, dict[str, str]] = {
    "post_message": {"channel": "string", "text": "string"},
    "create_ticket": {"title": "string", "priority": "integer", "assignee": "string"},
    "get_forecast": {"city": "string", "days": "integer"},
    "search_files": {"pattern": "string", "folder": "string", "max_results": "integer"},
    "read_file": {"path": "string", "first_line": "integer", "last_line": "integer"},
    "write_file": {"path": "string", "content": "string"},
    "run_command": {"command": "string", "timeout_seconds": "integer"},
    "query_database": {"table": "string", "where": "string", "limit": "integer"},
    "book_room": {"room": "string", "date": "string", "hours": "integer"},
    "convert_units": {"value": "number", "from_unit": "string", "to_unit": "string"},
    "set_reminder": {"text": "string", "time": "string"},
    "translate": {"text": "string", "language": "string"},
    "add_item": {"list": "string", "item": "string", "quantity": "integer"},
    "open_pull_request": {"branch": "string", "title": "string", "draft": "boolean"},
}
