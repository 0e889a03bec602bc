"""How to add an explanation, in ten minutes.

1. **Take a code** from your family's range (the table in `registry.py`) and a slug that names the cause, not
   the message: "pmap-needs-devices". One code is one root cause with one kind of fix.

2. **Write the rule** in `rules/FAMILY.py` (one file a family; files that begin with `_` are no families). A
   rule is a function of a `Failure` that returns a `Finding`, or None if the failure is something else::

       from ..context import Failure
       from ..explanation import Fix
       from ..registry import Finding, rule
       from ..wording import counted

       @rule("JPX0203", "mesh-needs-devices", types=("ValueError",), clues=("the product of mesh_shape",))
       def mesh_needs_devices(failure: Failure) -> Finding | None:
           match = failure.search(r"Number of devices (\\d+) must be >= the product of ...")
           if match is None:
               return None
           ...
           return Finding(
               what=f"The mesh {shape} needs {counted(need, 'device')}, and JAX has {have}.",
               why="A mesh gives each of its places a device of its own.",
               fixes=[Fix("Make a mesh of the devices there are", "mesh = jax.make_mesh((4,), ('i',))")],
               facts={"needed": need, "available": have, "shape": shape},
           )

   - `types` and `clues` are a cheap filter, so that most rules are never called: short names of exception
     types (a parent takes its children), and strings of which one must stand in the message.
   - Compile no regex at module level (`failure.search` does, when it is needed): import time is what the
     user's first card waits for.
   - Facts before text: `failure.call("pmap")` (the user's own call, with its arguments as source),
     `failure.variable("x")` (shape, dtype, length), `failure.raised_in("pmap.py:wrapped")`,
     `failure.devices`, `failure.environment`, `failure.cause`, `failure.user_frames`. A pasted message has
     none of these: then say what the message alone proves, or return None.
   - Message text differs by version. Look at all versions in `tests/explanations/data/dev.jsonl`, and read
     JAX's source for the siblings that the corpus lacks.
   - **A wrong explanation is worse than none.** If the facts fit and do not prove it: `guess=True`. Where two
     causes print the same, let two rules find both as guesses: the card then names the other one too.
   - A user's own error that uses JAX's words must not match: ask for the message's exact structure.
   - `anywhere=True` for failures that JAX does not raise (pickle, numpy). Then check that JAX is involved.
   - Several functions may find one code (an old and a new wording).
   - A special case of another rule gets `priority=10` or more.

   Texts: simple English for someone who knows numpy, not JAX. `what` has the numbers and names of this very
   failure. `why` is the rule behind it, one or two sentences. Never "illegal", no blame, no exclamation mark.
   Fixes: at most three, the best first, as code with the user's names (`failure.rewrite(old, new)`,
   `call.args`); each must work in the state that the failure left: `wording.device_count_fix` knows when
   `%jaxdevices` helps. A fix is Python that compiles, or a line with one of our magics or a shell command.

3. **Write the page** `index/JPX0203.md`: title, what it means, an example that fails, one that runs (the
   format is in `pages.py`). A page is for every number; the card is for this one.

4. **Name the corpus cases** it explains in `tests/explanations/expected_codes/FAMILY.json`:
   `{"make-mesh-too-many-devices": "JPX0203"}`. A case where several codes are right: a list, the best first.

5. **Write the index of families anew**, or each first card takes longer:
   `python tests/explanations/harness.py --families`.

6. **Run**::

       python -m pytest tests/explanations -k "JPX0203 or FAMILY"                 # quick: stored messages
       python -m pytest tests/explanations -m slow -k "JPX0203 or make-mesh"      # really runs the snippets

   `python tests/explanations/harness.py CASE` runs a case and prints its card;
   `python tests/explanations/run_snippet.py FILE` runs a snippet and prints the explanation as JSON;
   `python -m jaxpar_magic explain < traceback.txt` explains text.
"""
