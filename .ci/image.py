"""Do the steps of the Dockerfile in a clean folder, on a machine without a container engine.

    python3.11 .ci/image.py [--keep FOLDER] [--build-arg NAME=VALUE ...]

The image's /opt is a fresh folder, its Python an environment made by the interpreter that runs
this, and the files copied are those that git has. What the base image brings besides is this
machine's. Ends as the command of the image does.
"""

import argparse
import json
import os
import re
import subprocess
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent


def steps(text: str) -> list[tuple[str, str]]:
    """Return each instruction of a Dockerfile with its argument; lines that go on are joined."""
    code = "\n".join(line for line in text.splitlines() if not line.lstrip().startswith("#"))
    joined = re.sub(r"\\\n", " ", code)
    lines = [line.strip().split(None, 1) for line in joined.splitlines() if line.strip()]
    return [(line[0], line[1]) for line in lines]


def build(place: Path, arguments: dict[str, str]) -> int:
    """Do all steps with ``place`` as the image's root; return how its command ended."""
    subprocess.run([sys.executable, "-m", "venv", str(place / "venv")], check=True)
    environment = {
        **{name: os.environ[name] for name in ("HOME", "LANG") if name in os.environ},
        "PATH": f"{place}/venv/bin:{os.environ['PATH']}",
    }
    folder, command = place, list[str]()
    for instruction, argument in steps((ROOT / "Dockerfile").read_text()):
        argument = argument.replace("/opt", f"{place}/opt")
        print(f"== {instruction} {argument}", flush=True)
        if instruction == "ARG":
            name, _, value = argument.partition("=")
            environment[name] = arguments.get(name, value)
        elif instruction == "ENV":
            name, _, value = argument.partition("=")
            environment[name] = value
        elif instruction == "WORKDIR":
            folder = Path(argument)
            folder.mkdir(parents=True)
        elif instruction == "COPY":
            files = subprocess.Popen(["git", "archive", "HEAD"], cwd=ROOT, stdout=subprocess.PIPE)
            subprocess.run(["tar", "-x"], cwd=folder, stdin=files.stdout, check=True)
            if files.wait():
                raise SystemExit("git archive failed")
        elif instruction == "RUN":
            subprocess.run(["sh", "-ec", argument], cwd=folder, env=environment, check=True)
        elif instruction in ("ENTRYPOINT", "CMD"):
            command += json.loads(argument)
        elif instruction != "FROM":
            raise SystemExit(f"{instruction} is not known here")
    return subprocess.run(command, cwd=folder, env=environment).returncode


def main() -> int:
    """Read the command line; build in a folder that is removed unless it is to be kept."""
    parser = argparse.ArgumentParser(description="Do the steps of the Dockerfile without an engine")
    parser.add_argument("--keep", type=Path, metavar="FOLDER", help="an empty folder, to look at")
    parser.add_argument("--build-arg", action="append", default=[], metavar="NAME=VALUE")
    args = parser.parse_args()
    arguments = dict(one.split("=", 1) for one in args.build_arg)
    if args.keep:
        args.keep.mkdir(parents=True)
        return build(args.keep.resolve(), arguments)
    with tempfile.TemporaryDirectory() as place:
        return build(Path(place), arguments)


if __name__ == "__main__":
    sys.exit(main())
