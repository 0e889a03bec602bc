"""A notebook as nbconvert's page: no kernel, no JavaScript, both themes, a narrow window."""

from __future__ import annotations

import re

import pytest
from conftest import run_notebook

pytestmark = [pytest.mark.slow, pytest.mark.browser]

CELLS = [
    "%load_ext jaxpar_magic\n%jaxdevices 2",
    "import jax, jax.numpy as jnp\njax.vmap(lambda x, y: x * y)(jnp.ones(3), jnp.ones(4))",
    "%parmap jnp.sin jnp.ones(6) --compare vmap,map,shard_map",
    "mesh = jax.make_mesh((2,), ('d',))\n"
    "x = jax.device_put(jnp.ones(8), jax.NamedSharding(mesh, jax.P('d')))\n"
    "%jaxdevices --arrays",
    "%jaxexplain JPX0104",
]
OURS = ".jp-RenderedHTML section"


@pytest.fixture(scope="module")
def executed():
    return run_notebook(CELLS)


@pytest.mark.parametrize("theme", ["light", "dark"])
def test_the_page_says_all_without_javascript_and_is_accessible(
    executed, browser, accessibility_problems, screenshots, tmp_path, theme
):
    from nbconvert import HTMLExporter

    source, _ = HTMLExporter(theme=theme).from_notebook_node(executed)
    file = tmp_path / "page.html"
    file.write_text(source, encoding="utf-8")
    # nbconvert's template asks other hosts for MathJax, which nothing of ours needs
    elsewhere = re.compile("^https?:")
    still = browser.new_page(java_script_enabled=False, viewport={"width": 400, "height": 900})
    live = browser.new_page()
    try:
        still.route(elsewhere, lambda route: route.abort())
        still.goto(file.as_uri())
        for role, name in [
            ("heading", "JAX is not imported yet"),
            ("table", "devices and cores"),
            ("heading", "JPX0401 mapped-sizes-differ"),
            ("rowheader", "ideal"),
            ("table", "x float32[8]: parts of axis 0"),
            ("heading", "JPX0104 pmap-needs-devices"),
        ]:
            assert still.get_by_role(role, name=name).first.is_visible(), name
        still.locator(OURS).nth(2).screenshot(path=screenshots / f"exported-{theme}-narrow.png")

        live.route(elsewhere, lambda route: route.abort())
        live.goto(file.as_uri())
        assert accessibility_problems(live, OURS) == []
        live.set_viewport_size({"width": 400, "height": 900})
        assert accessibility_problems(live, OURS) == []
        assert live.locator(OURS).evaluate_all("all => all.filter(e => e.scrollWidth > e.clientWidth).length") == 0
        bars = live.locator(OURS).locator("div", has=live.get_by_role("rowheader", name="ideal")).last
        assert bars.evaluate("box => box.scrollWidth - box.clientWidth") == 0, "all of a picture is in sight"
    finally:
        still.close()
        live.close()
