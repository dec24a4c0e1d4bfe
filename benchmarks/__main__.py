# SPDX-License-Identifier: Apache-2.0
"""Command line: ``python -m benchmarks norms|pointwise|reductions|host|all``; see ``--help``."""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Sequence
from pathlib import Path

import torch

from benchmarks import host
from benchmarks.environment import describe
from benchmarks.harness import Case, run_case
from benchmarks.operations import SHAPES, SUITES, Shape
from benchmarks.peers import PEERS, Peer
from benchmarks.report import cases_to_data, format_failures, format_table, write_chart, write_json
from benchmarks.timing import L2Flush, measure_copy_gbps

RESULTS = Path(__file__).parent / "results"


def parse_shape(text: str) -> Shape:
    """``4096x1024`` as (4096, 1024)."""
    rows, _, columns = text.partition("x")
    try:
        return int(rows), int(columns)
    except ValueError:
        raise argparse.ArgumentTypeError(f"{text!r} is not ROWSxCOLUMNS") from None


def parse_arguments(argv: Sequence[str] | None = None) -> argparse.Namespace:
    """The command line as a namespace."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks", description=__doc__)
    parser.add_argument("suite", nargs="+", choices=[*SUITES, "host", "all"])
    parser.add_argument("--shapes", nargs="+", type=parse_shape, default=list(SHAPES), metavar="ROWSxCOLUMNS")
    parser.add_argument("--ops", nargs="+", help="only these operations of the suites")
    parser.add_argument("--peers", nargs="+", choices=[p.name for p in PEERS], help="contestants (default: all)")
    parser.add_argument("--dtype", default="bfloat16", choices=["bfloat16", "float16", "float32"])
    parser.add_argument("--quick", action="store_true", help="fewer samples: to see that everything runs")
    parser.add_argument("--out", type=Path, default=RESULTS, help="folder for the JSON files and charts")
    return parser.parse_args(argv)


def run_suite(suite: str, options: argparse.Namespace, peers: Sequence[Peer], flush: L2Flush) -> None:
    """Measure every operation of one suite at every shape; print the table and write the results."""
    begin = time.perf_counter()
    budget_s = 0.005 if options.quick else 0.03
    copy_rates = [measure_copy_gbps(flush)]
    cases: list[Case] = []
    for operation in SUITES[suite]:
        if options.ops and operation.name not in options.ops:
            continue
        for shape in options.shapes:
            cases.append(run_case(operation, shape, getattr(torch, options.dtype), peers, flush, budget_s))
            torch.cuda.empty_cache()
    if not cases:
        return
    copy_rates.append(measure_copy_gbps(flush))
    copy_gbps = sum(copy_rates) / len(copy_rates)
    environment = describe()
    names = [peer.name for peer in peers if any(case.entry(peer.name) for case in cases)]
    print(f"\n{suite}: GB/s of minimal traffic, {options.dtype}, {environment['gpu']}, copy {copy_gbps:.0f} GB/s")
    print(format_table(cases, names, copy_gbps))
    print(format_failures(cases))
    print(f"({time.perf_counter() - begin:.0f} s)", flush=True)
    payload: dict[str, object] = {"copy_gbps": copy_rates, "cases": cases_to_data(cases)}
    write_json(options.out / f"{suite}.json", suite, environment, payload)
    title = f"{suite}, {options.dtype}, {environment['gpu']}"
    write_chart(options.out / f"{suite}.png", title, cases, names, copy_gbps)


def main(argv: Sequence[str] | None = None) -> int:
    """Run the chosen suites; returns the exit status."""
    options = parse_arguments(argv)
    suites = [*SUITES, "host"] if "all" in options.suite else list(dict.fromkeys(options.suite))
    peers = [peer for peer in PEERS if not options.peers or peer.name in options.peers]
    measured = [suite for suite in suites if suite in SUITES]
    if measured and not torch.cuda.is_available():
        print(f"{', '.join(measured)}: these suites time an NVIDIA GPU, and torch sees none here", file=sys.stderr)
        return 2
    if measured:
        flush = L2Flush()
        with torch.no_grad():
            for suite in measured:
                run_suite(suite, options, peers, flush)
    if "host" in suites:
        with torch.no_grad():
            payload = host.run(options.quick)
        write_json(options.out / "host.json", "host", describe(), payload)
    return 0


if __name__ == "__main__":
    sys.exit(main())
