"""config_docs.py SLUICE --write | --check: docs/configuration.md from `sluice serve --print-schema`."""
import json
import pathlib
import subprocess
import sys

TARGET = pathlib.Path(__file__).resolve().parent.parent / "docs" / "configuration.md"

HEAD = """# Configuration

Written by `./dev docs` from the schema in the binary; `./dev test` fails when it is out of date.

Settings come from three places, later ones win: the defaults below, a file given with `--config sluice.yaml`, flags. Any
key can be set with `--set KEY=VALUE`; the common ones have flags of their own (`sluice serve --help`). Unknown keys are
refused, with the line and the nearest known name. `sluice serve --print-config` prints a complete file to start from,
`--print-schema` the JSON schema, `--dry-run` what a start would decide.

One thing comes from the environment: `SLUICE_API_KEY` adds an API key, so that it need not stand on a command line.
"""


def rows(schema, prefix=""):
    for name, entry in schema["properties"].items():
        if entry["type"] == "object":
            yield from rows(entry, f"{prefix}{name}.")
        else:
            yield prefix + name, entry


def cell(text):
    return text.replace("|", "\\|")


def page(schema):
    out, section = [HEAD], None
    for name, entry in rows(schema):
        top = name.split(".")[0] if "." in name else "(top level)"
        if top != section:
            section = top
            out.append(f"\n## {top}\n\n| key | default | unit | room | meaning |\n| --- | --- | --- | --- | --- |\n")
        default = json.dumps(entry["default"])
        limits = []
        if "minimum" in entry:
            limits.append(f"{entry['minimum']} to {entry['maximum']}" if "maximum" in entry else f"at least {entry['minimum']}")
        if "exclusiveMinimum" in entry:
            limits.append(f"above {entry['exclusiveMinimum']}, at most {entry['maximum']}")
        if "enum" in entry:
            limits.append("one of " + ", ".join(f"`{c}`" for c in entry["enum"] if c))
        meaning = entry["description"] + (f" ({'; '.join(limits)})" if limits else "")
        out.append(f"| `{name}` | `{default}` | {entry.get('x-unit', '')} | {entry['x-room']} | {cell(meaning)} |\n")
    return "".join(out)


def main():
    schema = json.loads(subprocess.run([sys.argv[1], "serve", "--print-schema"], check=True, capture_output=True, text=True).stdout)
    text = page(schema)
    if sys.argv[2] == "--write":
        TARGET.write_text(text, encoding="utf-8")
        return 0
    if not TARGET.exists() or TARGET.read_text(encoding="utf-8") != text:
        print("docs/configuration.md is out of date; ./dev docs writes it")
        return 1
    print("configuration docs: up to date")
    return 0


if __name__ == "__main__":
    sys.exit(main())
