"""Suggestions for misspelled names."""

from __future__ import annotations

import difflib
from collections.abc import Iterable


def did_you_mean(word: str, known: Iterable[str]) -> str:
    """Return a suggestion to append to an error message, or an empty string if no known name is close.

    >>> did_you_mean("vad-kl", ["vat", "vadd-kl"])
    ' (did you mean vadd-kl?)'
    """
    known = list(known)
    longer = [name for name in known if word and name.startswith(word)]  # a name that begins with the word is preferred
    found = longer or difflib.get_close_matches(word, known, n=1)
    return f" (did you mean {found[0]}?)" if found else ""


def nearest_names(word: str, known: Iterable[str]) -> str:
    """Return up to three suggestions for a dotted name: those that end or begin with it, then those spelled like it.

    >>> nearest_names("embedings", ["bert.embeddings", "bert.encoder", "head"])
    ' (did you mean bert.embeddings?)'
    """
    known = list(dict.fromkeys(known))
    whole = [name for name in known if word and (name.endswith(f".{word}") or name.startswith(word))]
    found = list(dict.fromkeys([*whole, *difflib.get_close_matches(word, known, n=3, cutoff=0.75)]))[:3]
    return f" (did you mean {' or '.join(found)}?)" if found else ""
