#!/usr/bin/env python3
"""Writes docs/python_reference.md from the docstrings of python/tessera; --check says whether it is what they give.

  python3 python/reference.py [--check]

Sources are parsed, not imported: neither the package nor what it needs has to be there."""

import ast
import pathlib
import sys
import textwrap

ROOT = pathlib.Path(__file__).resolve().parents[1]
PAGE = ROOT / "docs" / "python_reference.md"
HEAD = """# Python reference

Made from the docstrings of `python/tessera` by `python3 python/reference.py`; a test keeps it so, and runs their examples. What the package is for
and how its parts go together: [python.md](python.md).
"""


def parse(name):
    return ast.parse((ROOT / "python" / "tessera" / f"{name}.py").read_text(encoding="utf-8"))


def exported():
    """(title, module docstring, definitions) of the package and of the modules that users import by name."""
    package = parse("__init__")
    names = next(ast.literal_eval(node.value) for node in package.body
                 if isinstance(node, ast.Assign) and node.targets[0].id == "__all__")  # fmt: skip
    home = {alias.name: node.module for node in package.body if isinstance(node, ast.ImportFrom) and node.level == 1 and node.module
            for alias in node.names}  # fmt: skip
    order = [name for name in home if name in names]  # as the package lists them
    yield "tessera", None, [find(parse(home[name]), name) for name in order]
    for module in ("mask", "torch", "jax"):
        tree = parse(module)
        public = [node for node in tree.body if isinstance(node, (ast.ClassDef, ast.FunctionDef)) and not node.name.startswith("_")]
        if module == "torch":  # which imports these, for its users
            public += [find(parse("_flex"), name) for name in ("from_flex", "to_flex")]
        yield f"tessera.{module}", ast.get_docstring(tree), [node for node in public if ast.get_docstring(node)]


def find(tree, name):
    return next(node for node in tree.body if getattr(node, "name", None) == name)


def is_property(node):
    return any(getattr(d, "id", getattr(d, "attr", "")) in ("property", "cached_property") for d in node.decorator_list)


def signature(node, of_class):
    if is_property(node):
        return f"{node.name}: {ast.unparse(node.returns)}" if node.returns else node.name
    arguments = ast.unparse(node.args)
    if of_class:
        arguments = arguments.removeprefix("self").removeprefix("cls").removeprefix(", ")
    result = f" -> {ast.unparse(node.returns)}" if node.returns and node.name != "__init__" else ""
    return f"{node.name}({arguments}){result}"


def text_of(docstring):
    """A docstring with its examples as blocks of a session."""
    out, is_example = [], False
    for line in docstring.splitlines():
        if line.lstrip().startswith(">>>") and not is_example:
            is_example = True
            out.append("```pycon")
        elif not line.strip() and is_example:
            is_example = False
            out.append("```")
        out.append(line)
    if is_example:
        out.append("```")
    return "\n".join(out)


def entry(node, level, prefix="", of_class=False):
    name = node.name
    lines = [f"{'#' * level} `{prefix}{name}`", ""]
    if isinstance(node, ast.ClassDef):
        init = next((n for n in node.body if isinstance(n, ast.FunctionDef) and n.name == "__init__"), None)
        shown = signature(init, True).replace("__init__", name, 1) if init else None
        fields = [n for n in node.body if isinstance(n, ast.AnnAssign)]
        if fields and not init:
            shown = f"{name}({', '.join(ast.unparse(n) for n in fields)})"
    else:
        shown = signature(node, of_class)
    if shown:
        lines += ["```text", *textwrap.wrap(shown, 118, subsequent_indent="    ", break_long_words=False), "```", ""]
    docstring = ast.get_docstring(node)
    if docstring:
        lines += [text_of(docstring), ""]
    if isinstance(node, ast.ClassDef):
        for member in node.body:
            if isinstance(member, ast.FunctionDef) and not member.name.startswith("_") and ast.get_docstring(member):
                lines += entry(member, level + 1, f"{name}.", True)
    return lines


def page():
    lines = [HEAD]
    for title, docstring, nodes in exported():
        lines += [f"## {title}", ""]
        if docstring:
            lines += [text_of(docstring), ""]
        for node in nodes:
            lines += entry(node, 3)
    return "\n".join(lines).rstrip() + "\n"


def main():
    wanted = page()
    if "--check" in sys.argv[1:]:
        if not PAGE.exists() or PAGE.read_text(encoding="utf-8") != wanted:
            sys.exit(f"{PAGE.relative_to(ROOT)} is not what the docstrings give: python3 python/reference.py writes it")
        return
    PAGE.write_text(wanted, encoding="utf-8")


if __name__ == "__main__":
    main()
