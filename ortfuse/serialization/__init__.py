"""JSON data and JSON Schemas of dataclasses, both from the declarations of their fields.

A field is in the data under its own name. `entry` declares another key, or that it is left out; `derived` adds a property
or method. `Record` gives a dataclass its `to_dict`.
"""

from ortfuse.serialization.dataclass_to_json import Record, to_data
from ortfuse.serialization.json_field_declarations import derived, entry

__all__ = ["Record", "derived", "entry", "to_data"]
