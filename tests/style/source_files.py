"""Which files belong to the repository, and what is code, comment and string in a C or C++ file."""
import os
import re
import subprocess


def repository_files(root):
    """Paths of the repository's files, relative to root and sorted.

    In a git checkout: what git tracks. In an unpacked archive: all files, but those of build folders.
    """
    if os.path.exists(os.path.join(root, ".git")):
        listed = subprocess.run(["git", "-c", f"safe.directory={os.path.realpath(root)}", "-C", root,
                                 "ls-files", "-z"], check=True, capture_output=True).stdout
        paths = os.fsdecode(listed).split("\0")
        return sorted(path for path in paths if path and os.path.exists(os.path.join(root, path)))
    return sorted(all_files(root))


def all_files(root):
    for folder, folders, names in os.walk(root):
        folders[:] = [name for name in folders if name not in (".git", "__pycache__")
                      and not os.path.exists(os.path.join(folder, name, "meson-private"))]
        for name in names:
            yield os.path.relpath(os.path.join(folder, name), root).replace(os.sep, "/")


_TOKEN = re.compile(r"""
    (?P<comment> //(?:\\\n|[^\n])* | /\*.*?(?:\*/|\Z) )
  | (?P<raw> R"(?P<mark>[^()\\\s]{0,16})\((?P<body>.*?)\)(?P=mark)" )
  | (?P<string> "(?:\\.|[^"\\\n])*" )
  | (?P<number> \b\d(?:'?[\w.])* )
  | (?P<character> '(?:\\.|[^'\\\n])*' )
""", re.VERBOSE | re.DOTALL)


class CodeFile:
    """A C or C++ file taken apart.

    includes:  (line, path between the quotes or angles, whether in quotes)
    strings:   (line, text of a string literal as written)
    code:      the text with comments and literals blanked, so that line numbers stay
    """

    def __init__(self, text):
        self.includes = []
        self.strings = []
        # What "..." means in an #include is a path; those lines are taken before literals are.
        without_comments = _TOKEN.sub(lambda m: blank(m[0]) if m["comment"] else m[0], text)
        for match in re.finditer(r'^[ \t]*#[ \t]*include(?:_next)?\b[ \t]*(.*)$',
                                 without_comments, re.MULTILINE):
            line = without_comments.count("\n", 0, match.start(1)) + 1
            named = re.match(r'"([^"\n]*)"|<([^>\n]*)>', match[1])
            path = (named[1] if named[1] is not None else named[2]) if named else match[1].strip()
            self.includes.append((line, path, named is None or named[1] is not None))
        self.code = _TOKEN.sub(self._take, text)

    def _take(self, match):
        if match["number"]:
            return match[0]
        literal = match["body"] if match["raw"] else match["string"] and match["string"][1:-1]
        if literal:
            self.strings.append((match.string.count("\n", 0, match.start()) + 1, literal))
        return blank(match[0])

    def words(self, pattern):
        """(line, text) of each match of the regular expression in code."""
        for match in re.finditer(pattern, self.code):
            yield self.code.count("\n", 0, match.start()) + 1, match[0]


def blank(text):
    return "".join(c if c == "\n" else " " for c in text)
