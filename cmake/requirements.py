#!/usr/bin/env python3
"""Lists which requirement (R) and bug (B) numbers are proved, from the XML each test leaves behind.

A test names its numbers with Proves("R5 B17") in its first line (tests/support/proves.h). A number is proved when at
least one instance of its tests ran and passed, and none failed. One whose every instance was skipped is not proved; it
is listed with the reason.
"""

import argparse
import dataclasses
import pathlib
import re
import sys
import xml.etree.ElementTree as ElementTree

# How many of each there are.
LAST = {"R": 91, "B": 39}
ALL_NUMBERS = [f"{kind}{i}" for kind, last in LAST.items() for i in range(1, last + 1)]
SOURCES = pathlib.Path(__file__).resolve().parents[1] / "tests"
# The names of the tests that ctest saw fail, one "NUMBER:NAME" a line; beside the XML where script/test ran everything.
FAILED = "failed"


@dataclasses.dataclass
class Instances:
    """The instances of the tests that name one number: a parameterised test has many."""
    passed: list = dataclasses.field(default_factory=list)
    failed: list = dataclasses.field(default_factory=list)
    skipped: list = dataclasses.field(default_factory=list)  # (name, reason)

    def is_proved(self):
        return bool(self.passed) and not self.failed

    def why_not(self):
        if self.failed:
            more = f" and {len(self.failed) - 1} more" if len(self.failed) > 1 else ""
            return f"failing: {self.failed[0]}{more}, with {len(self.passed)} passing"
        if self.skipped:
            reasons = list(dict.fromkeys(reason for _, reason in self.skipped))
            return f"skipped: {self.skipped[0][0]}: {'; '.join(reasons)}"
        return "no test"


def read_expected(path):
    """Numbers and ranges ("R1-R6") separated by blanks; # starts a comment."""
    numbers = []
    for line in pathlib.Path(path).read_text(encoding="utf-8").splitlines():
        for word in line.split("#")[0].split():
            match = re.fullmatch(r"([RB])(\d+)(?:-\1(\d+))?", word)
            if not match:
                raise ValueError(f"{path}: {word} is neither a number like R5 nor a range like R1-R6")
            first, last = int(match[2]), int(match[3] or match[2])
            numbers += [f"{match[1]}{i}" for i in range(first, last + 1)]
    unknown = [number for number in numbers if number not in ALL_NUMBERS]
    if unknown:
        raise ValueError(f"{path}: no such number: {' '.join(unknown)}")
    return numbers


def read_sources(folder):
    """"Suite.Name" -> numbers, as the tests' own text says: a test that ends before its first line recorded nothing."""
    named = {}
    pattern = re.compile(r'^TEST(?:_F|_P)?\(\s*(\w+),\s*(\w+)\)\s*\{\s*Proves\("([^"]*)"\)', re.MULTILINE)
    for path in sorted(pathlib.Path(folder).rglob("*.cc")):
        for suite, name, numbers in pattern.findall(path.read_text(encoding="utf-8")):
            named[f"{suite}.{name}"] = numbers.split()
    return named


def test_of(instance):
    """"Lanes/Rules.Window/cpu_neon" is an instance of "Rules.Window"."""
    suite, _, name = instance.partition(".")
    return f"{suite.split('/')[-1]}.{name.split('/')[0]}"


def numbers_of(case, named):
    """What a <testcase> says it proves: an attribute in older GoogleTest, a property in newer; else its source."""
    text = case.get("proves", "")
    for item in case.iter("property"):
        if item.get("name") == "proves":
            text += " " + item.get("value", "")
    return text.replace(",", " ").split() or named.get(test_of(name_of(case)), [])


def name_of(case):
    return f"{case.get('classname')}.{case.get('name')}"


def skip_reason(case):
    """GoogleTest puts the place in the source on the first line of the message."""
    lines = [line.strip() for skip in case.iter("skipped") for line in skip.get("message", "").splitlines()]
    return " ".join(line for line in lines[1:] if line) or "no reason given"


