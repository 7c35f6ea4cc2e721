"""Bind the kinds of calls that kernels make to the installed CuPy, which needs no GPU for it.

``python -m tests.support.bind_calls [TABLE]`` prints one JSON object: how many kinds are ``bound``,
and those that are ``wrong`` (name, kind, why). Functions in Python are bound by their signature
(and words must be in the source of their module), methods of arrays, which are C functions, by
that which Cython wrote into the docstring. Ufuncs, and operators, which are ufuncs, by their number
of arguments, the keywords that all of CuPy's take, and the dtype that CuPy would compute with,
which must be the one recorded; indices by the rules of CuPy's user guide.
"""

import inspect
import json
import re
import sys
from pathlib import Path
from typing import Any

import cupy
import cupyx.scipy.fft
import cupyx.scipy.ndimage
import numpy as np

from tests.support.device_calls import TABLE

MODULES = {"xp": cupy, "fft": cupyx.scipy.fft, "ndimage": cupyx.scipy.ndimage}
MODULES |= {"array": cupy.ndarray}
#: Ufuncs by operator; with ``r`` or ``i`` before it the same.
OPERATORS = {
    "add": "add", "sub": "subtract", "mul": "multiply", "truediv": "true_divide",
    "floordiv": "floor_divide", "mod": "remainder", "pow": "power", "and": "bitwise_and",
    "or": "bitwise_or", "xor": "bitwise_xor", "lshift": "left_shift", "rshift": "right_shift",
    "lt": "less", "le": "less_equal", "eq": "equal", "ne": "not_equal", "gt": "greater",
    "ge": "greater_equal", "neg": "negative", "pos": "positive", "abs": "absolute",
    "invert": "invert",
}  # fmt: skip
#: Of all CuPy's ufuncs; ``where`` is for arrays and not used.
UFUNC_KEYWORDS = {"out", "dtype", "casting"}
PYTHON_SCALARS = {"bool": False, "int": 1, "float": 1.0, "complex": 1j}
#: Kinds that an index may be of; arrays stand in brackets behind their dtype.
INDICES = re.compile(r"int|slice|slice by step|ellipsis|None|np\.u?int\d+|(bool|u?int\d+)\[\d\]")
#: Words that are no options: a sum over indices, and they are parsed.
SUM = re.compile(r"'[a-z,.]+->[a-z.]*'")


def dtype_of(kind: str) -> Any:
    """Return the dtype of an array or a NumPy scalar, a scalar of Python, or None."""
    if kind in PYTHON_SCALARS:
        return PYTHON_SCALARS[kind]
    found = re.fullmatch(r"(?:np\.)?([a-z]+\d*)(?:\[\d\])?", kind)
    return np.dtype(found.group(1)) if found and hasattr(np, found.group(1)) else None


def computed(ufunc: Any, inputs: list[Any]) -> str | None:
    """Return the dtype of what a ufunc of CuPy gives: its first loop that takes the inputs.

    Scalars of Python take the dtype of arrays, unless their kind is a higher one (NEP 50).
    """
    strong = [value.kind.replace("u", "i") for value in inputs if isinstance(value, np.dtype)]
    rank = max(map("bifc".index, strong), default=-1)

    def fits(value: Any, loop: np.dtype[Any]) -> bool:
        if isinstance(value, np.dtype):
            return np.can_cast(value, loop)
        own = np.asarray(value).dtype
        if isinstance(value, bool) or "bifc".index(own.kind) > rank:
            return np.can_cast(own, loop)
        return np.result_type(loop, value) == loop

    for loop in ufunc.types:
        taken, given = loop.split("->")
        if all(fits(v, np.dtype(t)) for v, t in zip(inputs, taken, strict=True)):
            return str(np.dtype(given[0]))
    return None


