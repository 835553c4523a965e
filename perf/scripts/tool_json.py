"""The JSON that the tools write."""
import json
import sys


def load_json(path, schema, version):
    """What a tool has written, as its schema and version say; ends the program where the file has something else."""
    try:
        with open(path, encoding="utf-8") as file:
            report = json.load(file)
    except (OSError, ValueError) as error:
        sys.exit(f"cannot read {path}: {error}; a tool writes its JSON when it ends")
    if not isinstance(report, dict) or (report.get("schema"), report.get("schemaVersion")) != (schema, version):
        sys.exit(f"{path} is no {schema} of this version")
    return report
