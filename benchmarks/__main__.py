# SPDX-License-Identifier: Apache-2.0
"""Command line of the benchmarks: one or several suites, or all of them.

norms, pointwise, reductions, norms_backward, batchnorm: GPU time, fusedsl beside its peers;
sweep: GPU time of norms over row lengths, beside the copy rate;
host: what a call costs the host.
"""

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
from benchmarks.operations import Shape
from benchmarks.peers import PEERS, Peer
from benchmarks.report import cases_to_data, format_failures, format_table, write_chart, write_json
from benchmarks.suites import SUITES
from benchmarks.sweep import run as sweep
from benchmarks.timing import Deadline, L2Flush, measure_copy_gbps

RESULTS = Path(__file__).parent / "results"

#: Seconds that writing the results and the last copy rate may take.
RESERVE_S = 5.0


def parse_shape(text: str) -> Shape:
    """``4096x1024`` as (4096, 1024); any number of extents."""
    try:
        shape = tuple(int(extent) for extent in text.split("x"))
    except ValueError:
        shape = ()
    if len(shape) < 2:
        raise argparse.ArgumentTypeError(f"{text!r} is not extents with x between them, as in 4096x1024")
    return shape


def parse_arguments(argv: Sequence[str] | None = None) -> argparse.Namespace:
    """The command line as a namespace."""
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("suite", nargs="+", choices=[*SUITES, "sweep", "host", "all"])
    parser.add_argument(
        "--shapes", nargs="+", type=parse_shape, metavar="ROWSxCOLUMNS", help="of the suites with as many extents"
    )
    parser.add_argument("--ops", nargs="+", help="only these operations of the suites")
    parser.add_argument("--peers", nargs="+", choices=[p.name for p in PEERS], help="contestants (default: all)")
    parser.add_argument("--dtype", default="bfloat16", choices=["bfloat16", "float16", "float32"])
    parser.add_argument("--quick", action="store_true", help="fewer samples: to see that everything runs")
    parser.add_argument("--out", type=Path, default=RESULTS, help="folder for the JSON files and charts")
    parser.add_argument(
        "--budget",
        type=float,
        metavar="SECONDS",
        help="start no measurement after this time; results are still written",
    )
    return parser.parse_args(argv)


def shapes_of(suite: str, asked: Sequence[Shape] | None) -> list[Shape]:
    """The shapes of a suite: those asked for that have as many extents as its own, or its own."""
    own = SUITES[suite].shapes
    return list(own) if asked is None else [shape for shape in asked if len(shape) == len(own[0])]


def run_suite(
    suite: str, options: argparse.Namespace, peers: Sequence[Peer], flush: L2Flush, deadline: Deadline
) -> None:
    """Measure every operation of one suite at every shape; print the table and write the results."""
    begin = time.perf_counter()
    budget_s = 0.005 if options.quick else 0.03
    copy_rates = [measure_copy_gbps(flush)]
    cases: list[Case] = []
    operations = [one for one in SUITES[suite].operations if not options.ops or one.name in options.ops]
    planned = [(operation, shape) for operation in operations for shape in shapes_of(suite, options.shapes)]
    slowest_s = 0.0
    for operation, shape in planned:
        if deadline.passed(RESERVE_S + slowest_s):
            break
        case_begin = time.perf_counter()
        cases.append(run_case(operation, shape, getattr(torch, options.dtype), peers, flush, budget_s))
        torch.cuda.empty_cache()
        slowest_s = max(slowest_s, time.perf_counter() - case_begin)
    if not cases:
        print(f"\n{suite}: nothing measured")
        return
    copy_rates.append(measure_copy_gbps(flush))
    copy_gbps = sum(copy_rates) / len(copy_rates)
    environment = describe()
    names = [peer.name for peer in peers if any(case.entry(peer.name) for case in cases)]
    print(f"\n{suite}: GB/s of minimal traffic, {options.dtype}, {environment['gpu']}, copy {copy_gbps:.0f} GB/s")
    print(format_table(cases, names, copy_gbps))
    print(format_failures(cases))
    left = len(planned) - len(cases)
    print(f"({time.perf_counter() - begin:.0f} s" + (f"; {left} cases left out, no time)" if left else ")"), flush=True)
    payload: dict[str, object] = {"copy_gbps": copy_rates, "left_out": left, "cases": cases_to_data(cases)}
    write_json(options.out / f"{suite}.json", suite, environment, payload)
    title = f"{suite}, {options.dtype}, {environment['gpu']}"
    write_chart(options.out / f"{suite}.png", title, cases, names, copy_gbps)


def main(argv: Sequence[str] | None = None) -> int:
    """Run the chosen suites; returns the exit status."""
    options = parse_arguments(argv)
    deadline = Deadline(options.budget)
    suites = [*SUITES, "sweep", "host"] if "all" in options.suite else list(dict.fromkeys(options.suite))
    peers = [peer for peer in PEERS if not options.peers or peer.name in options.peers]
    measured = [suite for suite in suites if suite != "host"]
    if measured and not torch.cuda.is_available():
        print(f"{', '.join(measured)}: these suites time an NVIDIA GPU, and torch sees none here", file=sys.stderr)
        return 2
    with torch.no_grad():
        for suite in suites:
            if suite in SUITES:
                run_suite(suite, options, peers, L2Flush(), deadline)
            elif suite == "sweep":
                sweep.run(options.out, options.quick, deadline)
            elif not deadline.passed(RESERVE_S):
                write_json(options.out / "host.json", "host", describe(), host.run(options.quick))
    return 0


if __name__ == "__main__":
    sys.exit(main())
