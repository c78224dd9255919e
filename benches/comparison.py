"""The launchers that a benchmark compares, its command line, and its table."""

import argparse
import os
import pathlib
import sys

from parts import Contestant, setting

COLUMNS = ["metric", "aim", "ours", "reference", "ratio"]


def parser(description):
    """The options that these benchmarks have in common."""
    options = argparse.ArgumentParser(description=description, formatter_class=argparse.RawDescriptionHelpFormatter)
    options.add_argument("--programs", type=os.path.abspath, required=True, help="directory of our programs")
    options.add_argument("--launchers", type=lambda text: text.split(","), default=["ours", "reference"], help="ours, reference")
    options.add_argument("--markdown", help="also write the table to this file")
    return options


def contestants(programs):
    reference = pathlib.Path(setting("NODEPOOL_TEST_REFERENCE")).parent
    return {"ours": Contestant("ours", programs, True), "reference": Contestant("reference", reference, True)}


def measure(arguments, parts):
    """The result of each part by the name of the launcher. A part that cannot be measured does not end the program."""
    programs = contestants(arguments.programs)
    measured = {part: {} for part in parts}
    for part in parts:
        for name in arguments.launchers:
            try:
                measured[part][name] = part(arguments, programs[name])
            except (RuntimeError, OSError) as error:
                print(f"{part.__name__}, {name}: {error!r}", file=sys.stderr, flush=True)
                continue
            print(part.__name__, name, measured[part][name], file=sys.stderr, flush=True)
    return measured


def column(results, index):
    """One of several values of each launcher."""
    return {name: found[index] for name, found in results.items()}


def cells(metric, aim, values, unit, better):
    ours, reference = values.get("ours"), values.get("reference")
    shown = [f"{one:.3g} {unit}" if one is not None else "–" for one in (ours, reference)]
    ratio = "–"
    if ours and reference:
        ratio = f"{(ours / reference if better == 'more' else reference / ours):.3g} ×"
    return [metric, aim, *shown, ratio]


def line(row):
    return "| " + " | ".join(f"{cell:,}" if isinstance(cell, int) else cell for cell in row) + " |"


def head(columns):
    return [line(columns), "|" + "---|" * len(columns)]


def report(arguments, rows):
    table = head(COLUMNS) + [line(cells(*row)) for row in rows]
    print("\n".join(table) + "\n")
    save(arguments, table)


def save(arguments, table):
    if arguments.markdown:
        pathlib.Path(arguments.markdown).write_text("\n".join(table) + "\n")
