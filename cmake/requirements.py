#!/usr/bin/env python3
"""Lists which requirement (R) and bug (B) numbers have a passing test, from the XML each test leaves behind.

A test names its numbers with Proves("R5 B17") (tests/support/proves.h). Only a test that ran and passed counts.
"""

import argparse
import pathlib
import re
import sys
import xml.etree.ElementTree as ElementTree

# How many of each there are.
LAST = {"R": 91, "B": 39}
ALL_NUMBERS = [f"{kind}{i}" for kind, last in LAST.items() for i in range(1, last + 1)]


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


def proved_by(case):
    """What a <testcase> says it proves: an attribute in older GoogleTest, a property in newer."""
    text = case.get("proves", "")
    for item in case.iter("property"):
        if item.get("name") == "proves":
            text += " " + item.get("value", "")
    return text.replace(",", " ").split()


def passed(case):
    is_run = case.get("status") == "run" and case.get("result", "completed") == "completed"
    return is_run and case.find("failure") is None and case.find("error") is None and case.find("skipped") is None


def read_results(folder):
    """number -> (names of passing tests, names of others); and words that are no number, with their test."""
    tests = {number: ([], []) for number in ALL_NUMBERS}
    unknown = []
    for path in sorted(pathlib.Path(folder).rglob("*.xml")):
        for case in ElementTree.parse(path).getroot().iter("testcase"):
            if case.get("status") == "notrun":
                continue
            name = f"{case.get('classname')}.{case.get('name')}"
            for number in proved_by(case):
                if number in tests:
                    tests[number][0 if passed(case) else 1].append(name)
                else:
                    unknown.append(f"{name} proves {number}, which is no R or B number")
    return tests, unknown


def print_list(tests):
    for number in ALL_NUMBERS:
        good, other = tests[number]
        if good:
            print(f"{number:<4} {good[0]}" + (f" and {len(good) - 1} more" if len(good) > 1 else ""))
        else:
            print(f"{number:<4} -" + (f" (not passing: {' '.join(other)})" if other else ""))
    for kind, last in LAST.items():
        missing = [number for number in ALL_NUMBERS if number[0] == kind and not tests[number][0]]
        print(f"{kind}: {last - len(missing)} of {last} have a passing test; not yet: {' '.join(missing) or 'none'}")


def main():
    parser = argparse.ArgumentParser(description="Lists which requirement numbers have a passing test.")
    parser.add_argument("results", help="folder with the tests' XML results")
    parser.add_argument("--expect", metavar="FILE", help="fail unless every number in FILE has a passing test")
    parser.add_argument("--tests", action="store_true", help="name every test of every number")
    arguments = parser.parse_args()
    tests, unknown = read_results(arguments.results)
    if not any(good or other for good, other in tests.values()):
        print(f"no results in {arguments.results} name a number", file=sys.stderr)
        return 1
    if arguments.tests:
        for number in ALL_NUMBERS:
            for name in tests[number][0]:
                print(f"{number:<4} {name}")
    else:
        print_list(tests)
    failures = unknown
    if arguments.expect:
        try:
            expected = read_expected(arguments.expect)
        except (OSError, ValueError) as error:
            print(error, file=sys.stderr)
            return 2
        missing = [number for number in expected if not tests[number][0]]
        print(f"expected: {len(expected) - len(missing)} of {len(expected)} have a passing test")
        if missing:
            failures.append(f"expected but without a passing test: {' '.join(missing)}")
    for failure in failures:
        print(failure, file=sys.stderr)
    return 1 if failures else 0


if __name__ == "__main__":
    sys.exit(main())
