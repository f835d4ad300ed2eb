"""Write the schema of /status.json: docs/status.schema.json.

python -m tools.status_schema          writes it
python -m tools.status_schema --check  writes nothing; ends with status 1 if it is out of date
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Final

from proxy.status.shape import Status

PATH: Final = Path(__file__).parents[1] / "docs" / "status.schema.json"


def text() -> str:
    """Return the schema."""
    schema = {"$schema": "https://json-schema.org/draft/2020-12/schema", **Status.model_json_schema()}
    return json.dumps(schema, indent=2) + "\n"


def main() -> int:
    """Write, or check, the schema. Return the exit status."""
    if PATH.exists() and PATH.read_text("utf-8") == text():
        return 0
    if "--check" in sys.argv[1:]:
        print(f"docs/{PATH.name} is out of date: run python -m tools.status_schema", file=sys.stderr)
        return 1
    PATH.write_text(text(), "utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
