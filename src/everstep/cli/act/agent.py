"""Join a running job with this host: it takes a place that is free, or waits as a standby, and ends with the run.

everstep agent --join head:29400        the address that the run was started with (--rdzv-endpoint)
everstep agent --join head:29400,h1     ... and where the run may go on since the first host was lost

The join token is found as by `everstep run`: EVERSTEP_JOIN_TOKEN, EVERSTEP_JOIN_TOKEN_FILE, or a shared directory.
"""

import argparse

REACH_LIMIT_S = 8.0
SIGNALS = ("SIGTERM", "SIGINT", "SIGHUP", "SIGQUIT")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--join", required=True, metavar="HOST:PORT[,HOST...]", help="the run's endpoint")
    parser.add_argument("--node-rank", type=int, metavar="K", help="slot that this host should get; default: any")


def run(given: argparse.Namespace) -> int:
    import os

    from everstep.launcher.arguments.hosts import Hosts, check_ports, parse_endpoints
    from everstep.launcher.joining.joining import join
    from everstep.launcher.reach import token
    from everstep.launcher.run import signal_numbers, torch_version
    from everstep.linux import heap

    heap.keep_little()
    (host, port), *others = places = parse_endpoints(given.join)
    check_ports(places, "--join")
    hosts = Hosts(
        num=0,
        host=host,
        port=port,
        others=tuple(others),
        node_rank=given.node_rank,
        reach_limit_s=REACH_LIMIT_S,  # the job runs already
        said_by="--join",
    )
    return join(None, hosts, token.given(os.environ), torch_version(), "", signal_numbers(SIGNALS))
