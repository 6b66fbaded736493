"""Raw QUIC clients against a broker that takes MQTT on several streams.

`suite.py [--form FORM] [--first-bit BIT] [--list] CA URL [CASE...]`, with FORM one of emqx (the default), next and
mqtt5, and URL such as quic://127.0.0.1:14567. A CASE is a name or the beginning of one. Environment: BROKER_USER, BROKER_PASSWORD.
Prints `ok FORM/NAME` or `FAILED FORM/NAME: why` for each; exit status 1 if any fails.
"""

import argparse
import asyncio
import logging
import os
import sys
import traceback

import cases
import emqx  # noqa: F401 (each form lists its cases)
import emqx_ends  # noqa: F401
import flow
import form_mqtt5  # noqa: F401
import form_next  # noqa: F401
import form_next_errors  # noqa: F401
import form_next_recovery  # noqa: F401


def why(error):
    """One line: what was wrong, and where in the case."""
    here = os.path.dirname(os.path.abspath(__file__))
    places = [each for each in traceback.extract_tb(error.__traceback__) if each.filename.startswith(here)]
    at = next((each for each in reversed(places) if "emqx" in each.filename or "form_" in each.filename), None)
    where = f" ({os.path.basename(at.filename)}:{at.lineno}: {at.line})" if at else ""
    said = str(error).replace("\n", " ") or type(error).__name__
    return said + where


async def run(form, url, ca, chosen):
    failed = 0
    for name, function in chosen:
        world = cases.World(url, ca, form, name)
        try:
            await asyncio.wait_for(world.run(function), cases.LIMIT)
            print(f"ok aioquic/{form}/{name}")
        except Exception as error:
            failed += 1
            said = f"not done in {cases.LIMIT} s" if isinstance(error, TimeoutError) else why(error)
            print(f"FAILED aioquic/{form}/{name}: {said}")
    print(f"aioquic/{form}: {len(chosen) - failed} passed, {failed} failed")
    return 1 if failed else 0


def main():
    arguments = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    arguments.add_argument("--form", choices=cases.FORMS, default="emqx")
    arguments.add_argument("--first-bit", choices=("high", "low"), default=flow.first_bit,
                           help="where MQTT-next's list of flags begins (default: %(default)s)")
    arguments.add_argument("--list", action="store_true", help="names the cases, and runs none")
    arguments.add_argument("ca", nargs="?")
    arguments.add_argument("url", nargs="?")
    arguments.add_argument("cases", nargs="*", metavar="CASE")
    given = arguments.parse_args()
    flow.first_bit = given.first_bit
    chosen = cases.FORMS[given.form]
    if given.list:
        print("\n".join(name for name, _ in chosen))
        return 0
    if not given.url:
        arguments.error("the CA's file and the broker's URL are wanted")
    if given.cases:
        chosen = [each for each in chosen if each[0].startswith(tuple(given.cases))]
        if not chosen:
            arguments.error(f"no case of {given.form} begins with {' or '.join(given.cases)}; --list names them")
    logging.getLogger("quic").setLevel(logging.CRITICAL)
    return asyncio.run(run(given.form, given.url, given.ca, chosen))


if __name__ == "__main__":
    sys.stdout.reconfigure(line_buffering=True)
    sys.exit(main())
