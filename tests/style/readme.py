#!/usr/bin/env python3
"""Holds what the documentation says against the code.

    readme.py ROOT

include/ENVIRONMENT.md lists every environment variable that the code reads, include/ERRORS.md every result code, and
nothing else; README.md's C code stands word for word in an example; every file that a Markdown link, or a path in
backquotes, names is there, and every heading that a link goes to; names that begin with moeccl are in a public
header, or in a tool, whose JSON may have them; test cases of tests/README.md's promises are in tests/; ratios of README.md's "Beside what you use" are in perf/RESULTS.md.

How pages and the comments of public headers are written: no sentence, and no cell of a table, has more than 30 words or
begins with "Of", "What", "Where" or "The same"; questions may. Code in backquotes is one word, in a table
of calls too. A page has no marks of a merge, and no line like OUTPUT_OF_THIS that stands for text to come. A page that uses
a word of README.md's list "Words" has a link to the list no later than where it first does so.
"""
import os
import posixpath
import re
import sys

from source_files import CodeFile, repository_files

READERS = re.compile(r"(src|perf|examples)/.*\.(c|cc|h)")
LONGEST_SENTENCE = 30
BEGINNINGS = re.compile(r"(Of|What|Where|The\s+same)\s")
COMMENT = re.compile(r"/\*(.*?)\*/|((?:^ *//[^\n]*\n)+)", re.MULTILINE | re.DOTALL)
WORDS = re.compile(r"(?<!NCCL )\b(?:(?:N_)?(?:MP|EP|ESP)|SAA|grids?|schedules?|profiles?|dispatch|combine|dedup|dropless|capacit(?:y|ies)|"
                   r"routes?|token routing)\b", re.IGNORECASE)
ROOTS = ("include/", "algorithms/", "kernels/", "src/", "perf/", "tests/", "examples/", ".ci/")


def read(root, path):
    with open(os.path.join(root, path), encoding="utf-8") as file:
        return file.read()


def variables_read(root, files):
    """Variables named by a whole string literal in code that calls for the environment."""
    found = set()
    for path in files:
        if READERS.fullmatch(path):
            found |= {text for _, text in CodeFile(read(root, path)).strings
                      if re.fullmatch(r"MOECCL_(?!\w*_INITIALIZER$)[A-Z_]+", text)}
    return found


def table_names(text, heading, pattern):
    """Names in backquotes in the first column of the table below a heading."""
    section = text.partition(f"\n## {heading}\n")[2].partition("\n## ")[0]
    cells = re.findall(r"^\| *(`[^|]*) *\|", section, re.MULTILINE)
    return set(re.findall(rf"`({pattern})`", " ".join(cells)))


def result_codes(root):
    text = read(root, "include/moeccl/moeccl.h")
    names = re.search(r"typedef enum \{([^}]*)\} moecclResult_t;", text)[1]
    return set(re.findall(r"\b(moeccl\w+) = ", names)) - {"moecclNumResults"}


def compare(page, what, documented, real):
    for name in sorted(real - documented):
        yield f"{page}: {what} {name} is missing"
    for name in sorted(documented - real):
        yield f"{page}: there is no {what} {name}"


def check_code(root, files):
    examples = [read(root, path) for path in files if re.fullmatch(r"examples/.*\.c", path)]
    blocks = re.findall(r"^```c\n(.*?)^```$", read(root, "README.md"), re.MULTILINE | re.DOTALL)
    if not blocks:
        yield "README.md: shows no C code"
    for block in blocks:
        if not any(block in example for example in examples):
            yield f"README.md: no example has this code:\n{block}"


def check_programs(root, path):
    """A page's Python program is the file that is linked beside its name, or else the one of that name beside the page, if there is one."""
    for name, link, block in re.findall(r"^`(\w+\.py)`(?: \(\[[^]]*\]\(([^)]*)\)\))?[^\n]*:\n\n```python\n(.*?)^```$", read(root, path),
                                        re.MULTILINE | re.DOTALL):
        file = posixpath.normpath(posixpath.join(posixpath.dirname(path), link or name))
        if os.path.exists(os.path.join(root, file)) and read(root, file) != block:
            yield f"{path}: its {name} is not {file}"


def comments(text):
    """The comments of a C or C++ header as paragraphs; so is each cell of a table in them."""
    found = "\n\n".join(block or lines for block, lines in COMMENT.findall(text))
    lines = (re.sub(r"^ *(?:\*|//)? ?", "", line).rstrip() for line in found.splitlines())
    return "\n".join("\n" + re.sub(r" {2,}", "\n\n", line) if re.search(r"\S {2,}\S", line) else line.strip()
                     for line in lines)


def check_sentences(path, text):
    for sentence in re.split(r"(?<=[.!?])\s+|\||\n\n|\n *(?:\d+\.|[-*]) ", re.sub(r"`[^`\n]+`", "`code`", text)):
        words = sentence.split()
        if len(words) > LONGEST_SENTENCE:
            yield f"{path}: a sentence has {len(words)} words: {' '.join(words[:8])} ..."
        if BEGINNINGS.match(sentence.strip()) and words[-1][-1] != "?":
            yield f"{path}: a sentence hides what it is about: {' '.join(words[:8])} ..."


