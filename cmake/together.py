#!/usr/bin/env python3
"""Groups the sources of a target, writes a file for each group and prints what to compile, divided by semicolons."""

import argparse

import grouping


def main():
    parser = argparse.ArgumentParser(description="Groups the sources of a target.")
    parser.add_argument("--out", required=True, help="the folder for the groups' files")
    parser.add_argument("--most", type=int, default=8, help="files in a group")
    parser.add_argument("sources", nargs="+")
    options = parser.parse_args()
    # As even as can be: the last group of a target is waited for.
    num_groups = -(-len(options.sources) // options.most)
    most = -(-len(options.sources) // num_groups)
    alone, groups = [], []
    for source in map(grouping.Source, options.sources):
        if source.alone:
            alone.append(str(source.path))
            continue
        for group in groups:
            if len(group) < most and not any(other.fixed & source.fixed for other in group):
                group.append(source)
                break
        else:
            groups.append([source])
    files = [str(group[0].path) if len(group) == 1 else str(grouping.write_group(group, options.out, f"together_{number}"))
             for number, group in enumerate(groups)]
    print(";".join(alone + files), end="")


if __name__ == "__main__":
    main()
