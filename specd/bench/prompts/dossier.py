"""Long prompts: a case file of many documents, and a question that a few of them answer.

The documents are those of the shipped set (reports, logs, letters, minutes, source files), in another order each time,
so retrieval over long input is asked for and no two prompts share a beginning.
"""

import random
from collections.abc import Sequence

from specd.bench.prompts.prompt import Prompt

__all__ = ["dossiers"]

_KINDS = ("extract", "edit", "code", "agent")
# Shorter texts are questions without a document.
_DOCUMENT_CHARS = 500
_CHARS = (12_000, 24_000, 36_000)
_INTRODUCTION = "Below is a case file. Each document has a number. Read all of it, then do the task at the end.\n"
_TASKS = (
    "List every document in one line: its number, what kind of text it is, and what its author wanted.",
    "Which documents name dates or times? Give for each the number and all dates and times in it, as a table.",
    "Which documents ask the reader to do something? Quote each request word for word with the document's number.",
    "Find all names of people in the file. Say for each in which documents it occurs and what the person does there.",
    "Write a summary of half a page for somebody who has not read the file, and cite documents by number.",
    "Which documents contain program code, configuration or structured data? Name the language or format of each.",
    "Choose the three documents with the most figures in them and restate all of those figures in sentences.",
    "Copy the last document word for word, then say in two sentences how it differs in tone from the first one.",
)


def dossiers(prompts: Sequence[Prompt]) -> tuple[Prompt, ...]:
    """Return long prompts (about 3,000, 6,000 and 9,000 tokens in turn) made of the given ones' documents."""
    documents = [prompt.text for prompt in prompts if prompt.kind in _KINDS and len(prompt.text) >= _DOCUMENT_CHARS]
    found = []
    for number, task in enumerate(_TASKS * 2):
        first = documents[number % len(documents)]
        others = [document for document in documents if document != first]
        order = [first, *random.Random(number).sample(others, len(others))]
        parts, size = [_INTRODUCTION], 0
        for place, document in enumerate(order, 1):
            if size >= _CHARS[number % len(_CHARS)]:
                break
            parts.append(f"--- Document {place} ---\n{document}\n")
            size += len(document)
        parts.append(f"--- End of the file ---\n\nTask: {task}")
        message = {"role": "user", "content": "\n".join(parts)}
        found.append(Prompt(f"long-{number + 1:02}", "long", (message,)))
    return tuple(found)