def bind_ufunc(ufunc: Any, args: list[str], kwargs: dict[str, str], result: str) -> str | None:
    """Return why a call of a ufunc does not bind, or None."""
    inputs = [dtype_of(kind) for kind in args[: ufunc.nin]]
    if not ufunc.nin <= len(args) <= ufunc.nargs or set(kwargs) - UFUNC_KEYWORDS:
        return f"{ufunc.name} takes {ufunc.nin} arguments and {sorted(UFUNC_KEYWORDS)}"
    if any(value is None for value in inputs):
        return "neither an array nor a number"
    if "dtype" in kwargs:
        wanted = kwargs["dtype"].removeprefix("dtype ")
        return None if any(loop.endswith(np.dtype(wanted).char) for loop in ufunc.types) else wanted
    given = computed(ufunc, inputs)
    target = kwargs.get("out") or (args[ufunc.nin] if len(args) > ufunc.nin else None)
    if given is None:
        return "no loop for these dtypes"
    if target is not None and np.can_cast(given, dtype_of(target), "same_kind"):
        return None
    return None if given == str(dtype_of(result)) else f"{given} on the GPU, {result} here"


def bind_operator(name: str, args: list[str], result: str) -> str | None:
    """Return why an operator does not bind, or None."""
    if not hasattr(cupy.ndarray, f"__{name}__"):
        return "CuPy's arrays have no such operator"
    if name in ("float", "int", "bool", "iter"):
        return None
    way, bare = ("", name) if name in OPERATORS or name == "matmul" else (name[0], name[1:])
    if bare == "matmul":
        return None if all(dtype_of(kind) is not None for kind in args) else "not arrays"
    target = {"out": args[0]} if way == "i" else {}
    order = args[::-1] if way == "r" else args
    return bind_ufunc(getattr(cupy, OPERATORS[bare]), order, target, result)


def bind_index(args: list[str]) -> str | None:
    """Return why an index, or what is written there, does not bind, or None."""
    inner = args[1][1:-1].split(", ") if args[1].startswith("(") else [args[1]]
    if not all(INDICES.fullmatch(part) for part in inner if part):
        return "no index of CuPy's"
    if sum(part.startswith("bool[") for part in inner) > 1:
        return "more than one mask"
    return None if len(args) < 3 or dtype_of(args[2]) is not None else "neither array nor number"


def signature(function: Any) -> inspect.Signature:
    """Return the signature of a function of Python, or of a method that Cython compiled."""
    try:
        return inspect.signature(function)
    except ValueError:
        line = str(function.__doc__).splitlines()[0].partition("->")[0].strip()
        inside = re.sub(r"\b\w+ (?=\w+[,=)])", "", line[line.index("(") :])  # types of C
        space: dict[str, Any] = {}
        exec(f"def f{inside}: pass", {}, space)  # what CuPy says of itself
        return inspect.signature(space["f"])


def bind_function(function: Any, args: list[str], kwargs: dict[str, str]) -> str | None:
    """Return why a call does not bind, or None."""
    try:
        signature(function).bind(*args, **kwargs)
    except TypeError as error:
        return str(error)
    named = [(key, kind) for key, kind in kwargs.items() if kind[:1] == "'"]
    words = [kind for kind in args if kind[:1] == "'" and not SUM.match(kind)]
    # Methods of percentiles are compared one by one; those that are only named are refused.
    words += [f"method == {kind}" if key == "method" else kind for key, kind in named]
    if not words:
        return None
    module = inspect.getsource(sys.modules[inspect.unwrap(function).__module__])
    util = inspect.getsource(cupyx.scipy.ndimage._util)
    unknown = [word for word in words if word not in module and word not in util]
    return f"its source does not know {unknown}" if unknown else None


def bind(name: str, kind: list[Any]) -> str | None:
    """Return why a kind does not bind, or None."""
    *args, kwargs, result = kind
    space, *path = name.split(".")
    target: Any = MODULES[space]
    if path[-1] in ("__getitem__", "__setitem__"):
        return bind_index(args)
    if path[-1].startswith("__"):
        return bind_operator(path[-1].strip("_"), args, result)
    for part in path:
        if not hasattr(target, part):
            return "CuPy has no such name"
        target = getattr(target, part)
    if isinstance(target, cupy.ufunc):
        return bind_ufunc(target, args, kwargs, result)
    if not callable(target) or isinstance(target, type):
        return None
    return bind_function(target, args, kwargs)


if __name__ == "__main__":
    table = json.loads(Path(sys.argv[1]).read_text() if len(sys.argv) > 1 else TABLE.read_text())
    whys = [(name, kind, bind(name, kind)) for name, kinds in table.items() for kind in kinds]
    wrong = [found for found in whys if found[-1] is not None]
    print(json.dumps({"cupy": cupy.__version__, "bound": len(whys) - len(wrong), "wrong": wrong}))
