"""Run functions compiled by numba in the threads in which torch computes on a CPU.

After each operation, torch's threads spin for some milliseconds, waiting for the next one. Other threads would have to
share the cores with them, so that two threads would be no faster than one.

Measured (docs/log.md): a step of soft attention on an Intel Xeon, in two threads, took 402 and 358 ms with torch's
threads and 475 with a pool of Python's threads, in bfloat16 240 and 316, and 346; a step of DRAW's classifier 116 and
106, and 157. On an AMD EPYC they gain 5%. Without GNU's OpenMP, as on other systems, `loops` uses such a pool.

Python is not involved: each thread runs a function of a few instructions, compiled by llvmlite, which calls numba's
function with the part of this thread. So a thread finds its earlier results in its cache.
"""

import ctypes
import os
from array import array as machine_words
from collections.abc import Sequence
from typing import Any

import numba
import torch
from llvmlite import binding, ir
from torch import Tensor

WORD = ir.IntType(64)
WORK, THREAD, THREADS, NUMBER, LENGTH, FAILED, ARGUMENTS = range(7)
"""The meaning of the words of a job: the addresses of numba's function and of those that return the number of a thread
and how many there are, the number of parts, the length that they divide, whether a part has failed, and the
arguments."""


class Team:
    """Torch's threads, if they are those of GNU's OpenMP."""

    def __init__(self) -> None:
        """Raises OSError or AttributeError if torch has not loaded GNU's OpenMP."""
        with open("/proc/self/maps") as maps:  # torch's copy may have a name of its own
            loaded = [line.rstrip("\n").split(maxsplit=5)[5] for line in maps if "/libgomp" in line]
        folder = os.path.dirname(os.path.realpath(torch.__file__))
        own = [path for path in loaded if path.startswith(folder)]
        library = ctypes.CDLL([*own, *loaded, "libgomp.so.1"][0], mode=os.RTLD_NOW | os.RTLD_NOLOAD)
        self._parallel = library.GOMP_parallel
        self._parallel.argtypes = [ctypes.c_void_p, ctypes.c_void_p, ctypes.c_uint, ctypes.c_uint]
        self._parallel.restype = None
        own_number, how_many = library.omp_get_thread_num, library.omp_get_num_threads
        self._counting = [ctypes.cast(function, ctypes.c_void_p).value or 0 for function in (own_number, how_many)]
        self._functions: dict[tuple, int] = {}
        self._members: dict[int, Member] = {}

    def call(self, work: Any, number: int, tensors: Sequence[Tensor], threads: int) -> None:
        """Call work(first, last, *tensors) for parts of the first dimension.

        number: the number of parts.
        threads: torch's number of threads. With any other number, threads would be ended and started again each time.
        """
        signature, words = [work], machine_words("q", [0, *self._counting, number, len(tensors[0]), 0])
        for tensor in tensors:
            signature += tensor.dtype, tensor.dim(), tensor.is_contiguous()
            size = tensor.element_size()
            words.extend((0, 0, tensor.numel(), size, tensor.data_ptr(), *tensor.shape))
            words.extend(map(size.__mul__, tensor.stride()))  # in bytes
        if (function := self._functions.get(tuple(signature))) is None:
            function = self._functions[tuple(signature)] = address(work, tensors)
        words[WORK], count = function, len(words) - ARGUMENTS
        if (member := self._members.get(count)) is None:
            member = self._members[count] = Member(count)
        self._parallel(member.address, words.buffer_info()[0], threads, 0)
        if words[FAILED]:
            raise MemoryError(f"{work.__name__} has failed in a thread")


def address(work: Any, tensors: Sequence[Tensor]) -> int:
    """Return the address of numba's machine code for tensors like these. It is called as numba calls its own functions:
    addresses of a result and of an error, then the arguments, each array as the words of its struct."""
    arrays = (
        numba.typeof(tensor.detach().numpy()).copy(layout="C" if tensor.is_contiguous() else "A") for tensor in tensors
    )
    types = numba.types.intp, numba.types.intp, *arrays
    work.compile(types)
    made = work.overloads[types]
    return made.library.get_pointer_to_function(made.fndesc.llvm_func_name)


class Member:
    """The function that runs in each thread, for a job whose arguments are `count` words."""

    def __init__(self, count: int) -> None:
        module = ir.Module("team")
        function = ir.Function(module, ir.FunctionType(ir.VoidType(), [WORD]), "member")
        first, again, body, done = (function.append_basic_block(name) for name in ("first", "again", "part", "done"))
        code = ir.IRBuilder(first)
        job = code.inttoptr(function.args[0], WORD.as_pointer())
        at = [code.gep(job, [WORD(index)]) for index in range(ARGUMENTS + count)]
        number, length, *arguments = (code.load(at[index]) for index in (NUMBER, LENGTH, *range(ARGUMENTS, len(at))))
        counting = ir.FunctionType(ir.IntType(32), []).as_pointer()
        thread, threads = (
            code.zext(code.call(code.inttoptr(code.load(at[index]), counting), []), WORD) for index in (THREAD, THREADS)
        )
        returned = [code.ptrtoint(code.alloca(WORD), WORD) for _ in range(2)]
        function_type = ir.FunctionType(ir.IntType(32), [WORD] * (4 + count))
        work = code.inttoptr(code.load(at[WORK]), function_type.as_pointer())
        code.branch(again)
        code.position_at_end(again)
        index = code.phi(WORD)
        index.add_incoming(thread, first)
        code.cbranch(code.icmp_signed("<", index, number), body, done)
        code.position_at_end(body)
        edges = [code.sdiv(code.mul(length, edge), number) for edge in (index, code.add(index, WORD(1)))]
        status = code.call(work, [*returned, *edges, *arguments])
        code.atomic_rmw("or", at[FAILED], code.zext(code.icmp_signed("!=", status, status.type(0)), WORD), "monotonic")
        index.add_incoming(code.add(index, threads), body)
        code.branch(again)
        code.position_at_end(done)
        code.ret_void()
        parsed = binding.parse_assembly(str(module))
        parsed.verify()
        machine = binding.Target.from_default_triple().create_target_machine()
        self._engine = binding.create_mcjit_compiler(parsed, machine)
        self._engine.finalize_object()
        self.address = self._engine.get_function_address("member")
