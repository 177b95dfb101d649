"""Test hosts by hand: python -m tests.testhost create NAME, boot NAME, ssh NAME ..., destroy NAME."""

import argparse
import os
import shlex
import sys
import time

from tests.testhost.errors import HostError, Unavailable
from tests.testhost.host import TestHost, sweep
from tests.testhost.options import HostOptions
from tests.testhost.state import guarded, noted_pid

VERBS = {
    "boot": TestHost.boot,
    "stop": TestHost.stop,
    "reboot": TestHost.reboot,
    "crash": TestHost.crash,
    "netdown": TestHost.netdown,
    "netup": TestHost.netup,
    "drop": TestHost.drop,
    "undrop": TestHost.undrop,
    "freeze": TestHost.freeze,
    "thaw": TestHost.thaw,
    "destroy": TestHost.destroy,
}


def parser() -> argparse.ArgumentParser:
    """Return the command line's grammar."""
    top = argparse.ArgumentParser(prog="python -m tests.testhost", description=__doc__)
    commands = top.add_subparsers(dest="command", required=True)
    create = commands.add_parser("create", help="make a host that stays until destroyed")
    create.add_argument("name")
    create.add_argument("--behind", metavar="HOST", help="reachable through this host only")
    create.add_argument("--operator-sudoers", metavar="TEXT", help="what operator may do by sudo")
    create.add_argument("--user-instance", action="store_true", help="a lingering systemd --user for operator")
    for verb, method in VERBS.items():
        words = (method.__doc__ or "").splitlines()[0]
        commands.add_parser(verb, help=words[0].lower() + words[1:].rstrip(".")).add_argument("name")
    for verb, words in (("ssh", "log in, or run a command, over ssh"), ("exec", "run a command without ssh")):
        way = commands.add_parser(verb, help=words)
        way.add_argument("name")
        way.add_argument("argv", nargs=argparse.REMAINDER)
    commands.add_parser("info", help="what a client needs to know").add_argument("name")
    commands.add_parser("list", help="all hosts of this machine")
    commands.add_parser("sweep", help="destroy hosts whose test run is dead")
    return top


def main(argv: list[str]) -> int:
    """Carry out one command; the exit status is 1 with one sentence on an error."""
    asked = parser().parse_args(argv)
    try:
        return _carry_out(asked)
    except (HostError, Unavailable) as error:
        print(error, file=sys.stderr)
        return 1


def _carry_out(asked: argparse.Namespace) -> int:
    if asked.command == "list":
        with guarded() as hosts:
            for disk in sorted(hosts.iterdir()):
                print(f"{disk.name}\t{'on' if noted_pid(disk / 'supervisor') else 'off'}")
        return 0
    if asked.command == "sweep":
        print("\n".join(sweep()))
        return 0
    if asked.command == "create":
        behind = TestHost.open(asked.behind) if asked.behind else None
        options = HostOptions(operator_sudoers=asked.operator_sudoers, user_instance=asked.user_instance)
        TestHost.create(asked.name, options, behind=behind, for_person=True)
        return 0
    return _on_host(TestHost.open(asked.name), asked)


def _on_host(host: TestHost, asked: argparse.Namespace) -> int:
    if asked.command == "ssh":
        remote = [shlex.join(asked.argv)] if asked.argv else []
        os.execvp("ssh", ["ssh", "-F", str(host.ssh_config), host.alias, *remote])
    if asked.command == "exec":
        done = host.exec(asked.argv, check=False)
        sys.stdout.write(done.stdout)
        sys.stderr.write(done.stderr)
        return done.returncode
    if asked.command == "info":
        print(f"address\t{host.address}\nssh\tssh -F {host.ssh_config} {host.alias}")
        print(f"key\t{host.key}\nknown\t{host.known_hosts}\npid1\t{host.pid1 if host.is_on else '-'}")
        return 0
    started = time.perf_counter()
    VERBS[asked.command](host)
    print(f"{asked.command}: {time.perf_counter() - started:.2f} s")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
