"""Sphinx: the pages in this folder, and the reference from the docstrings."""

import importlib.metadata
import inspect
import re
from types import ModuleType
from typing import Any

from docutils import nodes
from docutils.utils.math.latex2mathml import tex2mathml
from sphinx.application import Sphinx

import interop
import jaxclamp
from interop import native

project = "jaxclamp"
author = "The jaxclamp developers"
release = importlib.metadata.version("jaxclamp")
html_title = f"jaxclamp {release}"
html_theme = "furo"
html_theme_options = {"footer_icons": []}
html_show_sphinx = False
html_show_copyright = False
html_copy_source = False
html_css_files = ["jaxclamp.css"]
html_js_files = ["copy.js"]
html_static_path = ["_static"]
html_extra_path = ["_gallery/report.html"]
highlight_language = "text"
exclude_patterns = ["_build"]

extensions = ["myst_parser", "sphinx.ext.autodoc", "sphinx.ext.napoleon"]
myst_enable_extensions = ["colon_fence", "dollarmath", "substitution"]
myst_heading_anchors = 3
napoleon_numpy_docstring = False
napoleon_custom_sections = [("Raises when called", "Raises")]
autodoc_member_order = "bysource"
autodoc_typehints_format = "short"
autodoc_type_aliases = {
    name: name
    for name in (
        "Allowed",
        "Argument",
        "Array",
        "ArrayLike",
        "Arrays",
        "Callable",
        "Convention",
        "Family",
        "FilePath",
        "Finding",
        "FrameworkName",
        "Kind",
        "Save",
        "Scale",
        "Tree",
    )
}
default_role = "py:obj"
# Names of other libraries, and of types that have no page: they stay unlinked. Our own have to lead somewhere.
_FOREIGN = (
    r"(jax|jnp|numpy|np|torch|collections|contextlib|functools|dataclasses|inspect|typing|rich|os|Path|Figure)(\..*)?"
)
nitpick_ignore_regex = [
    ("py:.*", _FOREIGN),
    (
        "py:(class|obj)",
        rf"({'|'.join(autodoc_type_aliases)}|TypeAliasForwardRef|(.*\.)?(Applied|Counterpart)|"
        r"interop\.comparison\.(leaves\.Leaf|models\.mapping\.Pair)|"
        r"interop\.survey\.(versions\.Line|records\.(Record|Source)))",
    ),
    ("py:exc", "GradcheckError"),  # of torch
    ("py:(class|obj)", r"(interop\._transforms\.(min_norm|ranks)\.)?[A-Z]"),  # type variables
]


def _documented(kind: str, package: ModuleType, names: list[str], *options: str) -> str:
    """A directive of autodoc for each name, as MyST takes it."""
    directives = [
        "\n".join([f".. auto{kind}:: {package.__name__}.{name}", *(f"   :{option}:" for option in options)])
        for name in names
    ]
    return "\n\n".join(["```{eval-rst}", *directives, "```"])


def _names(family: str) -> list[str]:
    return [op.name for op in jaxclamp.OPS.values() if op.family == family]


def _functions(package: ModuleType) -> list[str]:
    functions = [name for name in package.__all__ if inspect.isfunction(getattr(package, name))]
    return [name for name in functions if name not in interop.TORCH_OPS.keys() | interop.IN_PLACE_OPS.keys()]


_native = sorted(native.NATIVE, key=[*jaxclamp.OPS, *native.NATIVE].index)  # in the order of use
_modules = [name for name in interop.nn.__all__ if name not in ("Conversion", "convert")]
myst_substitutions = {
    **{family: _documented("function", jaxclamp, _names(family)) for family in ("selection", "kinked", "reduction")},
    "transformations": _documented("function", jaxclamp, _functions(jaxclamp)),
    "interop_functions": _documented("function", interop, _functions(interop)),
    "interop_ops": _documented("function", interop, [n for n in interop.TORCH_OPS if n in jaxclamp.OPS]),
    "interop_in_place": ", ".join(f"`{name}`" for name in interop.IN_PLACE_OPS),
    "interop_modules": ", ".join(f"`{name}`" for name in _modules),
    "native_functions": ", ".join(f"`{name}`" for name in _native if not name.endswith("_")),
    "native_in_place": ", ".join(f"`{name}`" for name in _native if name.endswith("_")),
    "aliases": ", ".join(
        f"`{name}` for `{function.__name__}`"
        for name, function in vars(jaxclamp).items()
        if inspect.isfunction(function) and function.__name__ in jaxclamp.OPS and function.__name__ != name
    ),
}


def _inline(translator: Any, node: nodes.math) -> None:
    translator.body.append(tex2mathml(node.astext()))
    raise nodes.SkipNode


def _block(translator: Any, node: nodes.math_block) -> None:
    translator.body.append(f'<div class="formula">{tex2mathml(node.astext(), as_block=True)}</div>')
    raise nodes.SkipNode


def _plain_aliases(app: Sphinx, what: str, name: str, thing: object, options: Any, *signature: str | None) -> Any:
    """An alias within a union by its name, which is what ``autodoc_type_aliases`` makes of it elsewhere."""
    return tuple(part and re.sub(r"TypeAliasForwardRef\('(\w+)'\)", r"\1", part) for part in signature)


def setup(app: Sphinx) -> None:
    """Formulas become MathML, which browsers draw themselves: the pages need no script from elsewhere."""
    app.add_html_math_renderer("mathml", (_inline, None), (_block, None))
    app.connect("autodoc-process-signature", _plain_aliases)


html_math_renderer = "mathml"
