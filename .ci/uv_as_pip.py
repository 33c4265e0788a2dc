"""Install with uv what pip would install: from where pip looks, under the constraints that pip has.

    python .ci/uv_as_pip.py UV PYTHON ARGUMENT...

UV is the program; PYTHON is that of the environment that is installed into, and has pip. uv does
not read pip's configuration, so what ``pip config list`` prints (files and PIP_* variables) is
given to it as options. Ends with `NOT_FOR_UV` where pip is configured with what uv has no word for.
"""

import ast
import os
import subprocess
import sys
from pathlib import Path
from urllib.parse import unquote, urlsplit

NOT_FOR_UV = 3
"""Exit code: nothing was installed, and pip has to."""

FLAGS = {
    "find-links": "--find-links",
    "extra-index-url": "--extra-index-url",
    "constraint": "--constraint",
    "trusted-host": "--allow-insecure-host",
    "index-url": "--index-url",
    "no-index": "--no-index",
    "pre": "--prerelease=allow",
}
MANY = {"find-links", "extra-index-url", "constraint", "trusted-host"}
"""Options of several values, separated by blanks."""
SWITCHES = {"no-index", "pre"}
VARIABLES = {
    "cert": ("SSL_CERT_FILE",),
    "client-cert": ("SSL_CLIENT_CERT",),
    "proxy": ("HTTP_PROXY", "HTTPS_PROXY"),
    "timeout": ("UV_HTTP_TIMEOUT",),
    "default-timeout": ("UV_HTTP_TIMEOUT",),
}
CHANGE_NOTHING = {
    "cache-dir",
    "debug",
    "disable-pip-version-check",
    "exists-action",
    "log",
    "no-cache-dir",
    "no-color",
    "no-compile",
    "no-input",
    "no-python-version-warning",
    "no-warn-conflicts",
    "no-warn-script-location",
    "progress-bar",
    "quiet",
    "resume-retries",
    "retries",
    "require-virtualenv",
    "root-user-action",
    "verbose",
    "break-system-packages",
}
"""How pip works and what it prints, not what it installs."""
OFF = {"", "0", "false", "no", "off", "n", "f"}


def effective(listed: str) -> dict[str, str]:
    """Return what holds for ``pip install`` of what ``pip config list`` printed, by option.

    Variables go before the section ``[install]``, and that before ``[global]``.
    """
    by_section: dict[str, dict[str, str]] = {}
    for line in listed.splitlines():
        name, _, value = line.partition("=")
        section, _, option = name.rpartition(".")
        by_section.setdefault(section, {})[option] = str(ast.literal_eval(value))
    found: dict[str, str] = {}
    for section in ("global", "install", ":env:"):
        found |= by_section.get(section, {})
    return found


def translate(options: dict[str, str]) -> tuple[list[str], dict[str, str], list[str]]:
    """Return options and variables for uv, and the options of pip that have no equal."""
    flags: list[str] = []
    variables: dict[str, str] = {}
    unknown = []
    for option, value in options.items():
        if option in SWITCHES:
            flags += [] if value.lower() in OFF else [FLAGS[option]]
        elif option in FLAGS:
            for one in value.split() if option in MANY else [value]:
                # pip passes over a folder that is not there; uv ends
                if not _is_missing_folder(option, one):
                    flags += [FLAGS[option], one]
        elif option in VARIABLES:
            variables |= dict.fromkeys(VARIABLES[option], value)
        elif option not in CHANGE_NOTHING and value.lower() not in OFF:
            unknown.append(option)
    # pip takes the best version of all indexes, uv that of the first index that has any
    return [*flags, "--index-strategy", "unsafe-best-match"], variables, unknown


def _is_missing_folder(option: str, place: str) -> bool:
    if option not in ("find-links", "extra-index-url"):
        return False
    parts = urlsplit(place)
    if parts.scheme not in ("", "file"):
        return False
    return not Path(unquote(parts.path) if parts.scheme else place).expanduser().exists()


def main(uv: str, python: str, *arguments: str) -> None:
    """Become uv, unless it cannot do what pip is told."""
    pip = [python, "-m", "pip", "config", "list"]
    listed = subprocess.run(pip, check=True, stdout=subprocess.PIPE, text=True).stdout
    flags, variables, unknown = translate(effective(listed))
    if unknown:
        print(f"pip is configured with {', '.join(unknown)}: uv is not used", file=sys.stderr)
        sys.exit(NOT_FOR_UV)
    install = ["uv", "pip", "install", "--quiet", "--no-compile-bytecode"]
    words = [*install, "--python", python, *flags, *arguments]
    os.execve(uv, words, {**os.environ, **variables})


if __name__ == "__main__":
    main(*sys.argv[1:])