def check_finished(path, text):
    for line in re.findall(r"^(?:[<=>|]{7}(?: .*)?|[A-Z]+(?:_[A-Z0-9]+)+)$", text, re.MULTILINE):
        yield f"{path}: this line is left from its making: {line}"


def check_words(path, text):
    for paragraph in re.split(r"\n\s*\n", re.sub(r"`[^`\n]*`", "", text)):
        if "#words)" in paragraph:
            return
        if word := WORDS.search(re.sub(r"\]\([^)\s]*\)", "]", paragraph)):
            yield f"{path}: {word[0]} stands before a link to README.md#words"
            return


def check_figures(root):
    """README.md's table of others has ratios of perf/RESULTS.md alone."""
    table = read(root, "README.md").partition("\n## Beside what you use\n")[2].partition("\n## ")[0]
    results = read(root, "perf/RESULTS.md") if table else ""
    for number in re.findall(r"(?<![\d.])\d+\.\d+(?![\d.])", table):
        if not re.search(rf"(?<![\d.]){re.escape(number)}(?!\d|\.\d)", results):
            yield f"README.md: perf/RESULTS.md has no {number}"


def check_paths(root, path):
    text = read(root, path)
    named = [(posixpath.normpath(posixpath.join(posixpath.dirname(path), link)), link)
             for link in re.findall(r"\]\(([^)#\s]+)", text) if not re.match(r"\w+:", link)]
    named += [(quoted.rstrip("/"), quoted) for quoted in re.findall(r"`([\w./-]+)`", text)
              if quoted.startswith(ROOTS)]
    for target, written in named:
        if not os.path.exists(os.path.join(root, target)):
            yield f"{path}: {written} does not exist"


def anchors(text):
    """What links can go to: the headings, as GitHub names them."""
    return {re.sub(r"[^\w -]", "", heading.lower()).replace(" ", "-")
            for heading in re.findall(r"^#+ +(.*)$", re.sub(r"```.*?```", "", text, flags=re.DOTALL), re.MULTILINE)}


def check_anchors(root, path):
    for link, anchor in re.findall(r"\]\((?!\w+:)([^)#\s]*)#([^)\s]+)\)", read(root, path)):
        page = posixpath.normpath(posixpath.join(posixpath.dirname(path), link)) if link else path
        if page.endswith(".md") and os.path.exists(os.path.join(root, page)) and anchor not in anchors(read(root, page)):
            yield f"{path}: {page} has no heading #{anchor}"


def check_names(root, path, code):
    for name in sorted(set(re.findall(r"`(moeccl[A-Z]\w*)`", read(root, path)))):
        if not re.search(rf"\b{name}\b", code):
            yield f"{path}: no public header has {name}"


def check_cases(path, text, code):
    """Test cases in the table of promises, with their suite (`Death.IsToldByNameAndSoon`, `Death.*`) or without it."""
    cases = set(re.findall(r"^\w*TEST\w*\(\s*(\w+),\s*(\w+)\)", code, re.MULTILINE))
    for suite, case, star in re.findall(r"`(?:([A-Z][A-Za-z]+)\.)?((?:[A-Z][a-z]*){2,})?(\*?)`", text.partition("\n| promise | test |\n")[2].partition("\n\n")[0]):
        if (suite or case) and not any(suite in ("", its) and (name.startswith(case) if star else name == case) for its, name in cases):
            yield f"{path}: no test has {suite and suite + '.'}{case}{star}"


def problems(root):
    files = repository_files(root)
    page = "include/ENVIRONMENT.md"
    yield from compare(page, "variable", table_names(read(root, page), "Environment", r"MOECCL_\w+"),
                       variables_read(root, files))
    page = "include/ERRORS.md"
    yield from compare(page, "result", table_names(read(root, page), "Errors", r"moeccl\w+"), result_codes(root))
    yield from check_code(root, files)
    yield from check_figures(root)
    code = "".join(read(root, path) for path in files if re.fullmatch(r"include/moeccl/.*|perf/.*\.(cc|h)", path))
    tests = "".join(read(root, path) for path in files if re.fullmatch(r"tests/.*\.(cc|h)", path))
    for path in files:
        if re.fullmatch(r"include/moeccl/.*", path):
            yield from check_sentences(path, comments(read(root, path)))
        if path == "tests/README.md":
            yield from check_cases(path, read(root, path), tests)
        if path.endswith(".md"):
            yield from check_finished(path, read(root, path))
            yield from check_paths(root, path)
            yield from check_anchors(root, path)
            yield from check_programs(root, path)
            prose = re.sub(r"```.*?```|^ {4}[^\n]*$|^#[^\n]*$", "", read(root, path), flags=re.MULTILINE | re.DOTALL)
            yield from check_sentences(path, prose)
            if path != "CHANGELOG.md":  # which names what is gone, too, for those who know it
                yield from check_names(root, path, code)
                yield from check_words(path, prose)


def main():
    if len(sys.argv) != 2:
        raise SystemExit(__doc__)
    found = list(problems(sys.argv[1]))
    print("\n".join(found) or "what the documentation names is there")
    sys.exit(1 if found else 0)


if __name__ == "__main__":
    main()