def add_case(case, instances):
    name = name_of(case)
    if case.find("failure") is not None or case.find("error") is not None:
        instances.failed.append(name)
    elif case.find("skipped") is not None or case.get("result", "completed") == "skipped":
        instances.skipped.append((name, skip_reason(case)))
    else:
        instances.passed.append(name)


def read_results(folder, named):
    """number -> Instances; and what is wrong: words that are no number, and programs that ended without a result."""
    tests = {number: Instances() for number in ALL_NUMBERS}
    wrong = []
    seen = set()
    files = sorted(pathlib.Path(folder).rglob("*.xml"))
    for path in files:
        for case in ElementTree.parse(path).getroot().iter("testcase"):
            if case.get("status") == "notrun":
                continue
            seen.add(name_of(case))
            for number in numbers_of(case, named):
                if number in tests:
                    add_case(case, tests[number])
                else:
                    wrong.append(f"{name_of(case)} proves {number}, which is no R or B number")
    # A test that crashed leaves no XML, and must not be overlooked beside instances that passed.
    failed = pathlib.Path(folder) / FAILED
    programs = {path.stem for path in files}
    for line in failed.read_text(encoding="utf-8").splitlines() if failed.exists() else []:
        name = line.partition(":")[2].strip()
        if name in seen or name in programs:
            continue
        for number in named.get(test_of(name), []):
            tests[number].failed.append(name)
        if "." not in name:  # several tests in one program
            wrong.append(f"{name} ended without a result: what its tests prove is not known")
    return tests, wrong


def print_list(tests):
    for number in ALL_NUMBERS:
        instances = tests[number]
        if instances.is_proved():
            more = f" and {len(instances.passed) - 1} more" if len(instances.passed) > 1 else ""
            print(f"{number:<4} {instances.passed[0]}{more}")
        else:
            why = instances.why_not()
            print(f"{number:<4} -" + ("" if why == "no test" else f" ({why})"))
    for kind, last in LAST.items():
        missing = [number for number in ALL_NUMBERS if number[0] == kind and not tests[number].is_proved()]
        failing = [number for number in missing if tests[number].failed]
        skipped = [number for number in missing if tests[number].skipped and not tests[number].failed]
        print(f"{kind}: {last - len(missing)} of {last} are proved; not yet: {' '.join(missing) or 'none'}")
        if failing:
            print(f"{kind}: with a failing test: {' '.join(failing)}")
        if skipped:
            print(f"{kind}: only skipped: {' '.join(skipped)}")


def main():
    parser = argparse.ArgumentParser(description="Lists which requirement numbers are proved by tests.")
    parser.add_argument("results", help="folder with the tests' XML results")
    parser.add_argument("--expect", metavar="FILE", help="fail unless every number in FILE is proved")
    parser.add_argument("--tests", action="store_true", help="name every passing test of every number")
    parser.add_argument("--sources", default=SOURCES, help="folder with the tests' sources")
    arguments = parser.parse_args()
    tests, failures = read_results(arguments.results, read_sources(arguments.sources))
    if not any(instances != Instances() for instances in tests.values()):
        print(f"no results in {arguments.results} name a number", file=sys.stderr)
        return 1
    if arguments.tests:
        for number in ALL_NUMBERS:
            for name in tests[number].passed:
                print(f"{number:<4} {name}")
    else:
        print_list(tests)
    if arguments.expect:
        try:
            expected = read_expected(arguments.expect)
        except (OSError, ValueError) as error:
            print(error, file=sys.stderr)
            return 2
        missing = [number for number in expected if not tests[number].is_proved()]
        print(f"expected: {len(expected) - len(missing)} of {len(expected)} are proved")
        failures += [f"expected but not proved: {number}: {tests[number].why_not()}" for number in missing]
    for failure in failures:
        print(failure, file=sys.stderr)
    return 1 if failures else 0


if __name__ == "__main__":
    sys.exit(main())
