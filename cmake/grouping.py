"""Files that one run of a compiler reads together.

Most of what compiling a file costs is reading headers and making what their templates stand for, which files of a group
share. A group is one file: first every header of its members, then the members, each with a number on the names that it
has for itself. Used by cmake/together.py to compile and by cmake/names.py to check.
"""

import pathlib
import re

# A name that can be given a number without touching others': the library's own style, unlike that of the standard's.
OWN_STYLE = re.compile(r"k?[A-Z][a-z]\w*$")
# What the file may see differently after another one: switches of its headers, and code that is read once per target.
ALONE = re.compile(r'#\s*include\s*[<"]hwy/|^#\s*define(?!.*TESSERA_\w+\()', re.MULTILINE)
NO_NAMES = {"const", "constexpr", "override", "noexcept", "else", "inline", "static", "operator", "static_assert"}


class Source:
    """A file's text, and what of it matters to a group."""

    def __init__(self, path):
        self.path = pathlib.Path(path)
        text = self.path.read_text(encoding="utf-8")
        own, public = names_of(text)
        self.alone = ALONE.search(text) is not None
        self.headers = headers_of(text)
        # A name that is also somebody's member, a test's or for all to call has to stay.
        self.renamed = sorted(name for name in own - public if OWN_STYLE.match(name)
                              and not re.search(rf"(?:::|\.|->|^TEST\w*\(|_SUITE_P\(\w+, ){name}\b", text, re.MULTILINE))
        self.fixed = own - set(self.renamed)


def headers_of(text):
    """The lines that include a header whatever is defined."""
    lines, depth = [], 0
    for line in text.splitlines():
        if re.match(r"#\s*if", line):
            depth += 1
        elif re.match(r"#\s*endif", line):
            depth -= 1
        elif depth == 0 and re.match(r'#include (<[\w/.+]+>|"[\w/.]+\.h")', line):
            lines.append(line)
    return lines


def names_of(text):
    """Names at the margin of unnamed namespaces, and names there beside them. One too many only makes a group smaller."""
    own, public, inside = set(), set(), False
    for line in text.splitlines():
        line = re.sub(r"^template <[^()]*?>\s*(?=$|\w)", "", line)
        if line == "namespace {":
            inside = True
        elif line.startswith("}  // namespace"):
            inside = False
        elif re.match(r"(?!using\b)\w", line):  # an alias may be said twice
            kind = re.match(r"(?:struct|class|enum|union)\s+(?:class\s+)?(\w+)", line)
            name = kind or re.search(r"(?<![\w:])(\w+)\s*[({=;\[]", line)
            (own if inside else public).update([name[1]] if name else [])
    return {name for name in own - NO_NAMES if not name.isupper()}, public


def write_group(sources, folder, name):
    """Writes FOLDER/NAME.cc and what it includes; a file that would not change stays as it is."""
    folder = pathlib.Path(folder)
    headers = dict.fromkeys(line for source in sources for line in source.headers)
    # In files of their own: clang-tidy looks at the macros of the main file.
    parts = [(f"{name}_headers.h", "".join(f"{line}\n" for line in headers))]
    lines = [f'#include "{name}_headers.h"\n']
    for number, source in enumerate(sources):
        before, after = f"{name}_before_{number}.h", f"{name}_after_{number}.h"
        parts.append((before, "".join(f"#define {word} {word}{number}\n" for word in source.renamed)))
        parts.append((after, "".join(f"#undef {word}\n" for word in source.renamed)))
        lines += [f'#include "{part}"\n' for part in (before, source.path, after)]
    parts.append((f"{name}.cc", "".join(lines)))
    folder.mkdir(parents=True, exist_ok=True)
    for part, text in parts:
        path = folder / part
        if not path.exists() or path.read_text(encoding="utf-8") != text:
            path.write_text(text, encoding="utf-8")
    return folder / f"{name}.cc"
