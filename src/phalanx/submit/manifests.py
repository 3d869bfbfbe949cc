"""Objects for Kubernetes: `templates/*.yaml` with the values of one job."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import yaml

Manifest = dict[str, Any]


def render(template: str, values: Mapping[str, Any]) -> list[Manifest]:
    """The objects of a template.

    Every `{{ value }}` of a template becomes a quoted YAML value, whatever is in it. A field whose
    value is None is left out.
    """
    # jinja2 takes its time, which --help has no use for.
    from jinja2 import Environment, PackageLoader, StrictUndefined

    templates = Environment(
        loader=PackageLoader("phalanx.submit"),
        undefined=StrictUndefined,
        finalize=_inline,
        trim_blocks=True,
        autoescape=False,
    )
    text = templates.get_template(template).render(values)
    return [_without_empty(made) for made in yaml.safe_load_all(text)]


def to_yaml(objects: Sequence[Manifest]) -> str:
    """All objects in one text, for `kubectl apply -f -`."""
    return yaml.dump_all(objects, Dumper=_Readable, sort_keys=False, width=100)


def _inline(value: Any) -> str:
    """A value on one line: neither a quote nor a line break in a text can end it."""
    text = yaml.dump(
        value, Dumper=_Quoted, default_flow_style=True, sort_keys=False, width=math.inf
    )
    return text.removesuffix("\n").removesuffix("\n...")


def _without_empty(value: Any) -> Any:
    if isinstance(value, dict):
        fields = {name: _without_empty(each) for name, each in value.items()}
        return {name: each for name, each in fields.items() if each not in (None, {}, [])}
    return [_without_empty(each) for each in value] if isinstance(value, list) else value


class _Quoted(yaml.SafeDumper):
    """Texts in quotes."""

    def ignore_aliases(self, data: Any) -> bool:
        return True


class _Readable(yaml.SafeDumper):
    """As a person writes YAML: texts of several lines as blocks, lists indented."""

    def increase_indent(self, flow: bool = False, indentless: bool = False) -> None:
        super().increase_indent(flow, False)


_TEXT = "tag:yaml.org,2002:str"
_Quoted.add_representer(str, lambda dumper, text: dumper.represent_scalar(_TEXT, text, style='"'))
_Readable.add_representer(
    str,
    lambda dumper, text: dumper.represent_scalar(_TEXT, text, style="|" if "\n" in text else None),
)
